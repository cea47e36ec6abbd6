// The memory that a program has given a handle of cuBLAS to work in: the library may choose kernels by its size, and does not
// tell it. Followed by the hooks (cublas_followed.def) while calls are split. Any thread; no lock, no allocation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::library {

// The library's own, of a new handle and whenever its stream is set.
void workspace_is_default(const void* handle);
void workspace_is(const void* handle, const void* workspace, size_t bytes);

// For ClassKey; 0: not known. A handle that was never followed has the library's own.
uint64_t workspace_of(const void* handle);

}  // namespace tessera::library
