// Types of CUDA releases that are newer than the toolkit at hand, for the rows of entries.def that came with them: the same
// name, and the same way into a register. Only what Tessera reads has its members. Who adds a release adds its types
// (scripts/gen_driver_entries.py --add lists them). Included by driver_api/cuda.h, behind <cuda.h>.
#pragma once

#include <cstddef>

#include "driver_api/cuda.h"

#if CUDA_VERSION < 13010
struct CU_DEV_SM_RESOURCE_GROUP_PARAMS;
#endif
#if CUDA_VERSION < 13020
using CUcoredumpCallbackHandle = struct CUcoredumpCallbackEntry_st*;
using CUcoredumpStatusCallback = void (*)(void*, int, CUdevice);
struct CUstreamCigCaptureParams;
#endif
#if CUDA_VERSION < 13030
using CUlogicalEndpointId = cuuint32_t;
struct CUlogicalEndpointProp;
enum CUlogicalEndpointIpcHandleType : unsigned {};
using CUgraphRecaptureCallback = void (*)();
#endif
#if CUDA_VERSION < 13040
using CUcheckpointOperationHandle = struct CUIcheckpointOperation_st*;
struct CUcliqueInfo;
#endif
#if CUDA_VERSION < 13050
struct CUDA_FABRIC_COPY_BATCH_OP {
  unsigned long long src[3], dst[3];  // kind, address or endpoint, place
  size_t size;                        // bytes
  unsigned flags;
};
enum CUtensorMapAllocClass : unsigned {};
#endif

static_assert(sizeof(CUDA_FABRIC_COPY_BATCH_OP) == 64 && offsetof(CUDA_FABRIC_COPY_BATCH_OP, size) == 48);
