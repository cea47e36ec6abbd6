// Which virtual architecture machine code was compiled for: the PTX target that it came from. An image's PTX
// is the source of its machine code only if both say the same (code under __CUDA_ARCH__ differs otherwise).
// Any thread.
#pragma once

#include "kernels/image/image.h"

namespace tessera::image {

// 80 for code made from compute_80; 0 = not known, or not machine code. Says nothing of 'a' and 'f' targets:
// the entry's own flags do.
unsigned compiled_from(std::span<const uint8_t> code);

// The PTX of the image that `cubin`, one of its entries with the payload `code`, was compiled from; nullptr
// if none surely is.
const Entry* source_of(const std::vector<Entry>& entries, const Entry& cubin, std::span<const uint8_t> code);

}  // namespace tessera::image
