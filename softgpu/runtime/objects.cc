// Life of streams, events and user objects; capture mode of the thread; the driver's log.

#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return with_context([&] { return driver().StreamCreate(stream, CU_STREAM_DEFAULT); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return with_context([&] { return driver().StreamCreate(stream, flags); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return with_context([&] { return driver().StreamCreateWithPriority(stream, flags, priority); });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return with_context([&] { return driver().StreamDestroy(stream); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return with_context([&] { return driver().EventCreate(event, CU_EVENT_DEFAULT); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return with_context([&] { return driver().EventCreate(event, flags); });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return with_context([&] { return driver().EventDestroy(event); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return with_context([&] { return driver().EventQuery(event); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return with_context([&] { return driver().EventSynchronize(event); });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return with_context([&] { return driver().EventElapsedTime(ms, start, end); });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return with_driver(
      [&] { return driver().ThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)); });
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy,
                                 unsigned references, unsigned flags) {
  return with_driver([&] { return driver().UserObjectCreate(object, pointer, destroy, references, flags); });
}
cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  return with_driver([&] { return driver().UserObjectRetain(object, count); });
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  return with_driver([&] { return driver().UserObjectRelease(object, count); });
}

cudaError_t cudaLogsCurrent(cudaLogIterator* iterator, unsigned flags) {
  return with_driver([&] { return driver().LogsCurrent(iterator, flags); });
}
cudaError_t cudaLogsDumpToFile(cudaLogIterator* iterator, const char* path, unsigned flags) {
  return with_driver([&] { return driver().LogsDumpToFile(iterator, path, flags); });
}
cudaError_t cudaLogsDumpToMemory(cudaLogIterator* iterator, char* buffer, size_t* size, unsigned flags) {
  return with_driver([&] { return driver().LogsDumpToMemory(iterator, buffer, size, flags); });
}
cudaError_t cudaLogsRegisterCallback(cudaLogsCallback_t callback, void* data,
                                     cudaLogsCallbackHandle* handle) {
  return with_driver([&] {
    return driver().LogsRegisterCallback(reinterpret_cast<CUlogsCallback>(callback), data,
                                         reinterpret_cast<CUlogsCallbackHandle*>(handle));
  });
}
cudaError_t cudaLogsUnregisterCallback(cudaLogsCallbackHandle handle) {
  return with_driver(
      [&] { return driver().LogsUnregisterCallback(reinterpret_cast<CUlogsCallbackHandle>(handle)); });
}

}  // extern "C"
