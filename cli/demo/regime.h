// One phase of the demo: which of the two programs run, on which GPU, with or without Tessera. Starts the
// real programs and the real daemon, waits, and turns their files into figures. Main thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/layout.h"

namespace tessera::cli {

enum class Sharing { kTimeSliced, kMps };

struct Phase {
  std::string name;  // key in demo.json and folder of its files
  bool service = true, trainer = true, tessera = false;
  Sharing sharing = Sharing::kTimeSliced;
};

struct Setting {  // the same for all phases
  Layout layout;
  bool soft = true;  // software GPU
  std::string out;   // absolute folder of the run
  int seconds = 20;
  uint64_t seed = 1;      // of the arrivals
  double rate_per_s = 0;  // arrivals; 0 before calibration
};

struct Figures {
  std::vector<double> latency_ms;
  double steps_per_s = 0;
  std::string service_checksum, trainer_checksum;
  double lag_p99 = 0;                 // software GPU: worst of the two processes
  std::vector<double> turnaround_us;  // software GPU: modelled
  uint64_t preemptions = 0;           // from tesserad
  std::string daemon_state;           // tesserad's JSON at the end, "" without Tessera
  std::string service_csv;            // relative to Setting::out
};

// `progress(seconds done, seconds in all)` is called about twice a second.
base::Result<Figures> run_phase(const Phase& phase, const Setting& setting,
                                const std::function<void(double, double)>& progress);

// The service's time per request on an idle GPU, in milliseconds.
base::Result<double> calibrate_service(const Setting& setting);

}  // namespace tessera::cli
