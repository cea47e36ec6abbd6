// The toolkit's cuda.h with every ABI declared and no renaming macros: `cuMemAlloc` is the 2.x entry point
// here and `cuMemAlloc_v2` the current one, exactly as the driver exports them. Include this instead of
// <cuda.h> in every file that expands driver_api/*.def; a file that included <cuda.h> before would see the
// rows rewritten, so that is an error.
#pragma once

#if defined(__cuda_cuda_h__) && !defined(__CUDA_API_VERSION_INTERNAL)
#error "include driver_api/cuda.h before <cuda.h>: the toolkit's renaming macros would rewrite the tables"
#endif
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>
#include <cudaProfiler.h>

#include "driver_api/newer_types.h"

// GL, EGL and VDPAU entry points: their headers need graphics headers that a build machine may lack, so the
// rows use ABI-equal C types (gen_driver_entries.py). Two types of cudaEGL.h have no such equal and are
// declared here; the frame is passed by value, only its size and class (memory) matter.
struct CUeglFrame_st {
  unsigned long long
      words[8];  // 64 bytes on x86-64; tests/unit/driver_api compares with cudaEGL.h where it compiles
};
typedef struct CUeglStreamConnection_st* CUeglStreamConnection;
