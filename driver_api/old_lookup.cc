#include "driver_api/old_lookup.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "driver_api/answers.h"
#include "driver_api/real_table.h"

namespace tessera::driver_api {
namespace {

constexpr cuuint64_t kTwins = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
constexpr cuuint64_t kFlavours = CU_GET_PROC_ADDRESS_LEGACY_STREAM | kTwins;

void* address_of(const EntryInfo& row) {
  return real_slot(static_cast<Entry>(&row - kEntryInfo));
}

// Whether cuGetProcAddress may find this row under this name: it is declared, and this driver has it.
bool answers_to(const EntryInfo& row, const char* name) {
  return row.since != 0 && std::strcmp(row.base, name) == 0 &&
         address_of(row) != reinterpret_cast<void*>(&tessera_answer_not_supported);
}

bool known_to_driver(const char* name) {
  return std::any_of(std::begin(kEntryInfo), std::end(kEntryInfo),
                     [name](const EntryInfo& row) { return answers_to(row, name); });
}

// Takes the rows with this name: the per-thread ones if those are wanted and there are any, else the others; of
// these the newest that the version knows.
const EntryInfo* find(const char* name, int version, bool want_twin) {
  const EntryInfo* best[2] = {};  // plain, per thread
  bool twins = false;
  for (const EntryInfo& row : kEntryInfo) {
    if (!answers_to(row, name)) continue;
    const bool twin = row.flavour == Flavour::kPerThread;
    twins = twins || twin;
    // Without a sign, as drivers compare.
    if (static_cast<unsigned>(row.since) > static_cast<unsigned>(version)) continue;
    if (best[twin] == nullptr || row.since > best[twin]->since) best[twin] = &row;
  }
  return best[want_twin && twins];
}

}  // namespace

CUresult old_lookup(const char* name, void** function, int version, cuuint64_t flags) {
  if (name == nullptr || function == nullptr || (flags & ~kFlavours) != 0) return CUDA_ERROR_INVALID_VALUE;
  const EntryInfo* found = find(name, version, (flags & kTwins) != 0);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  *function = address_of(*found);
  return CUDA_SUCCESS;
}

CUresult old_lookup_v2(const char* name, void** function, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult* status) {
  const CUresult result = real().cuGetProcAddress(name, function, version, flags);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND) return result;
  const bool found = result == CUDA_SUCCESS;
  if (!found) *function = nullptr;  // no error in this form
  if (status != nullptr) {
    *status = found                   ? CU_GET_PROC_ADDRESS_SUCCESS
              : known_to_driver(name) ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

}  // namespace tessera::driver_api
