// cuGetProcAddress: base name, version and stream flavour to an entry point, from the table of all entry
// points.
//
// Rule: among the rows of that base name, those that exist in the version asked for; of these the per-thread
// twin if it is asked for and exists, else the plain one; of these the newest.
#include <string_view>
#include <unordered_map>
#include <vector>

#include "softgpu/driver/proc_address.h"

namespace tessera::softgpu::driver {
namespace {

const std::unordered_map<std::string_view, std::vector<ProcRow>>& table() {
  static const auto* made = [] {
    auto* rows = new std::unordered_map<std::string_view, std::vector<ProcRow>>;
    for (const ProcRow& row : proc_rows()) (*rows)[row.base].push_back(row);
    return rows;
  }();
  return *made;
}

CUresult look_up(const char* name, void** out, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  if (!name || !out) return CUDA_ERROR_INVALID_VALUE;
  if (flags & ~cuuint64_t(CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
    return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  auto answer = [&](CUdriverProcAddressQueryResult what, CUresult code) {
    if (status) *status = what;
    return code;
  };
  const auto found = table().find(name);
  if (found == table().end()) return answer(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
  const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const ProcRow* best = nullptr;
  for (const ProcRow& row : found->second) {
    if (row.since > version || (row.per_thread && !per_thread)) continue;
    const bool better = !best || row.per_thread > best->per_thread ||
                        (row.per_thread == best->per_thread && row.since >= best->since);
    if (better) best = &row;
  }
  if (!best) return answer(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, CUDA_ERROR_NOT_FOUND);
  *out = best->address;
  return answer(CU_GET_PROC_ADDRESS_SUCCESS, CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera::softgpu::driver

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  return tessera::softgpu::driver::look_up(symbol, pfn, cudaVersion, flags, symbolStatus);
}
CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  return tessera::softgpu::driver::look_up(symbol, pfn, cudaVersion, flags, nullptr);
}
