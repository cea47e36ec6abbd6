// Any bytes as instructions: an answer within the bounds of the input, and the same one each time. First byte: the
// target, second: where the origin of the slice is said to be.
#include <cstdlib>
#include <cstring>

#include "kernels/sass/instruction.h"
#include "kernels/sass/proof.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr unsigned kTargets[] = {80, 90, 100, 120};
  constexpr size_t kMostBytes = 64 << 10;
  if (size < 2 || size > kMostBytes) return 0;
  tessera::image::KernelCode original;
  original.sm = kTargets[data[0] % 4];
  original.param_base = original.sm >= 100 ? 0x380 : original.sm >= 90 ? 0x210 : 0x160;
  original.param_bytes = data[1] & 0xfcu;
  original.code.assign(data + 2, data + size);
  original.banks.push_back({2, {1, 2, 3, 4, 5, 6, 7, 8}, {}});
  for (size_t at = 0; at + 16 <= original.code.size(); at += 16) {
    uint64_t words[2];
    memcpy(words, original.code.data() + at, sizeof words);
    if (const auto i = tessera::sass::decode(words[0], words[1], original.sm)) (void)text_of(*i);
  }
  tessera::image::KernelCode variant = original;
  variant.param_bytes += 24;
  const tessera::sass::VariantParameters where{original.param_bytes, 0, {}};
  const auto first = prove(original, variant, where), again = prove(original, variant, where);
  if (first.proved != again.proved || first.difference != again.difference) abort();
  return 0;
}
