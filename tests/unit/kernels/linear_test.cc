// The work of loading an image grows with its kernels, not with their square. Counted in allocations, which
// no machine's load changes: every table that a pass makes for itself allocates for each kernel.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "kernels/ptx/parser.h"
#include "kernels/slice/slice.h"

static size_t g_allocations = 0;

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* p = std::malloc(bytes)) return p;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace tessera::slice {
namespace {

size_t allocations_for(int n_kernels) {
  std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (int i = 0; i < n_kernels; ++i)
    text += ".visible .entry kernel" + std::to_string(i) +
            "(.param .u64 out)\n{\n.reg .b32 %r<3>;\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [out];\n"
            "mov.u32 %r1, %ctaid.x;\nst.global.u32 [%rd1], %r1;\nret;\n}\n";
  const size_t before = g_allocations;
  auto module = ptx::parse(text);
  EXPECT_TRUE(module.ok());
  for (const KernelReport& report : add_variants(*module)) EXPECT_TRUE(report.verdict.may_cut());
  return g_allocations - before;
}

TEST(Linear, TwiceTheKernelsAreTwiceTheWork) {
  const double once = double(allocations_for(300)), twice = double(allocations_for(600));
  EXPECT_LT(twice / once, 2.1) << once << " and " << twice;
}

}  // namespace
}  // namespace tessera::slice
