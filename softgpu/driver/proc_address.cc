// cuGetProcAddress: base name, version and stream flavour to an entry point, from the table of all entry
// points.
//
// Rule: among the rows of that base name, the per-thread twins if those are asked for and the name has any,
// else the plain ones; of these the newest that exists in the version asked for. Versions are compared
// without a sign. A name that is not found is an error in the first form, which then writes nothing; in the
// second it is a success with a null pointer and a status. All as the drivers 535 and 550 do
// (scripts/real_driver.sh).
#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "softgpu/driver/proc_address.h"

namespace tessera::softgpu::driver {
namespace {

const std::unordered_map<std::string_view, std::vector<ProcRow>>& table() {
  static const auto* made = [] {
    auto* rows = new std::unordered_map<std::string_view, std::vector<ProcRow>>;
    for (const ProcRow& row : proc_rows()) {
      // 0: exported, but not to be found here. Newer than the release that this driver is of: nor those.
      if (row.since != 0 && row.since <= CUDA_VERSION) (*rows)[row.base].push_back(row);
    }
    return rows;
  }();
  return *made;
}

struct Answer {
  CUdriverProcAddressQueryResult status;
  void* address;
};

bool valid(const char* name, void** out, cuuint64_t flags) {
  constexpr cuuint64_t kFlavours =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  return name && out && !(flags & ~kFlavours);
}

Answer look_up(const char* name, int version, cuuint64_t flags) {
  const auto found = table().find(name);
  if (found == table().end()) return {CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, nullptr};
  const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const bool twins = per_thread && std::ranges::any_of(found->second, &ProcRow::per_thread);
  const ProcRow* best = nullptr;
  for (const ProcRow& row : found->second) {
    if (row.per_thread != twins || static_cast<unsigned>(row.since) > static_cast<unsigned>(version))
      continue;
    if (!best || row.since >= best->since) best = &row;
  }
  if (!best) return {CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, nullptr};
  return {CU_GET_PROC_ADDRESS_SUCCESS, best->address};
}

}  // namespace
}  // namespace tessera::softgpu::driver

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  using namespace tessera::softgpu::driver;
  if (!valid(symbol, pfn, flags)) return CUDA_ERROR_INVALID_VALUE;
  const Answer answer = look_up(symbol, cudaVersion, flags);
  *pfn = answer.address;
  if (symbolStatus) *symbolStatus = answer.status;
  return CUDA_SUCCESS;
}
CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  using namespace tessera::softgpu::driver;
  if (!valid(symbol, pfn, flags)) return CUDA_ERROR_INVALID_VALUE;
  const Answer answer = look_up(symbol, cudaVersion, flags);
  if (!answer.address) return CUDA_ERROR_NOT_FOUND;
  *pfn = answer.address;
  return CUDA_SUCCESS;
}
