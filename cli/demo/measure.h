// Numbers out of the files that the demo's programs write. Pure but for reading the named files.
//   service CSV (latency_service --csv): request,intended_ns,start_ns,end_ns
//   trainer CSV (batch_trainer --csv):   step,start_ns,end_ns
//   trace CSV   (software GPU, TESSERA_SOFTGPU_TRACE): softgpu/timing/README.md
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

struct Csv {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  int column(const std::string& name) const;  // -1 if there is none
};
base::Result<Csv> read_csv(const std::string& path);

// Nearest-rank quantile (q in 0..1) of unsorted values; 0 for none.
double quantile(std::vector<double> values, double q);

struct ServiceFigures {
  std::vector<double> latency_ms;      // end - intended arrival, per request
  uint64_t first_ns = 0, last_ns = 0;  // first intended arrival, last end
};
base::Result<ServiceFigures> service_figures(const std::string& csv_path);

// Latencies that the same arrivals would see if each request took `service_ms` and the machine did nothing
// else: a queue with one server.
base::Result<std::vector<double>> queue_ms(const std::string& csv_path, double service_ms);

// Steps that the trainer did within [from, to], parts of steps counted by their share of time.
base::Result<double> steps_within(const std::string& csv_path, uint64_t from_ns, uint64_t to_ns);

// For each burst of the traced process: from its first operation enqueued while nothing was outstanding to
// the modelled start of its first kernel, in microseconds.
base::Result<std::vector<double>> turnarounds_us(const std::string& trace_path);

}  // namespace tessera::cli
