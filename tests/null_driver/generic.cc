// Weak definitions of every entry point: success for the classes that programs do in loops (actions.def),
// "not supported" for the rest. The other files define what must fill an out-parameter.
#include <array>

#include "tests/null_driver/internal.h"

namespace tessera::null_driver {
namespace {

constexpr std::array<bool, kEntryCount> make_succeeds() {
  std::array<bool, kEntryCount> table{};
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) \
  table[static_cast<uint16_t>(Entry::symbol)] = true;
#include "driver_api/hooks.def"
  return table;
}
constexpr std::array<bool, kEntryCount> kSucceeds = make_succeeds();

}  // namespace
}  // namespace tessera::null_driver

// The rows name their parameters; these bodies need none.
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TS_CU(symbol, base, since, stream, ret, params, args)                                         \
  extern "C" __attribute__((weak, visibility("default"))) ret symbol params {                         \
    TS_NULL_COUNT(symbol);                                                                            \
    return tessera::null_driver::kSucceeds[static_cast<uint16_t>(tessera::driver_api::Entry::symbol)] \
               ? CUDA_SUCCESS                                                                         \
               : CUDA_ERROR_NOT_SUPPORTED;                                                            \
  }
#include "driver_api/entries.def"
