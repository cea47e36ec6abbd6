#include "ipc/channel/memfd.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3; systems with vm.memfd_noexec=2 refuse files without it
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace tessera::ipc {

using base::Code;

base::ScopedFd above_standard_streams(base::ScopedFd fd) {
  if (!fd.valid() || fd.get() >= 3) return fd;
  return base::ScopedFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
}

base::Result<base::ScopedFd> create_memfd(const char* name, size_t bytes, int seals) {
  int raw = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (raw < 0 && errno == EINVAL) raw = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);  // before 6.3
  base::ScopedFd fd = above_standard_streams(base::ScopedFd(raw));
  if (!fd.valid())
    return base::error(errno == EMFILE || errno == ENFILE ? Code::kExhausted : Code::kUnavailable,
                       std::string("memfd_create: ") + std::strerror(errno));
  if (::ftruncate(fd.get(), off_t(bytes)) != 0)
    return base::error(Code::kExhausted, std::string("cannot size shared memory: ") + std::strerror(errno));
  base::Status sealed = add_seals(fd.get(), seals);
  if (!sealed.ok()) return sealed.error();
  return fd;
}

base::Status add_seals(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0)
    return base::error(Code::kInternal, std::string("cannot seal shared memory: ") + std::strerror(errno));
  return base::ok();
}

base::Status check_memfd(int fd, int seals, size_t bytes) {
  int have = ::fcntl(fd, F_GET_SEALS);
  if (have < 0 || (have & seals) != seals)
    return base::error(Code::kInvalid, "received memory that is not sealed as agreed");
  struct stat st;
  if (::fstat(fd, &st) != 0 || st.st_size < 0 || size_t(st.st_size) != bytes)
    return base::error(Code::kInvalid, "received memory of an unexpected size");
  return base::ok();
}

}  // namespace tessera::ipc
