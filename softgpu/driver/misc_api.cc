// Entry points without a better place: the profiler, export tables, sharing between processes, and logs.
#include "softgpu/driver/state.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
  TS_ENTER(cuProfilerInitialize);
  return CUDA_ERROR_PROFILER_DISABLED;
}
CUresult cuProfilerStart() {
  TS_CONTEXT(cuProfilerStart, context);
  return CUDA_SUCCESS;
}
CUresult cuProfilerStop() {
  TS_CONTEXT(cuProfilerStop, context);
  return CUDA_SUCCESS;
}

// Private tables of the vendor's runtime and tools; there are none here (the runtime beside this driver needs
// none).
CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (!ppExportTable || !pExportTableId) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  TS_CONTEXT(cuFlushGPUDirectRDMAWrites, context);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  TS_ENTER(cuDeviceGraphMemTrim);
  return find_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
