// Which threads of a launch have the same value in a register, and which branches part them: an analysis of
// one kernel over its Flow, for whoever must know what a warp or a block does together. No verdict depends on
// it today. Private to kernels/slice; pure; any thread.
//
// What is said holds among threads that come to an instruction, each in the same pass of every loop around
// it; what is not known is kThread. Memory that a kernel may write is not followed: of loads only ld.param
// and ld.const are known. Control dependence as in Ferrante, Ottenstein, Warren: The Program Dependence Graph
// and Its Use in Optimization (1987).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/slice/flow.h"

namespace tessera::slice {

enum class Same : uint8_t { kGrid, kBlock, kWarp, kThread };  // who shares a value, widest first

struct Uniformity {
  std::vector<Same> objects;   // by Object: whatever is written to it, wherever it is read
  std::vector<Same> branches;  // by block: of what chooses the way at its end; kGrid if there is but one
  std::vector<Same> control;   // by block: of all branches that decide whether, and how often, it is entered
  bool gave_up = false;        // not a kernel, endless loops, unknown targets, or too large: all is kThread
};

Uniformity uniformity(const Flow& flow);

}  // namespace tessera::slice
