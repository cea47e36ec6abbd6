// The vector handlers of this process: those that TESSERA_EXEC_ISA asks for, or the next that the CPU has.
// CTest runs it under each. The results themselves are compared by all other tests of this program.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {
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

Handler of(const FastTable& table) {
  return table.by_type[static_cast<unsigned>(Operation::kFma)][static_cast<unsigned>(Ty::kF32)];
}

TEST(Dispatch, FollowsTheCpuAndTheEnvironment) {
  const char* text = std::getenv("TESSERA_EXEC_ISA");
  const std::string wish = text ? text : "avx512";
  const bool has512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const Handler got = fast_handler(Operation::kFma, Ty::kF32);
  if (wish == "none")
    EXPECT_EQ(got, nullptr);
  else if (wish == "avx512" && has512)
    EXPECT_EQ(got, of(avx512::kFastTable));
  else if (wish != "v2" && has2)
    EXPECT_EQ(got, of(avx2::kFastTable));
  else
    EXPECT_EQ(got, of(v2::kFastTable));
  EXPECT_NE(of(avx512::kFastTable), of(avx2::kFastTable));
  EXPECT_NE(of(avx2::kFastTable), of(v2::kFastTable));
}

}  // namespace
}  // namespace tessera::softgpu::exec
