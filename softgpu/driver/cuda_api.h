// The driver's public types with every exported symbol under its own name: no `_v2` macros, so that one file
// may define cuMemAlloc (2.0) and cuMemAlloc_v2 side by side. Included first by every file of this folder.
#pragma once

// Declarations with default visibility: what is defined from them is exported, everything else stays hidden.
#pragma GCC visibility push(default)
#include "driver_api/cuda.h"

#include <cudaProfiler.h>
#pragma GCC visibility pop

// The meaning of a NULL stream: the legacy stream for plain symbols, the per-thread one for _ptsz/_ptds twins.
namespace tessera::softgpu::driver {
enum class NullStream : unsigned char { kLegacy, kPerThread };
}

#define TS_UNWRAP(...) __VA_ARGS__

// Defines `name` and its per-thread twin from one body, which sees the parameters and `null_stream`.
#define TS_PAIR(name, suffix, params, args)                                                          \
  static CUresult name##_body(::tessera::softgpu::driver::NullStream null_stream, TS_UNWRAP params); \
  CUresult name params {                                                                             \
    return name##_body(::tessera::softgpu::driver::NullStream::kLegacy, TS_UNWRAP args);             \
  }                                                                                                  \
  CUresult name##suffix params {                                                                     \
    return name##_body(::tessera::softgpu::driver::NullStream::kPerThread, TS_UNWRAP args);          \
  }                                                                                                  \
  static CUresult name##_body([[maybe_unused]] ::tessera::softgpu::driver::NullStream null_stream,   \
                              TS_UNWRAP params)
