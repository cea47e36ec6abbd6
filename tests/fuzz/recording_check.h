// Checks a recording that any reader made of any bytes: it becomes a program that a simulation could run, or is refused
// by name.
#pragma once

#include "simulator/traces/program.h"
#include "tests/fuzz/check.h"

namespace tessera::fuzz {

inline void check_recording(const base::Result<simulator::traces::Recording>& recording) {
  namespace traces = simulator::traces;
  if (!recording.ok()) {
    CHECK(!recording.error().text.empty());
    return;
  }
  for (const traces::Event& e : recording->events) CHECK(e.name < recording->names.size());
  for (const traces::Use use : {traces::Use::kRequest, traces::Use::kLoop}) {
    const traces::Device* h100 = traces::device_of_key("h100");
    const auto program =
        traces::program_of(*recording, "fuzzed", {.target = h100, .source = h100, .use = use});
    if (!program.ok()) {
      CHECK(!program.error().text.empty());
      continue;
    }
    CHECK(!program->workload.steps.empty() && program->workload.cv >= 0 && !program->inferred.empty());
    for (const simulator::Step& step : program->workload.steps) {
      CHECK(!step.segments.empty());
      for (const simulator::Segment& segment : step.segments)
        CHECK(segment.kernel.n_blocks > 0 && segment.kernel.block_ns > 0 && segment.kernel.sms_per_block > 0);
    }
  }
}

}  // namespace tessera::fuzz
