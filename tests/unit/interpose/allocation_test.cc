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
  EXPECT_EQ(count([] { free(malloc(1)); }), 1);
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

}  // namespace
}  // namespace tessera::test
