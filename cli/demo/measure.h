// Numbers out of the files that the demo's programs write. Pure but for reading the named files.
//   service CSV (latency_service --csv): request,intended_ns,start_ns,end_ns
//   trainer CSV (batch_trainer --csv):   step,start_ns,end_ns
//   trace CSV   (software GPU, TESSERA_SOFTGPU_TRACE): docs/softgpu-timing.md
// All times are modelled: both kinds of programs divide CLOCK_MONOTONIC by the stretch.
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
std::vector<std::string> csv_cells(const std::string& line);  // without quoting; an empty last one counts

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

// Lag is the time for which an operation's result came after its modelled end (docs/softgpu-timing.md).
// Latencies of the same requests if none of their operations had lagged: what waited behind them starts
// earlier, too.
base::Result<std::vector<double>> latency_without_lag_ms(const std::string& csv_path,
                                                         const std::string& trace_path);
// Lag of the traced process within [from, to], as a share of that time.
base::Result<double> lag_share(const std::string& trace_path, uint64_t from_ns, uint64_t to_ns);
// How many times slower the modelled time would have to pass for lag, and the time until the process knew of
// an end, to take at most `share` of [from, to], results and news coming when they did. 1: they do. At most
// about 64.
base::Result<double> slowdown_needed(const std::string& trace_path, uint64_t from_ns, uint64_t to_ns,
                                     double share);

}  // namespace tessera::cli
