// cuGetProcAddress as the driver documents it: of the rows with this base name and the wanted stream flavour,
// the newest that the asked version knows. What is not found is an error in the first form, which then writes
// nothing, and a success with a null pointer and a status in the second.
#include <cstring>

#include "tests/null_driver/internal.h"

namespace tessera::null_driver {
namespace {

using driver_api::EntryInfo;
using driver_api::Flavour;

#define TS_CU(symbol, base, since, stream, ret, params, args) extern "C" ret symbol params;
}  // namespace
}  // namespace tessera::null_driver
#include "driver_api/entries.def"

namespace tessera::null_driver {
namespace {

void* const kAddresses[kEntryCount] = {
#define TS_CU(symbol, base, since, stream, ret, params, args) reinterpret_cast<void*>(&::symbol),
#include "driver_api/entries.def"
};

bool ends_with_flavour(const char* symbol) {
  const size_t n = std::strlen(symbol);
  return n > 5 && (std::strcmp(symbol + n - 5, "_ptds") == 0 || std::strcmp(symbol + n - 5, "_ptsz") == 0);
}

struct Found {
  int row = -1;        // best row, -1: none old enough
  bool known = false;  // some row has the name and this flavour
};

Found newest(const char* name, int version, bool per_thread) {
  Found found;
  for (int i = 0; i < kEntryCount; ++i) {
    const EntryInfo& row = driver_api::kEntryInfo[i];
    if (row.since == 0 || std::strcmp(row.base, name) != 0) continue;
    if (ends_with_flavour(row.symbol) != per_thread) continue;
    found.known = true;
    if (static_cast<unsigned>(row.since) > static_cast<unsigned>(version)) continue;
    if (found.row < 0 || row.since > driver_api::kEntryInfo[found.row].since) found.row = i;
  }
  return found;
}

bool valid(const char* name, void** function, cuuint64_t flags) {
  return name != nullptr && function != nullptr && flags <= 3;
}

Found lookup(const char* name, int version, cuuint64_t flags) {
  Found found;
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) found = newest(name, version, true);
  if (!found.known) found = newest(name, version, false);
  return found;
}

}  // namespace
}  // namespace tessera::null_driver

TS_NULL(cuGetProcAddress, const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  TS_NULL_COUNT(cuGetProcAddress);
  using namespace tessera::null_driver;
  if (!valid(symbol, pfn, flags)) return CUDA_ERROR_INVALID_VALUE;
  const Found found = lookup(symbol, cudaVersion, flags);
  if (found.row < 0) return CUDA_ERROR_NOT_FOUND;
  *pfn = kAddresses[found.row];
  return CUDA_SUCCESS;
}
TS_NULL(cuGetProcAddress_v2, const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
        CUdriverProcAddressQueryResult* symbolStatus) {
  TS_NULL_COUNT(cuGetProcAddress_v2);
  using namespace tessera::null_driver;
  if (!valid(symbol, pfn, flags)) return CUDA_ERROR_INVALID_VALUE;
  const Found found = lookup(symbol, cudaVersion, flags);
  *pfn = found.row < 0 ? nullptr : kAddresses[found.row];
  if (symbolStatus != nullptr) {
    *symbolStatus = found.row >= 0 ? CU_GET_PROC_ADDRESS_SUCCESS
                    : found.known  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}
TS_NULL(cuGetExportTable, const void** ppExportTable, const CUuuid* id) {
  TS_NULL_COUNT(cuGetExportTable);
  using namespace tessera::null_driver;
  static constexpr TesseraNullTools kTools = {sizeof kTools, [](Hear hear) {
                                                // Relaxed: see count().
                                                g_tool.store(hear, std::memory_order_relaxed);
                                              }};
  const bool known = id != nullptr && memcmp(id, kTesseraNullTools, sizeof *id) == 0;
  if (ppExportTable != nullptr) *ppExportTable = known ? &kTools : nullptr;
  return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
