// A recorded program as a workload of the simulator, and what was inferred on the way. Rules: docs/traces.md. Pure; any
// thread.
//
// One iteration, or all of them, becomes a job. All its work becomes one stream, in the order in which it began on the GPU:
//
//   host   ---L1----L2-------L3===wait===-----L4---        L: a launch's call; its work may begin `latency` later
//   GPU        [ 1 ][ 2  ]      [ 3  ]           [4]
//               |    |           |
//               |    |           host time before it: until L3
//               |    queued: it begins when 1 has ended
//               began when its launch arrived
#pragma once

#include <string>
#include <vector>

#include "simulator/traces/device.h"
#include "simulator/traces/recording.h"
#include "simulator/workload.h"

namespace tessera::simulator::traces {

enum class Use : uint8_t {
  kRequest,  // an iteration is a request: it begins on an idle GPU and ends with its last work
  kLoop,  // iterations follow each other: all that were recorded are one job, and the host may be ahead when it begins
};
enum class Cuttable : uint8_t { kNone, kTriton, kAll };

struct Reading {
  const Device* target = nullptr;  // that is simulated
  const Device* source = nullptr;  // on which it was recorded; nullptr: as the recording says
  LaunchCosts costs;               // of the simulated host
  Use use = Use::kRequest;
  Cuttable cuttable = Cuttable::kNone;
  std::string range;  // iterations are the ranges whose names begin so; empty: as the recording marks them
};

struct Program {
  Workload workload;
  uint64_t recorded_ns = 0;           // how long the job took, as recorded
  double factor = 1;                  // by how much GPU work became longer on the target, in all
  std::vector<std::string> inferred;  // what was inferred and left out; a sentence each
};

// Errors say what the recording lacks.
base::Result<Program> program_of(const Recording& recording, const std::string& name, const Reading& reading);

}  // namespace tessera::simulator::traces
