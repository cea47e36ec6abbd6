// NVML's answers on a GPU's memory for a program under a limit: those of cuMemGetInfo, and what it says of the program itself is no
// more than it says is used. The audit library hands these functions
// out in place of NVML's own (interpose/audit/contract.h). Any thread of the program, also before its first call of the driver.
#include <unistd.h>

#include <algorithm>

#include "base/exports.h"
#include "interpose/audit/contract.h"
#include "interpose/memory/memory.h"

namespace {

using namespace tessera;

// As documented in the NVML API Reference Guide.
constexpr int kSuccess = 0, kFunctionNotFound = 13;
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct MemoryInfo2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

// NVML's own, by its tables: a lookup would lead back here.
template <class F>
F* own(const char* name) {
  const link_map* library = std::atomic_ref(tessera_audit_driver.management)
                                .load(std::memory_order_acquire);  // pairs with the audit library
  return library ? reinterpret_cast<F*>(base::Exports(library).find(name, nullptr)) : nullptr;
}

bool limit_of(void* device, memory::Limit* out) {
  char gpu[96] = {};
  const auto uuid = own<int(void*, char*, unsigned)>("nvmlDeviceGetUUID");
  return uuid && uuid(device, gpu, sizeof gpu) == kSuccess && memory::limit_of_gpu(gpu, out);
}

template <class Info>
int answer(const char* name, void* device, void* out, Info* info) {
  const auto call = own<int(void*, void*)>(name);
  if (!call) return kFunctionNotFound;
  const int result = call(device, out);
  memory::Limit limit;
  if (result != kSuccess || !info || !limit_of(device, &limit)) return result;
  info->total = std::min<unsigned long long>(info->total, limit.bytes);
  info->free = std::min<unsigned long long>({info->free, limit.free_bytes, info->total});
  info->used = info->total - info->free;
  if constexpr (requires { info->reserved; }) info->reserved = 0;  // total = free + used
  return result;
}

struct Process {
  unsigned pid;
  unsigned long long used;
};
struct Process2 {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kNotAvailable = ~0ull;

// NVML counts contexts and code of the program, too, which no limit counts. Other processes' figures are left alone: a limit says
// nothing of what they have.
template <class P>
int answer_processes(const char* name, void* device, unsigned* count, P* out) {
  const auto call = own<int(void*, unsigned*, void*)>(name);
  if (!call) return kFunctionNotFound;
  const int result = call(device, count, out);
  MemoryInfo info{};
  memory::Limit limit;
  if (result != kSuccess || !out || !count || !limit_of(device, &limit) ||
      answer("nvmlDeviceGetMemoryInfo", device, &info, &info) != kSuccess)
    return result;
  for (P* process = out; process < out + *count; ++process)
    if (process->pid == unsigned(getpid()) && process->used != kNotAvailable)
      process->used = std::min(process->used, info.used);
  return result;
}

}  // namespace

#define TS_NVML(name, parameters) \
  extern "C" __attribute__((visibility("hidden"))) int tessera_##name parameters noexcept
TS_NVML(nvmlDeviceGetMemoryInfo, (void* device, void* out)) {
  return answer("nvmlDeviceGetMemoryInfo", device, out, static_cast<MemoryInfo*>(out));
}
TS_NVML(nvmlDeviceGetMemoryInfo_v2, (void* device, void* out)) {
  return answer("nvmlDeviceGetMemoryInfo_v2", device, out, static_cast<MemoryInfo2*>(out));
}
#define TS_PROCESSES(name, type)                                            \
  TS_NVML(name, (void* device, unsigned* count, void* out)) {               \
    return answer_processes(#name, device, count, static_cast<type*>(out)); \
  }
TS_PROCESSES(nvmlDeviceGetComputeRunningProcesses, Process)
TS_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, Process2)
TS_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, Process2)
TS_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, Process)
TS_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, Process2)
TS_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, Process2)
