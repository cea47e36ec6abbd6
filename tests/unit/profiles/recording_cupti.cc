// With busy_cupti.cc: a CUPTI that observes a program's kernels. What it recorded comes when the program
// ends, in two buffers; it dropped records beside each, and has nothing to say of copies between GPUs.
#include <string.h>

#include "profiles/collector/cupti_api.h"

namespace {

CUpti_BuffersCallbackRequestFunc g_wanted = nullptr;
CUpti_BuffersCallbackCompleteFunc g_done = nullptr;

void one_buffer() {
  uint8_t* buffer = nullptr;
  size_t bytes = 0, most_records = 0, used = 0;
  g_wanted(&buffer, &bytes, &most_records);
  for (uint64_t i = 0; i < 10 && used + sizeof(CUpti_ActivityKernel10) <= bytes; ++i) {
    CUpti_ActivityKernel10 kernel{};
    kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    kernel.name = "recorded";
    kernel.start = 1'000 * (10 - i);  // latest first
    kernel.end = kernel.start + 500;
    kernel.gridX = 8, kernel.gridY = kernel.gridZ = 1;
    kernel.blockX = 64, kernel.blockY = kernel.blockZ = 1;
    memcpy(buffer + used, &kernel, sizeof kernel);
    used += sizeof kernel;
  }
  g_done(nullptr, 0, buffer, bytes, used);
}

}  // namespace

#define TS_EXPORT extern "C" __attribute__((visibility("default"))) CUptiResult CUPTIAPI

TS_EXPORT cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc, void*) {
  *subscriber = nullptr;
  return CUPTI_SUCCESS;
}
TS_EXPORT cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
  return CUPTI_SUCCESS;
}
TS_EXPORT cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc wanted,
                                         CUpti_BuffersCallbackCompleteFunc done) {
  g_wanted = wanted;
  g_done = done;
  return CUPTI_SUCCESS;
}
TS_EXPORT cuptiActivityEnable(CUpti_ActivityKind kind) {
  return kind == CUPTI_ACTIVITY_KIND_MEMCPY2 ? CUPTI_ERROR_NOT_COMPATIBLE : CUPTI_SUCCESS;
}
TS_EXPORT cuptiActivityFlushAll(uint32_t) {
  one_buffer();
  one_buffer();
  return CUPTI_SUCCESS;
}
TS_EXPORT cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes, CUpti_Activity** record) {
  auto* next = *record ? reinterpret_cast<uint8_t*>(*record) + sizeof(CUpti_ActivityKernel10) : buffer;
  if (next + sizeof(CUpti_ActivityKernel10) > buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
TS_EXPORT cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = 3;
  return CUPTI_SUCCESS;
}
