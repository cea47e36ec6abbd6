// The hot path allocates nothing: every operator new and malloc of this program is counted.
#include <cstdlib>
#include <new>

#include "tests/unit/interpose/harness.h"

namespace {
thread_local bool t_counting = false;
thread_local int t_allocations = 0;
}  // namespace

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* malloc(size_t bytes) {  // NOLINT: replaces the C library's for this program
  if (t_counting) t_allocations++;
  return __libc_malloc(bytes);
}

namespace tessera::test {
namespace {

using state::Role;

class Allocation : public Gate {
 public:
  template <class F>
  int count(F&& f) {
    t_allocations = 0;
    t_counting = true;
    f();
    t_counting = false;
    return t_allocations;
  }
};

TEST_F(Allocation, TheCounterCounts) {
  void* volatile seen = nullptr;  // a pair that nobody sees may be left out
  EXPECT_EQ(count([&] {
              seen = malloc(1);
              free(seen);
            }),
            1);
}

TEST_F(Allocation, ProtectedLaunchCopySyncAndEvent) {
  attach(Role::kProtected);
  CUstream s = new_stream();
  CUevent event = nullptr;
  driver_api::real().cuEventCreate(&event, 0);
  char buffer[8];
  EXPECT_EQ(count([&] {
              for (int i = 0; i < 1'000; i++) {
                hook_cuMemcpyHtoDAsync_v2(0x1000, buffer, 8, s);
                launch(s);
                hook_cuEventRecord(event, s);
                hook_cuEventSynchronize(event);
                hook_cuStreamSynchronize(s);
                hook_cuMemcpyDtoH_v2(buffer, 0x1000, 8);
              }
            }),
            0);
}

TEST_F(Allocation, BestEffortGrantedFullWindowAndHeld) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted, 4 * admission::kUnknownKernelNs, 1'000'000, 1, 2);
  CUstream s = new_stream();
  EXPECT_EQ(count([&] {
              for (int i = 0; i < 1'000; i++) launch(s);
              hook_cuStreamSynchronize(s);
              lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 2);
              launch(s);
            }),
            0);
  EXPECT_GT(region->usage.hold_expired, 0u);
}

// One store per thread: may be cut.
constexpr char kImage[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 out)
{
  .reg .b32 %r<5>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  mul.wide.s32 %rd3, %r4, 4;
  add.s64 %rd4, %rd2, %rd3;
  st.global.u32 [%rd4], %r4;
  ret;
}
)";

TEST_F(Allocation, LaunchesInSlices) {
  attach(Role::kBestEffort);
  state::g_sm_count.store(1);  // the first slices have two blocks
  const auto terms = [&](uint32_t state) { lease(state, 50'000'000, 1'000, 1, 2); };
  terms(abi::kLeaseGranted);
  CUmodule module = nullptr;
  CUfunction f = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, kImage), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuModuleGetFunction(&f, module, "fill"), CUDA_SUCCESS);
  uint64_t out = 0;
  void* params[] = {&out};
  size_t bytes = sizeof out;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &out, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUstream s = new_stream();
  const auto cut = [&](uint32_t blocks, void** by_pointer, void** by_buffer) {
    return hook_cuLaunchKernel(f, blocks, 1, 1, 32, 1, 1, 0, s, by_pointer, by_buffer) == CUDA_SUCCESS;
  };
  // Once per kernel and context: the variant's handle, the streams of the watchdog.
  ASSERT_TRUE(cut(64, params, nullptr));
  const uint64_t before = region->usage.slices;
  bool ok = true;
  EXPECT_EQ(count([&] {
              for (int i = 0; i < 100; i++) {
                ok = cut(64, params, nullptr) && cut(64, nullptr, extra) && ok;
                ok = cut(65, params, nullptr) && ok;  // the first one is watched
                hook_cuStreamSynchronize(s);
              }
            }),
            0);
  EXPECT_TRUE(ok);
  EXPECT_GE(region->usage.slices - before, 300u * 8);
  EXPECT_EQ(count([&] {
              terms(abi::kLeaseHold);
              ok = cut(64, params, nullptr);  // the rest goes out whole at the hold limit
            }),
            0);
  EXPECT_TRUE(ok);
  EXPECT_GT(region->usage.hold_expired, 0u);
  hook_cuModuleUnload(module);
  state::g_sm_count.store(0);
}

}  // namespace
}  // namespace tessera::test
