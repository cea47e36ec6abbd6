// Any bytes as machine code: metadata or an error, within the bounds of the input; lists that name each thing
// once and in order.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "kernels/image/cubin.h"
#include "kernels/image/origin.h"

namespace {

void check(bool fine) {
  if (!fine) abort();
}

void look(std::span<const uint8_t> code) {
  (void)tessera::image::compiled_from(code);
  auto kernels = tessera::image::cubin_kernels(code);
  if (!kernels.ok()) return;
  for (const auto& k : *kernels) {
    check(std::is_sorted(k.parameters.begin(), k.parameters.end(),
                         [](const auto& a, const auto& b) { return a.index < b.index; }));
    const std::set<uint8_t> once(k.unknown_attributes.begin(), k.unknown_attributes.end());
    check(once.size() == k.unknown_attributes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto entries = tessera::image::read({data, size});
  if (entries.ok())
    for (const auto& e : *entries) look(e.payload);
  look({data, size});  // past the checks of lengths that read() makes
  return 0;
}
