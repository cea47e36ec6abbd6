// A driver in front of the null driver whose calls fail at random and then leave anything in what they should have answered:
// a handle that is none, an absurd number. Nobody may look at that. The first cuInit succeeds, so that there is something to try.
//   TESSERA_FAILING_SEED     which calls fail
//   TESSERA_FAILING_ONE_IN   how many of them: one in that many; 0 or not set: none
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/hash.h"
#include "driver_api/real_table.h"

#define TS_CU(symbol, base, since, stream, ret, params, args) extern "C" ret symbol params;
#include "driver_api/entries.def"

namespace tessera::failing_driver {
namespace {

using driver_api::Entry;
using driver_api::kEntryCount;
using driver_api::RealDriver;

constexpr int kPoison = 0xa5;

uint64_t number_in(const char* variable) {
  const char* text = getenv(variable);
  return text != nullptr ? strtoull(text, nullptr, 10) : 0;
}

RealDriver open_null_driver() {
  RealDriver table{};
  Dl_info self;
  dladdr(reinterpret_cast<void*>(&open_null_driver), &self);
  const std::string own = self.dli_fname, folder = own.substr(0, own.rfind('/'));
  void* library = dlopen((folder + "/../null/libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  for (uint16_t i = 0; library != nullptr && i < kEntryCount; ++i)
    reinterpret_cast<void**>(&table)[i] = dlsym(library, driver_api::kEntryInfo[i].symbol);
  return table;
}
const RealDriver& null_driver() {
  static const RealDriver table = open_null_driver();
  return table;
}

// Calls of several threads at once draw in any order: which of them fail is then left to chance.
bool fails(Entry entry) {
  static const uint64_t seed = number_in("TESSERA_FAILING_SEED"),
                        one_in = number_in("TESSERA_FAILING_ONE_IN");
  static std::atomic<uint64_t> calls{0};
  if (one_in == 0 || entry == Entry::cuInit) return false;
  return base::mix64(base::combine(seed, calls.fetch_add(1, std::memory_order_relaxed))) % one_in == 0;
}

template <class T>
struct IsComplete {
  template <class U, size_t = sizeof(U)>
  static std::true_type test(int);
  template <class U>
  static std::false_type test(...);
  static constexpr bool value = decltype(test<T>(0))::value;
};

// Writes a false answer through this argument: numbers and handles, but no parameters of kernels and no options.
template <class T>
void poison(T argument) {
  using Answer = std::remove_pointer_t<T>;
  if constexpr (std::is_pointer_v<T> && !std::is_const_v<Answer> && IsComplete<Answer>::value) {
    constexpr bool kNumber =
        std::is_arithmetic_v<Answer> || (std::is_enum_v<Answer> && !std::is_same_v<Answer, CUjit_option> &&
                                         !std::is_same_v<Answer, CUlibraryOption>);
    constexpr bool kHandle = std::is_pointer_v<Answer> && !std::is_void_v<std::remove_pointer_t<Answer>>;
    if constexpr (kNumber || kHandle)
      if (argument != nullptr) memset(static_cast<void*>(argument), kPoison, sizeof(Answer));
  }
}

// Our own function where the null driver answered with one of its.
void* own(void* address);
template <class T>
void translate(T argument) {
  if constexpr (std::is_same_v<T, void**>)
    if (argument != nullptr && *argument != nullptr) *argument = own(*argument);
}

template <class... A>
CUresult answer(Entry entry, CUresult (*next)(A...), std::type_identity_t<A>... args) {
  if (fails(entry)) {
    (poison(args), ...);
    return CUDA_ERROR_UNKNOWN;
  }
  const CUresult result = next(args...);
  const bool looks_up = entry == Entry::cuGetProcAddress || entry == Entry::cuGetProcAddress_v2;
  if (looks_up && result == CUDA_SUCCESS) (translate(args), ...);
  return result;
}

}  // namespace
}  // namespace tessera::failing_driver

#define TS_ARGUMENTS(...) __VA_OPT__(, ) __VA_ARGS__
#define TS_CU(symbol, base, since, stream, ret, params, args)                                  \
  extern "C" __attribute__((visibility("default"))) ret symbol params {                        \
    using namespace tessera::failing_driver;                                                   \
    return answer(tessera::driver_api::Entry::symbol, null_driver().symbol TS_ARGUMENTS args); \
  }
#include "driver_api/entries.def"

namespace tessera::failing_driver {
namespace {

void* own(void* address) {
  static void* const kOwn[kEntryCount] = {
#define TS_CU(symbol, base, since, stream, ret, params, args) reinterpret_cast<void*>(&::symbol),
#include "driver_api/entries.def"
  };
  for (uint16_t i = 0; i < kEntryCount; ++i)
    if (reinterpret_cast<void* const*>(&null_driver())[i] == address) return kOwn[i];
  return address;
}

}  // namespace
}  // namespace tessera::failing_driver
