// The kept part of a rewritten image, and its bytes. Pure; decode() takes any bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/slice/slice.h"

namespace tessera::cache {

struct Kernel {
  std::string name;
  slice::Refusal refusal = {};                                // kNone: it has a variant
  uint32_t n_params = 0, param_bytes = 0, origin_offset = 0;  // as slice::KernelReport
  bool ascending_row = false;                                 // there: look_back is not empty
  double slots = 0, bytes = 0;                                // as track::ThreadCost

  bool operator==(const Kernel&) const = default;
};

struct Rewritten {
  std::vector<Kernel> kernels;
  std::string text;  // PTX with variants; "" if no kernel may be cut

  bool operator==(const Rewritten&) const = default;
};

std::string encode(const Rewritten& rewritten);
base::Result<Rewritten> decode(std::string_view bytes);

}  // namespace tessera::cache
