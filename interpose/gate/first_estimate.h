// First estimates of shapes that were never measured: time of launches below library calls over the roofline of their call
// (operations/first_estimate.h). Ratios are kept by kernel, and by the call's computation for kernels not seen yet, for the
// life of the process. Launches of best-effort clients read, harvesters of samples write; no lock, no allocation.
#pragma once

#include "operations/first_estimate.h"
#include "operations/note.h"

namespace tessera::gate {

// The time that a launch's time is compared with, and the key under which the ratio is kept.
struct Basis {
  double ns = 0;           // by the roofline, of as much of the GPU as it can fill; 0: not known
  double at_least_ns = 0;  // of the whole GPU
  uint64_t kernel = 0;     // 0: not known
  uint64_t kind =
      0;  // what the call computes; 0: not its first launch. Later ones are helpers more often than not
};

// `blocks` of a kernel's `of_blocks`, launched in the call `note`.
Basis basis_of(const operations::Note& note, uint64_t kernel, uint64_t blocks, uint64_t of_blocks,
               bool first_of_call);

// 0: no better is known than what stands for any kernel.
uint64_t first_estimate(const Basis& basis);

// A launch of a shape that had not been measured took that time.
void learn_ratio(const Basis& basis, uint64_t measured_ns);

}  // namespace tessera::gate
