// Which of the bytes behind a pointer without length may be read. mincore(2) fails with ENOMEM for pages that
// are not mapped and costs no descriptor and no parsing of /proc/self/maps (thousands of lines in a framework
// process that loads thousands of modules). A mapped page without read permission is not told apart: the
// driver itself would fault on such an image as well.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/image/internal.h"

namespace tessera::image {

bool Reach::covers(uint64_t offset, uint64_t length) const {
  if (!inside(offset, length, limit)) {
    return false;
  }
  if (!probe || length == 0) {
    return true;
  }
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uint64_t>(begin);
  uint64_t first = 0, last = 0;
  if (__builtin_add_overflow(address, offset, &first) || __builtin_add_overflow(first, length, &last)) {
    return false;
  }
  first &= ~(page - 1);
  unsigned char states[256];
  while (first < last) {
    uint64_t step = std::min<uint64_t>(last - first, sizeof states * page);
    if (mincore(reinterpret_cast<void*>(first), step, states) != 0) {
      return false;
    }
    first += (step + page - 1) & ~(page - 1);
  }
  return true;
}

}  // namespace tessera::image
