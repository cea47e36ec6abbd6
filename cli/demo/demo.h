// `tessera demo`: measures a latency-critical service and a trainer alone, sharing a GPU without Tessera, and
// sharing it under Tessera; prints one table, writes demo.json, the raw CSV files and a plot. Every figure
// comes from files that the unmodified sample programs and the software GPU wrote during this very run.
#pragma once

#include <string>

namespace tessera::cli {

struct DemoOptions {
  int seconds = 20;  // measured time of each phase
  std::string nonce = "demo";
  std::string out = "build/demo";
  double load = 0.5;  // service time x arrival rate
  std::string gpu = "auto";
  std::string workload = "auto";  // standard_workload(), or one of cli/demo/workload.h
  std::string gate = "auto";      // where the trainer's launches wait: auto, device or thread (TESSERA_GATE)
};

// 0: measured and valid. 1: a part failed to run. 3: measured, but the run is invalid (lag, checksums).
int demo(const DemoOptions& options);

}  // namespace tessera::cli
