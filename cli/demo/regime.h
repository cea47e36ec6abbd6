// One phase of the demo: which of the two programs run, on which GPU, with or without Tessera. Starts the
// real programs and the real daemon, waits, and turns their files into figures. Main thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/demo/workload.h"
#include "cli/run/layout.h"

namespace tessera::cli {

enum class Sharing { kTimeSliced, kMps };

struct Phase {
  std::string name;  // key in demo.json and folder of its files
  bool service = true, trainer = true, tessera = false;
  Sharing sharing = Sharing::kTimeSliced;
};

struct Setting {  // the same for all phases
  Layout layout;
  Workload workload;
  bool soft = true;    // software GPU
  std::string out;     // absolute folder of the run
  double stretch = 1;  // software GPU: all that runs has a clock that many times slower than the wall's
  // CLOCK_MONOTONIC; after it nothing is tried by degrees: what lags is slowed down to the limit at once, and repeated no more.
  uint64_t patience_ends_ns = UINT64_MAX;
  double most_stretch = 128;   // that is tried: a phase of the fewest requests takes most of a minute then
  double wall_seconds = 20;    // measured time of a phase by the wall's clock, if that holds requests enough
  double least_requests = 30;  // of a phase: fewer say nothing at all
  double seconds = 20;         // measured time of a phase by the stretched clock
  uint64_t seed = 1;           // of the arrivals
  double rate_per_s = 0;       // arrivals by that clock; 0 before calibration
};

// The effect of the software GPU's lag on a phase.
struct Lag {
  double p99 = 0;          // relative to an operation's time; the worse of the two processes
  double share = 0;        // of the phase, in which a result was late; both processes
  double service_p99 = 1;  // the service's p99 over what it had been without
  double stretch = 1;      // how much further to stretch for next to nothing to be late
};

struct Figures {                   // all times by the programs' clock
  double stretch = 1;              // that it was measured with
  std::vector<double> latency_ms;  // of the requests that were answered
  uint64_t lost = 0;               // requests that had not begun when the phase was over
  double steps_per_s = 0;
  std::string service_checksum, trainer_checksum;
  Lag lag;                            // software GPU
  std::vector<double> turnaround_us;  // software GPU: modelled
  uint64_t preemptions = 0;           // from tesserad
  std::string daemon_state;           // tesserad's JSON at the end, "" without Tessera
  std::string service_csv;            // relative to Setting::out
};

// `progress(seconds done, seconds in all)` is called about twice a second, with seconds of the wall clock.
base::Result<Figures> run_phase(const Phase& phase, const Setting& setting,
                                const std::function<void(double, double)>& progress);

// The service's time per request on an idle GPU, in milliseconds by its clock.
base::Result<double> calibrate_service(const Setting& setting);

}  // namespace tessera::cli
