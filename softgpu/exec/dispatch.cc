// Chooses the instruction set of the vector handlers, once. TESSERA_EXEC_ISA=avx512|avx2|v2|none overrides, for tests
// and for comparing. Other processors than x86-64 have none.
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {
#ifdef __x86_64__
namespace avx512 {
extern const FastTable kFastTable;
}
namespace avx2 {
extern const FastTable kFastTable;
}
namespace v2 {
extern const FastTable kFastTable;
}

namespace {
// Clang's __builtin_cpu_supports does not know f16c.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const FastTable* choose() {
  __builtin_cpu_init();
  const bool has512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("fma");
  const bool has2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
                    __builtin_cpu_supports("bmi2");
  const bool has1 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const char* text = std::getenv("TESSERA_EXEC_ISA");
  const std::string_view wish = text ? text : "";
  if (wish == "none") return nullptr;
  if (has512 && (wish.empty() || wish == "avx512")) return &avx512::kFastTable;
  if (has2 && wish != "v2") return &avx2::kFastTable;
  return has1 ? &v2::kFastTable : nullptr;
}
unsigned bits_of(const FastTable* table) {
  return table == &avx512::kFastTable ? 512 : table == &avx2::kFastTable ? 256 : 128;
}
}  // namespace
#else
namespace {
const FastTable* choose() {
  return nullptr;
}
unsigned bits_of(const FastTable*) {
  return 128;
}
}  // namespace
#endif

namespace {
const FastTable* chosen() {
  static const FastTable* const table = choose();
  return table;
}
}  // namespace

Handler fast_handler(Operation operation, Ty type) {
  const FastTable* const table = chosen();
  return table ? table->by_type[static_cast<unsigned>(operation)][static_cast<unsigned>(type)] : nullptr;
}

unsigned vector_bits() {
  return bits_of(chosen());
}

}  // namespace tessera::softgpu::exec
