// Everything that takes a stream, other than copies: waiting, events, capture, callbacks, stream-ordered
// memory, graph launches. Compiled once per default-stream flavour, see copy.cc.

#include <iterator>

#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

extern "C" {

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return with_context([&] { return driver().StreamSynchronize(stream); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return with_context([&] { return driver().StreamQuery(stream); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return with_context([&] { return driver().StreamWaitEvent(stream, event, flags); });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return with_context([&] { return driver().StreamGetFlags(stream, flags); });
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return with_context([&] { return driver().StreamGetId(stream, id); });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return with_context([&] { return driver().StreamGetPriority(stream, priority); });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return with_context([&] { return driver().StreamGetDevice(stream, device); });
}

cudaError_t cudaStreamCopyAttributes(cudaStream_t dst, cudaStream_t src) {
  return with_context([&] { return driver().StreamCopyAttributes(dst, src); });
}

static_assert(sizeof(cudaLaunchAttributeValue) == sizeof(CUlaunchAttributeValue));

cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaLaunchAttributeID attr,
                                   cudaLaunchAttributeValue* value) {
  return with_context([&] {
    return driver().StreamGetAttribute(stream, static_cast<CUstreamAttrID>(attr),
                                       reinterpret_cast<CUstreamAttrValue*>(value));
  });
}

cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID attr,
                                   const cudaLaunchAttributeValue* value) {
  return with_context([&] {
    return driver().StreamSetAttribute(stream, static_cast<CUstreamAttrID>(attr),
                                       reinterpret_cast<const CUstreamAttrValue*>(value));
  });
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer, size_t length, unsigned flags) {
  return with_context(
      [&] { return driver().StreamAttachMemAsync(stream, device_pointer(pointer), length, flags); });
}

// CUresult and cudaError_t share width and numbers, so the callback can be called with either.
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
  static_assert(sizeof(CUresult) == sizeof(cudaError_t));
  return with_context([&] {
    return driver().StreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(callback), data, flags);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return with_context([&] { return driver().LaunchHostFunc(stream, function, data); });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return with_context([&] { return driver().EventRecord(event, stream); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return with_context([&] { return driver().EventRecordWithFlags(event, stream, flags); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return with_context(
      [&] { return driver().StreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)); });
}

static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies, const cudaGraphEdgeData* edges,
                                          size_t count, cudaStreamCaptureMode mode) {
  return with_context([&] {
    return driver().StreamBeginCaptureToGraph(stream, graph, dependencies,
                                              reinterpret_cast<const CUgraphEdgeData*>(edges), count,
                                              static_cast<CUstreamCaptureMode>(mode));
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return with_context([&] { return driver().StreamEndCapture(stream, graph); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return with_context(
      [&] { return driver().StreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)); });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  return with_context([&] {
    return driver().StreamGetCaptureInfo(stream, reinterpret_cast<CUstreamCaptureStatus*>(status),
                                         reinterpret_cast<cuuint64_t*>(id), graph, dependencies,
                                         reinterpret_cast<const CUgraphEdgeData**>(edges), count);
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData* edges, size_t count,
                                                unsigned flags) {
  return with_context([&] {
    return driver().StreamUpdateCaptureDependencies(
        stream, dependencies, reinterpret_cast<const CUgraphEdgeData*>(edges), count, flags);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return with_context([&] { return driver().GraphLaunch(exec, stream); });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return with_context([&] { return driver().GraphUpload(exec, stream); });
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams* params) {
  static_assert(sizeof(cudaGraphInstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS));
  return with_context([&] {
    return driver().GraphInstantiateWithParams(exec, graph,
                                               reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(params));
  });
}

cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    CUdeviceptr address = 0;
    if (!pointer) return cudaErrorInvalidValue;
    if (size != 0) {
      if (const CUresult result = driver().MemAllocAsync(&address, size, stream)) return as_error(result);
    }
    *pointer = reinterpret_cast<void*>(address);
    return cudaSuccess;
  });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    CUdeviceptr address = 0;
    if (!pointer) return cudaErrorInvalidValue;
    if (const CUresult result = driver().MemAllocFromPoolAsync(&address, size, pool, stream))
      return as_error(result);
    *pointer = reinterpret_cast<void*>(address);
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    return pointer ? as_error(driver().MemFreeAsync(device_pointer(pointer), stream)) : cudaSuccess;
  });
}

cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t count, cudaMemLocation location, unsigned flags,
                                 cudaStream_t stream) {
  const CUmemLocation where{static_cast<CUmemLocationType>(location.type), location.id};
  return with_context(
      [&] { return driver().MemPrefetchAsync(device_pointer(pointer), count, where, flags, stream); });
}

// The flags word's own default means "as this program was compiled", which is what this flavour stands for.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  return with_driver([&]() -> cudaError_t {
    if (!symbol || !function) return cudaErrorInvalidValue;
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    if (flags == cudaEnableDefault) flags = cudaEnablePerThreadDefaultStream;
#endif
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *function = nullptr;
    const CUresult result = driver().GetProcAddress(symbol, function, int(version), flags, &found);
    if (status) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
    // An unknown name is an answer, not an error, as long as the caller can see it.
    return result == CUDA_ERROR_NOT_FOUND ? cudaSuccess : as_error(result);
  });
}

// Deprecated in favour of the above, and a macro in the header may carry the attribute; programs still import
// it.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

}  // extern "C"
