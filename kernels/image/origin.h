// Tells the virtual architecture that machine code was compiled for: the PTX target that it came from. An image's PTX
// is the source of its machine code only if both say the same (code under __CUDA_ARCH__ differs otherwise). Any thread.
#pragma once

#include <string>

#include "kernels/image/image.h"

namespace tessera::image {

// 80 for code made from compute_80; 0 = not known, or not machine code. Says nothing of 'a' and 'f' targets:
// the entry's own flags do.
unsigned compiled_from(std::span<const uint8_t> code);

// The PTX of the image that `cubin`, one of its entries with the payload `code`, was compiled from; nullptr
// if none surely is.
const Entry* source_of(const std::vector<Entry>& entries, const Entry& cubin, std::span<const uint8_t> code);

// The compiler that made it, as toolkits from 13 on say.
struct Toolchain {
  std::string release;  // "Cuda compilation tools, release 13.0, V13.0.88"; "" = not said
  std::string options;  // "-arch sm_90 -m 64"
};
Toolchain toolchain_of(std::span<const uint8_t> code);

}  // namespace tessera::image
