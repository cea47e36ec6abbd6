// Tells how many bytes behind a pointer without length may be read. The kernel is asked page by page. Since Linux
// 5.14 it can be asked to bring a page in (MADV_POPULATE_READ). Older kernels, and those that refuse it for a page
// (no rights, [vvar]), are asked by rt_sigprocmask: it reads eight bytes before it finds its other argument wrong,
// and answers EFAULT if they cannot be read (kernel/signal.c copies the set first). valgrind takes that for a
// mistake. Neither costs a descriptor or parsing of /proc/self/maps (thousands of lines in a framework process that
// loads thousands of modules). mincore(2) would call pages readable that are only mapped, such as [vvar].
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

bool readable(uint64_t address, uint64_t page_bytes) {
  constexpr int kNoSuchAction = ~0;
  if (madvise(reinterpret_cast<void*>(address), page_bytes, MADV_POPULATE_READ) == 0) return true;
  if (errno == ENOMEM || errno == EFAULT) return false;
  return syscall(SYS_rt_sigprocmask, kNoSuchAction, address, nullptr, sizeof(uint64_t)) == 0 ||
         errno != EFAULT;
}

}  // namespace

bool ReadableBytes::covers(uint64_t offset, uint64_t length) const {
  if (!inside(offset, length, limit)) return false;
  if (!probe || length == 0) return true;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uint64_t>(begin);
  uint64_t first = 0, last = 0;
  if (__builtin_add_overflow(address, offset, &first) || __builtin_add_overflow(first, length, &last))
    return false;
  const int errno_before = errno;
  bool all = true;
  for (first &= ~(page - 1); all && first < last; first += page) all = readable(first, page);
  errno = errno_before;
  return all;
}

}  // namespace tessera::image
