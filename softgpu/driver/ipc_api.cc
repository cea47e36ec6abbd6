// Entry points of sharing between processes (the cuIpc family).
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  TS_CONTEXT(cuIpcGetMemHandle, context);
  if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
  Allocation found;
  MemoryTicket ticket;
  // Stream-ordered memory has exports of its own (cuMemPoolExportPointer).
  if (!Memory::get().find(dptr, &found) || !found.context || found.pool || found.graph_owned)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = make_ticket(*found.context, found.begin, 0, &ticket)) return bad;
  *pHandle = {};
  std::memcpy(pHandle->reserved, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  TS_CONTEXT(cuIpcOpenMemHandle_v2, context);
  if (!pdptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  MemoryTicket ticket;
  std::memcpy(&ticket, handle.reserved, sizeof ticket);
  uint64_t address = 0;
  if (CUresult bad = open_ticket(context, ticket, nullptr, &address)) return bad;
  *pdptr = address;
  return CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  TS_CONTEXT(cuIpcCloseMemHandle, context);
  Allocation found;
  if (!Memory::get().find(dptr, &found) || found.begin != dptr || found.kind != MemoryKind::kImported ||
      found.pool)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  (void)synchronize(*context);
  return close_ticket(dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
  TS_CONTEXT(cuIpcGetEventHandle, context);
  if (!pHandle) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Event> mine = driver().events.find(event);
  if (!mine || !mine->shared) return CUDA_ERROR_INVALID_HANDLE;
  mine->shared->describe(pHandle);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
  TS_CONTEXT(cuIpcOpenEventHandle, context);
  if (!phEvent) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<SharedEvent> shared = SharedEvent::open(handle);
  if (!shared) return CUDA_ERROR_INVALID_HANDLE;
  auto event = std::make_shared<Event>();
  event->context = context.get();
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->shared = std::move(shared);
  driver().events.add(event);
  *phEvent = reinterpret_cast<CUevent>(event.get());
  return CUDA_SUCCESS;
}
