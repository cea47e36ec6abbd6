// Sealed memory files: what the daemon creates and what a receiver insists on before it maps. Slow path, any
// thread.
#pragma once

#include <fcntl.h>

#include <cstddef>

#include "base/result.h"
#include "base/scoped_fd.h"

#ifndef F_SEAL_FUTURE_WRITE  // glibc < 2.31 headers
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tessera::ipc {

// A client's region: its size is fixed for ever, both sides write.
inline constexpr int kRegionSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// A pulse page while its owner maps it, and once the owner has acknowledged: nobody can map it writable any
// more, not even by reopening /proc/self/fd of a received descriptor.
inline constexpr int kPulseOwnerSeals = F_SEAL_SHRINK | F_SEAL_GROW;
inline constexpr int kPulseSharedSeals = kPulseOwnerSeals | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
// A learnt table: filled before it is sent, constant afterwards.
inline constexpr int kLearntSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

// An anonymous file of `bytes` zeros, close-on-exec, descriptor >= 3, with these seals.
base::Result<base::ScopedFd> create_memfd(const char* name, size_t bytes, int seals);
base::Status add_seals(int fd, int seals);
// The receiver's check, seals first (a file that can still shrink has no size worth reading), then the size.
base::Status check_memfd(int fd, int seals, size_t bytes);

// Moves the descriptor out of 0..2, which belong to the host program's standard streams.
base::ScopedFd above_standard_streams(base::ScopedFd fd);

}  // namespace tessera::ipc
