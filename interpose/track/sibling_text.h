// The image of a sibling module: the cut variant of one kernel and what it calls, nothing else of the image.
// Pure but for the log; any thread (the sibling thread calls it); allocates, never throws.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/track/reasons.h"
#include "interpose/track/sibling.h"
#include "kernels/slice/globals.h"

namespace tessera::track {

struct SiblingText {
  std::string image;  // what the driver gets: PTX with the source's options, or a fat binary; "" = refused
  std::string variant_name;                    // entry in it
  Reason refusal = RunTimeReason::kNotParsed;  // why `image` is empty
  uint32_t n_params = 0, origin_offset = 0;
  bool ascending_row = false;                  // slice::KernelReport::look_back is not empty
  uint32_t globals_offset = 0;                 // of the addresses behind the origin
  std::vector<slice::PassedVariable> globals;  // whose addresses in the original's module these are
};

// `relaxed`: also kernels whose results may change in their last bits when they are compiled again (D13);
// `any_order`: also those whose results may depend on the order of blocks. A kernel that the source has proved is not
// compiled again: its image is that machine code, with the PTX beside it.
SiblingText sibling_text(const SiblingSource& source, const char* kernel, bool relaxed,
                         bool any_order) noexcept;

}  // namespace tessera::track
