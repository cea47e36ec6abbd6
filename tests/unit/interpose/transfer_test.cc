// Copies and fills of a best-effort client: what they are estimated at, on which device, and what their
// return settles.
#include "interpose/gate/rates.h"
#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using driver_api::Direction;
using gate::Rates;

constexpr size_t kMiB = size_t{1} << 20;

thread_local CUdevice t_device = 0;

// Two cards of the profiles and one that nobody described.
CUresult name_of(char* name, int length, CUdevice device) {
  const char* names[] = {"NVIDIA L4", "NVIDIA H200", "Somebody's GPU"};
  snprintf(name, size_t(length), "%s", names[device % 3]);
  return CUDA_SUCCESS;
}
CUresult attribute_of(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE         ? 1'000'000  // kHz
           : attribute == CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH ? 256
                                                                      : 1;
  return CUDA_SUCCESS;
}
CUresult device_of_context(CUdevice* device) {
  *device = t_device;
  return CUDA_SUCCESS;
}

class Transfer : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    before_ = driver_api::real();
    before_.cuCtxGetCurrent(&context_);
    driver_api::RealDriver& real = driver_api::mutable_real_for_tests();
    real.cuDeviceGetName = name_of;
    real.cuDeviceGetAttribute = attribute_of;
    real.cuCtxGetDevice = device_of_context;
    use(30);
    attach(state::Role::kBestEffort);
    lease(abi::kLeaseGranted, 100'000'000'000);
    null.hold(1);
  }
  void TearDown() override {
    Gate::TearDown();
    driver_api::mutable_real_for_tests() = before_;
    hook_cuCtxSetCurrent(context_);
  }
  // Numbers of their own: what a device is, is asked once per process.
  void use(CUdevice device) {
    t_device = device;
    hook_cuCtxSetCurrent(context_);
  }
  template <class F>
  uint64_t reserved_by(F&& call) {
    const uint64_t before = in_flight();
    EXPECT_EQ(call(), CUDA_SUCCESS);
    return in_flight() - before;
  }
  CUcontext context_ = nullptr;

 private:
  driver_api::RealDriver before_;
};
constexpr CUdevice kL4 = 30, kH200 = 31, kUnknownCard = 32;

TEST_F(Transfer, IsEstimatedByTheDeviceOfTheThread) {
  const auto down = [] { return hook_cuMemcpyHtoDAsync_v2(0x1000, nullptr, 100 * kMiB, nullptr); };
  const auto within = [] { return hook_cuMemcpyDtoDAsync_v2(0x1000, 0x2000, 100 * kMiB, nullptr); };
  use(kL4);
  EXPECT_EQ(reserved_by(down), 1500 + 100 * kMiB / 25);               // 25 GB/s
  EXPECT_EQ(reserved_by(within), 1500 + 2 * 100 * kMiB * 10 / 3000);  // 300 GB/s, read and written
  use(kH200);
  EXPECT_EQ(reserved_by(down), 1500 + 100 * kMiB / 55);
  EXPECT_EQ(reserved_by(within), 1500 + 2 * 100 * kMiB / 4800);
  use(kUnknownCard);  // 10 GB/s; memory of 2 x 1 GHz x 32 bytes
  EXPECT_EQ(reserved_by(down), gate::kCautiousRates.overhead_ns + 100 * kMiB / 10);
  EXPECT_EQ(reserved_by(within), gate::kCautiousRates.overhead_ns + 2 * 100 * kMiB / 64);
}

TEST_F(Transfer, PoppingAContextReturnsToTheDeviceBelow) {
  use(kH200);
  t_device = kL4;
  ASSERT_EQ(hook_cuCtxPushCurrent_v2(context_), CUDA_SUCCESS);
  EXPECT_EQ(gate::rates().h2d, 25'000u);
  t_device = kH200;
  CUcontext popped = nullptr;
  ASSERT_EQ(hook_cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
  EXPECT_EQ(gate::rates().h2d, 55'000u);
}

TEST_F(Transfer, AThreadWithoutAContextOfItsOwnIsEstimatedByTheFirstDevice) {
  use(kH200);
  Rates seen{};
  std::thread([&] { seen = gate::rates(); }).join();
  EXPECT_NE(seen.h2d, 0u);
  EXPECT_NE(seen.h2d, 55'000u);  // the harness's own device came first
}

// The oldest ABIs have 32-bit sizes and structures of their own: they moved nothing, by our books.
TEST_F(Transfer, OldAbisCountTheirBytes) {
  use(kL4);
  const uint64_t by_link = 1500 + 100 * kMiB / 25;
  EXPECT_EQ(reserved_by([] { return hook_cuMemcpyHtoDAsync(1, nullptr, unsigned(100 * kMiB), nullptr); }),
            by_link);
  CUDA_MEMCPY2D_v1 box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.WidthInBytes = unsigned(kMiB);
  box.Height = 100;
  EXPECT_EQ(reserved_by([&] { return hook_cuMemcpy2DAsync(&box, nullptr); }), by_link);
  EXPECT_EQ(reserved_by([] { return hook_cuMemsetD32(1, 0, unsigned(75 * kMiB)); }), 1500 + 300 * kMiB / 300);
}

TEST_F(Transfer, BatchesCountTheirBytes) {
  use(kL4);
  CUDA_MEMCPY3D_BATCH_OP operation{};
  operation.src.type = operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operation.extent = {kMiB, 100, 1};
  const uint64_t by_link = 1500 + 100 * kMiB / 25;
  EXPECT_EQ(reserved_by([&] { return hook_cuMemcpy3DBatchAsync_v2(1, &operation, 0, nullptr); }), by_link);
  EXPECT_EQ(reserved_by([&] { return hook_cuMemcpy3DWithAttributesAsync_ptsz(&operation, 0, nullptr); }),
            by_link);
  EXPECT_EQ(reserved_by([] { return hook_cuMemcpyWithAttributesAsync(1, 2, 100 * kMiB, nullptr, nullptr); }),
            by_link);
  CUDA_FABRIC_COPY_BATCH_OP copies[2] = {};
  copies[0].size = copies[1].size = 50 * kMiB;
  EXPECT_EQ(reserved_by([&] { return hook_cuFabricCpyBatchAsync(2, copies, 0, nullptr); }), by_link);
}

TEST_F(Transfer, GarbageIsBounded) {
  const driver_api::Transfer garbage{UINT64_MAX, Direction::kFill, false};
  EXPECT_LE(gate::transfer_ns(garbage, gate::kCautiousRates), gate::kLongestTransferNs + 2'000);
}

// A copy to the host that returned has ended, and what was before it in its stream; also if a structure says
// that it goes to the host.
TEST_F(Transfer, ToTheHostSettlesWhatWasBefore) {
  char buffer[64];
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = buffer;
  box.WidthInBytes = 8;
  box.Height = 8;
  launch();
  EXPECT_GT(in_flight(), 0u);
  EXPECT_EQ(hook_cuMemcpy2D_v2(&box), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), 0u);
  launch();
  EXPECT_EQ(hook_cuMemcpyDtoH_v2(buffer, 0x1000, 8), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), 0u);
  launch();
  EXPECT_EQ(hook_cuMemcpyDtoD_v2(0x1000, 0x2000, 8), CUDA_SUCCESS);
  EXPECT_GT(in_flight(), 0u);
}

}  // namespace
}  // namespace tessera::test
