#include <algorithm>
#include <array>
#include <cstring>

#include "driver_api/real_table.h"

namespace tessera::driver_api {
namespace {

constexpr Flavour flavour_of(const char* stream_column) {
  return stream_column[0] == 'l'   ? Flavour::kLegacy
         : stream_column[0] == 'p' ? Flavour::kPerThread
                                   : Flavour::kNone;
}

constexpr std::array<Class, kEntryCount> make_classes() {
  std::array<Class, kEntryCount> table{};
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) \
  table[static_cast<uint16_t>(Entry::symbol)] = Class::k_##klass;
#include "driver_api/hooks.def"
  return table;
}
constexpr std::array<Class, kEntryCount> kClasses = make_classes();

constexpr bool sorted() {
  constexpr const char* kNames[] = {
#define TS_CU(symbol, base, since, stream, ret, params, args) #symbol,
#include "driver_api/entries.def"
  };
  for (uint16_t i = 1; i < kEntryCount; ++i) {
    const char* a = kNames[i - 1];
    const char* b = kNames[i];
    while (*a != 0 && *a == *b) ++a, ++b;
    if (!(static_cast<unsigned char>(*a) < static_cast<unsigned char>(*b))) return false;
  }
  return true;
}
static_assert(sorted(), "entries.def must be sorted by symbol, without duplicates");

}  // namespace

const EntryInfo kEntryInfo[kEntryCount] = {
#define TS_CU(symbol, base, since, stream, ret, params, args) \
  {#symbol, #base, since, flavour_of(#stream), kClasses[static_cast<uint16_t>(Entry::symbol)]},
#include "driver_api/entries.def"
};

Entry find_entry(const char* symbol) {
  const EntryInfo* end = kEntryInfo + kEntryCount;
  const EntryInfo* found = std::lower_bound(kEntryInfo, end, symbol, [](const EntryInfo& row, const char* s) {
    return std::strcmp(row.symbol, s) < 0;
  });
  if (found == end || std::strcmp(found->symbol, symbol) != 0) return Entry::kCount;
  return static_cast<Entry>(found - kEntryInfo);
}

bool known_base(const char* base) {
  // Rows of one base are not adjacent (cuMemcpy, cuMemcpy2D..., cuMemcpy_ptds), but all start with it.
  for (const EntryInfo& row : kEntryInfo) {
    if (std::strcmp(row.base, base) == 0) return true;
  }
  return false;
}

}  // namespace tessera::driver_api
