// Any bytes: entries or an error, within the bounds of the input.
#include "kernels/image/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto entries = tessera::image::read({data, size});
  if (entries.ok()) {
    for (unsigned sm : {75u, 90u, 120u}) {
      (void)tessera::image::choose(*entries, sm);
    }
  }
  return 0;
}
