// Is a loop a binary search? It ends after as many passes as its bounds have bits, whatever it reads. Used by
// the rules on waiting. Private to kernels/slice; views into the Flow.
//
// The form is that of compiled searches: a middle of two registers, of which each pass moves one to it,
//   mid = low + (high - low) / 2   or   (low + high) / 2;
//   low = p ? low : mid + a;   high = p ? mid - b : high
// with literals a >= 1 and b >= 0, and no pass but while high > low (or high >= low, if b >= 1). Taken for
// granted is that sum and difference of the bounds do not overflow.
#pragma once

#include "kernels/slice/flow.h"
#include "kernels/slice/loop_pass.h"

namespace tessera::slice {

bool is_bisection(const Flow& flow, const Loop& loop, const LoopPass& pass);

}  // namespace tessera::slice
