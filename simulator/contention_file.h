// The answer to lab question H16 (tests/device/h16_contention) as tables of contention. Text in, tables out: pure, any
// thread. Reads what anybody may have written: bounded, and every mistake is named.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "simulator/gpu.h"

namespace tessera::simulator {

// Puts the coefficients that the text has into `gpu`; the others stay. All or nothing. `name`: of the file, for messages.
base::Status read_contention_answer(std::string_view text, const std::string& name, GpuSpec* gpu);
base::Status load_contention_answer(const std::string& path, GpuSpec* gpu);

}  // namespace tessera::simulator
