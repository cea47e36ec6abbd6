#include "profiles/collector/cupti_decode.h"

namespace tessera::profiles {
namespace {

// Records are what the newest structure of their kind says; CUPTI writes those of its own version.
template <class Record>
void take_times(const Record& r, Activity& out) {
  out.start_ns = r.start;
  out.end_ns = r.end;
  out.device = r.deviceId;
}

uint32_t positive(int32_t value) {
  return value > 0 ? uint32_t(value) : 0;
}

void take_kernel(const CUpti_ActivityKernel10& r, Activity& out) {
  take_times(r, out);
  out.name = r.name ? r.name : "";
  const int32_t grid[] = {r.gridX, r.gridY, r.gridZ}, block[] = {r.blockX, r.blockY, r.blockZ};
  for (int i = 0; i < 3; ++i) out.grid[i] = positive(grid[i]), out.block[i] = positive(block[i]);
  out.registers_per_thread = r.registersPerThread;
  out.static_shared_bytes = positive(r.staticSharedMemory);
  out.dynamic_shared_bytes = positive(r.dynamicSharedMemory);
}

template <class Record>
void take_transfer(const Record& r, Activity& out) {
  take_times(r, out);
  out.bytes = r.bytes;
}

template <class Record>
const Record& as(const CUpti_Activity& record) {
  return *reinterpret_cast<const Record*>(&record);
}

}  // namespace

Activity decode(const CUpti_Activity& record) {
  Activity out;
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      out.kind = ActivityKind::kKernel;
      take_kernel(as<CUpti_ActivityKernel10>(record), out);
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      out.kind = ActivityKind::kCopy;
      take_transfer(as<CUpti_ActivityMemcpy6>(record), out);
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      out.kind = ActivityKind::kCopy;
      take_transfer(as<CUpti_ActivityMemcpyPtoP4>(record), out);
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      out.kind = ActivityKind::kSet;
      take_transfer(as<CUpti_ActivityMemset4>(record), out);
      break;
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE:
      out.kind = ActivityKind::kGraph;
      take_times(as<CUpti_ActivityGraphTrace2>(record), out);
      break;
    default:  // an open set: newer toolkits add kinds
      break;
  }
  return out;
}

}  // namespace tessera::profiles
