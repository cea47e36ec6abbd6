// cuGetProcAddress and cuGetProcAddress_v2 (design D3): the driver answers first; if its answer is the
// address of an entry point that we hook, the program gets our stub of exactly that entry point instead. So
// the driver, not we, decides which ABI a (name, version, flags) means, and `symbolStatus` is what the driver
// wrote.
#include <algorithm>
#include <cstring>
#include <functional>

#include "base/errno_guard.h"
#include "driver_api/answers.h"
#include "interpose/entry/tables.h"
#include "interpose/hooks/hooks.h"

namespace tessera::entry {
namespace {

using driver_api::Class;
using driver_api::Entry;
using driver_api::EntryInfo;
using driver_api::Flavour;
using driver_api::kEntryCount;

struct Indexed {
  const void* address;  // in the driver
  uint16_t row;
};
// Sorted by address. Written once by init before any hook can run, then read-only.
constinit Indexed g_index[kEntryCount] = {};
constinit uint32_t g_indexed = 0;

Flavour wanted_flavour(cuuint64_t flags) {
  return (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 ? Flavour::kPerThread
                                                                      : Flavour::kLegacy;
}

// How well a row that has the right address fits the question; the address alone is already enough to be
// correct.
int fit(const EntryInfo& row, const char* name, Flavour flavour) {
  return (std::strcmp(row.base, name) == 0 ? 2 : 0) +
         (row.flavour == flavour || row.flavour == Flavour::kNone ? 1 : 0);
}

// The pointer to hand out for what the driver answered.
void* substitute(const char* name, void* address, cuuint64_t flags) {
  const Indexed* end = g_index + g_indexed;
  const Indexed* first =
      std::lower_bound(static_cast<const Indexed*>(g_index), end, address,
                       [](const Indexed& i, const void* a) { return std::less<>()(i.address, a); });
  if (first == end || first->address != address) {
    bump(driver_api::known_base(name) ? &Counters::lookups_unindexed : &Counters::lookups_unknown);
    return address;
  }
  const Indexed* best = first;
  bool one_class = true;
  const Class klass = driver_api::kEntryInfo[first->row].klass;
  for (const Indexed* i = first + 1; i != end && i->address == address; ++i) {
    one_class = one_class && driver_api::kEntryInfo[i->row].klass == klass;
    const Flavour flavour = wanted_flavour(flags);
    if (fit(driver_api::kEntryInfo[i->row], name, flavour) >
        fit(driver_api::kEntryInfo[best->row], name, flavour)) {
      best = i;
    }
  }
  if (!one_class && std::strcmp(driver_api::kEntryInfo[best->row].base, name) != 0) {
    bump(&Counters::lookups_ambiguous);
    return address;
  }
  if (driver_api::kEntryInfo[best->row].klass == Class::kPass && !g_every_row) return address;
  bump(&Counters::lookups_substituted);
  return tessera_stub_addresses[best->row];
}

bool missing(const void* slot) {
  return slot == reinterpret_cast<const void*>(&tessera_answer_not_supported);
}

void after(CUresult result, const char* name, void** function, cuuint64_t flags) {
  const base::ErrnoGuard keep_errno;
  bump(&Counters::lookups);
  if (result != CUDA_SUCCESS || name == nullptr || function == nullptr || *function == nullptr) return;
  *function = substitute(name, *function, flags);
}

}  // namespace

void build_address_index() {
  g_indexed = 0;
  for (uint16_t row = 0; row < kEntryCount; ++row) {
    const void* address = driver_api::real_slot(static_cast<Entry>(row));
    if (!missing(address)) g_index[g_indexed++] = {address, row};
  }
  std::sort(g_index, g_index + g_indexed, [](const Indexed& a, const Indexed& b) {
    return a.address != b.address ? std::less<>()(a.address, b.address) : a.row < b.row;
  });
}

}  // namespace tessera::entry

extern "C" CUresult hook_cuGetProcAddress(const char* symbol, void** pfn, int version,
                                          cuuint64_t flags) noexcept {
  const CUresult result = tessera::driver_api::real().cuGetProcAddress(symbol, pfn, version, flags);
  tessera::entry::after(result, symbol, pfn, flags);
  return result;
}

extern "C" CUresult hook_cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                                             CUdriverProcAddressQueryResult* status) noexcept {
  const CUresult result =
      tessera::driver_api::real().cuGetProcAddress_v2(symbol, pfn, version, flags, status);
  tessera::entry::after(result, symbol, pfn, flags);
  return result;
}
