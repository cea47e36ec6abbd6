// A little of everything that a program does with the driver, through functions that a loader hands it.
#pragma once

#include <cuda.h>

#include "tests/conformance/programs/print.h"

struct Work {
  CUcontext context;
  CUstream stream;
  CUfunction function;
};

inline Work open_work() {
  Work w{};
  CUdevice device = -1;
  char name[64] = "";
  int count = -1, version = -1;
  size_t bytes = 0;
  SAY(cuInit(0));
  SAY(cuDriverGetVersion(&version));
  SAY(cuDeviceGetCount(&count));
  SAY(cuDeviceGet(&device, 0));
  SAY(cuDeviceGetName(name, sizeof name, device));
  SAY(cuDeviceTotalMem(&bytes, device));
  std::printf("version %d, %d device(s), '%s', %zu bytes\n", version, count, name, bytes);
  SAY(cuDevicePrimaryCtxRetain(&w.context, device));
  SAY(cuCtxSetCurrent(w.context));
  SAY(cuStreamCreate(&w.stream, CU_STREAM_NON_BLOCKING));
  CUmodule module = nullptr;
  SAY(cuModuleLoadData(&module, "image"));
  SAY(cuModuleGetFunction(&w.function, module, "kernel"));
  const char* kernel = "";
  SAY(cuFuncGetName(&kernel, w.function));
  std::printf("kernel '%s'\n", kernel);
  return w;
}

inline void do_work(const Work& w) {
  CUdeviceptr memory = 0;
  char host[64] = {};
  CUevent event = nullptr;
  SAY(cuMemAlloc(&memory, 4096));
  SAY(cuMemcpyHtoD(memory, host, sizeof host));
  SAY(cuMemcpyHtoDAsync(memory, host, sizeof host, w.stream));
  SAY(cuMemsetD8Async(memory, 0, 64, w.stream));
  SAY(cuLaunchKernel(w.function, 4, 3, 2, 32, 1, 1, 0, w.stream, nullptr, nullptr));
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = w.stream;
  SAY(cuLaunchKernelEx(&config, w.function, nullptr, nullptr));
  SAY(cuLaunchCooperativeKernel(w.function, 1, 1, 1, 32, 1, 1, 0, w.stream, nullptr));
  SAY(cuEventCreate(&event, 0));
  SAY(cuEventRecord(event, w.stream));
  SAY(cuStreamWaitEvent(w.stream, event, 0));
  SAY(cuEventSynchronize(event));
  SAY(cuEventQuery(event));
  SAY(cuEventDestroy(event));
  SAY(cuStreamQuery(w.stream));

  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  SAY(cuStreamBeginCapture(w.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  SAY(cuLaunchKernel(w.function, 1, 1, 1, 32, 1, 1, 0, w.stream, nullptr, nullptr));
  SAY(cuStreamIsCapturing(w.stream, &status));
  std::printf("capturing %d\n", int(status));
  SAY(cuStreamEndCapture(w.stream, &graph));
  SAY(cuGraphInstantiateWithFlags(&exec, graph, 0));
  SAY(cuGraphLaunch(exec, w.stream));
  SAY(cuStreamSynchronize(w.stream));
  SAY(cuGraphExecDestroy(exec));
  SAY(cuGraphDestroy(graph));

  SAY(cuMemcpyDtoH(host, memory, sizeof host));
  SAY(cuMemFree(memory));
  SAY(cuCtxSynchronize());
  SAY(cuStreamEndCapture(w.stream, &graph));  // an error code must arrive unchanged
  SAY(cuEventQuery(nullptr));
}
