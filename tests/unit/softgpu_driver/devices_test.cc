// Several devices in one process: two of the four-SM kind, run with TESSERA_SOFTGPU_DEVICES=2.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

// Number of devices and the sign of life of the first, in a child with its own environment.
int devices_with(const char* visible) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    int n = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&n) != CUDA_SUCCESS) _exit(90);
    char bus[32] = {};
    if (cuDeviceGetPCIBusId(bus, sizeof bus, 0) != CUDA_SUCCESS) _exit(91);
    _exit(n * 10 + std::atoi(std::string(bus).substr(5, 2).c_str()));  // bus 1 and 2
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// First in this file: later tests initialise the driver, and what is forked from then on has none.
TEST(Visible, ListChoosesAndOrders) {
  EXPECT_EQ(21, devices_with("0,1"));
  EXPECT_EQ(22, devices_with("1,0"));
  EXPECT_EQ(12, devices_with("1"));
  EXPECT_EQ(11, devices_with("0,7,1"));  // ends at the first that does not exist
  EXPECT_EQ(90, devices_with("1,1"));
  EXPECT_EQ(90, devices_with("-1"));
}

// Every attribute of cuda.h has a value on every described GPU, and those that programs plan by are the
// GPU's.
struct Expected {
  const char* gpu;
  int major, minor, sms, shared_optin, shared_per_sm, bus_bits, max_blocks, max_threads;
};
constexpr Expected kExpected[] = {
    {"h200", 9, 0, 132, 232448, 233472, 6144, 32, 2048},
    {"h100", 9, 0, 132, 232448, 233472, 5120, 32, 2048},
    {"a100", 8, 0, 108, 166912, 167936, 5120, 32, 2048},
    {"l4", 8, 9, 58, 101376, 102400, 192, 24, 1536},
    {"rtx4090", 8, 9, 128, 101376, 102400, 384, 24, 1536},
    {"b200", 10, 0, 148, 232448, 233472, 8192, 32, 2048},
    {"rtx5090", 12, 0, 170, 101376, 102400, 512, 24, 1536},
    {"gb10", 12, 1, 48, 101376, 102400, 256, 24, 1536},
    {"gh200", 9, 0, 132, 232448, 233472, 6144, 32, 2048},
    {"test4", 9, 0, 4, 232448, 233472, 1024, 32, 2048},
};

// 0, or what is wrong: 1000 * device + attribute.
int wrong_attribute() {
  std::string list;
  for (const Expected& e : kExpected) list += std::string(list.empty() ? "" : ",") + e.gpu;
  setenv("TESSERA_SOFTGPU_DEVICES", list.c_str(), 1);
  if (cuInit(0) != CUDA_SUCCESS) return -1;
  int device = 0;
  for (const Expected& e : kExpected) {
    auto value = [&](int attribute) {
      int got = INT32_MIN;
      return cuDeviceGetAttribute(&got, CUdevice_attribute(attribute), device) == CUDA_SUCCESS ? got
                                                                                               : INT32_MIN;
    };
    for (int a = 1; a < CU_DEVICE_ATTRIBUTE_MAX; ++a)
      if (value(a) == INT32_MIN) return device * 1000 + a;
    const struct {
      int attribute, expected;
    } rows[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, e.major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, e.minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, e.sms},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, e.shared_optin},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, e.shared_per_sm},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, e.bus_bits},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, e.max_blocks},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, e.max_threads},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
        {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, e.major >= 9},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    };
    for (const auto& row : rows)
      if (value(row.attribute) != row.expected) return device * 1000 + row.attribute;
    int none = 0;
    for (int a : {0, int(CU_DEVICE_ATTRIBUTE_MAX), 9999, -1})
      if (cuDeviceGetAttribute(&none, CUdevice_attribute(a), device) != CUDA_ERROR_INVALID_VALUE)
        return device * 1000 + 999;
    ++device;
  }
  return 0;
}

TEST(Visible, EveryAttributeOfEveryGpu) {
  int ends[2];
  ASSERT_EQ(0, pipe(ends));
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    const int wrong = wrong_attribute();
    _exit(write(ends[1], &wrong, sizeof wrong) == ssize_t(sizeof wrong) ? 0 : 1);
  }
  int wrong = -2, status = 0;
  close(ends[1]);
  EXPECT_EQ(ssize_t(sizeof wrong), read(ends[0], &wrong, sizeof wrong));
  close(ends[0]);
  waitpid(pid, &status, 0);
  EXPECT_EQ(wrong, 0) << "1000 * device + attribute";
  // And no description is left out.
  const std::filesystem::path folder =
      std::filesystem::path(std::getenv("TESSERA_SOFTGPU_LOCAL")).parent_path();
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".toml") continue;
    EXPECT_TRUE(std::any_of(std::begin(kExpected), std::end(kExpected), [&](const Expected& e) {
      return file.path().stem() == e.gpu;
    })) << file.path();
  }
}

// Both devices with a context, a module and 64 words each.
class Devices : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CU(cuInit(0));
    for (int i = 0; i < 2; ++i) {
      ASSERT_CU(cuCtxCreate(&context[i], nullptr, 0, i));
      ASSERT_CU(cuModuleLoadData(&module[i], kPtx));
      ASSERT_CU(cuModuleGetFunction(&fill[i], module[i], "fill"));
      ASSERT_CU(cuMemAlloc(&words[i], 256));
      ASSERT_CU(cuMemsetD32(words[i], 0, 64));
    }
  }
  void TearDown() override {
    for (CUcontext each : context)
      if (each) cuCtxDestroy(each);
  }
  CUresult run_fill(int device, CUdeviceptr p, uint32_t value, CUstream stream = nullptr) {
    uint32_t n = 64;
    void* params[] = {&p, &value, &n};
    return cuLaunchKernel(fill[device], 1, 1, 1, 64, 1, 1, 0, stream, params, nullptr);
  }
  uint32_t first(CUdeviceptr p) {
    uint32_t value = 0;
    EXPECT_CU(cuMemcpyDtoH(&value, p, 4));
    return value;
  }
  void use(int device) { ASSERT_CU(cuCtxSetCurrent(context[device])); }

  CUcontext context[2] = {};
  CUmodule module[2] = {};
  CUfunction fill[2] = {};
  CUdeviceptr words[2] = {};
};

TEST_F(Devices, AreEnumeratedAndToldApart) {
  int n = 0;
  EXPECT_CU(cuDeviceGetCount(&n));
  EXPECT_EQ(n, 2);
  CUdevice device = -1;
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 2));
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, -1));
  CUuuid a, b;
  EXPECT_CU(cuDeviceGetUuid(&a, 0));
  EXPECT_CU(cuDeviceGetUuid(&b, 1));
  EXPECT_NE(0, std::memcmp(&a, &b, sizeof a));
  for (int i = 0; i < 2; ++i) {
    char bus[32];
    EXPECT_CU(cuDeviceGetPCIBusId(bus, sizeof bus, i));
    EXPECT_CU(cuDeviceGetByPCIBusId(&device, bus));
    EXPECT_EQ(device, i) << bus;
    use(i);
    EXPECT_CU(cuCtxGetDevice(&device));
    EXPECT_EQ(device, i);
    int ordinal = -1;
    EXPECT_CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, words[i]));
    EXPECT_EQ(ordinal, i);
  }
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate(&context[0], nullptr, 0, 2));
}

TEST_F(Devices, HaveMemoryOfTheirOwn) {
  size_t free[2], now, total;
  for (int i = 0; i < 2; ++i) {
    use(i);
    EXPECT_CU(cuMemGetInfo(&free[i], &total));
  }
  CUdeviceptr p;
  EXPECT_CU(cuMemAlloc(&p, 64 << 20));
  EXPECT_CU(cuMemGetInfo(&now, &total));
  EXPECT_EQ(now, free[1] - (64 << 20));
  use(0);
  EXPECT_CU(cuMemGetInfo(&now, &total));
  EXPECT_EQ(now, free[0]);
}

TEST_F(Devices, PrimaryContextsAreSeparate) {
  CUcontext primary[2];
  for (int i = 0; i < 2; ++i) EXPECT_CU(cuDevicePrimaryCtxRetain(&primary[i], i));
  EXPECT_NE(primary[0], primary[1]);
  EXPECT_CU(cuDevicePrimaryCtxRelease(0));
  unsigned flags;
  int active = 1;
  EXPECT_CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
  EXPECT_CU(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 1);
  EXPECT_CU(cuDevicePrimaryCtxRelease(1));
}

TEST_F(Devices, KernelsSeePeerMemoryOnlyWhenAllowed) {
  int can = -1;
  EXPECT_CU(cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_CU(cuDeviceCanAccessPeer(&can, 1, 1));
  EXPECT_EQ(can, 0);
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, 0, 2));

  use(0);
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(context[0], 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(context[1], 1));
  EXPECT_EQ(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context[1]));
  EXPECT_CU(cuCtxEnablePeerAccess(context[1], 0));
  EXPECT_EQ(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context[1], 0));
  EXPECT_CU(run_fill(0, words[1], 5));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_EQ(5u, first(words[1]));
  use(1);  // later allocations are visible as well
  CUdeviceptr later;
  EXPECT_CU(cuMemAlloc(&later, 256));
  use(0);
  EXPECT_CU(run_fill(0, later, 6));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_EQ(6u, first(later));

  EXPECT_CU(cuCtxDisablePeerAccess(context[1]));
  EXPECT_CU(run_fill(0, words[1], 7));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  use(1);  // the other device's context is not touched by that
  EXPECT_EQ(5u, first(words[1]));
}

TEST_F(Devices, PeerCopiesNeedNoAccess) {
  use(1);
  EXPECT_CU(run_fill(1, words[1], 9));
  use(0);
  EXPECT_CU(cuMemcpyPeer(words[0], context[0], words[1], context[1], 256));  // after the kernel on device 1
  EXPECT_EQ(9u, first(words[0]));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyPeer(words[0], context[1], words[1], context[0], 256));
  use(1);
  EXPECT_CU(cuMemsetD32(words[1], 3, 64));
  EXPECT_CU(cuCtxSynchronize());
  use(0);
  EXPECT_CU(cuMemcpyPeerAsync(words[0], context[0], words[1], context[1], 256, nullptr));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_EQ(3u, first(words[0]));
  EXPECT_CU(cuMemcpyDtoD(words[1], words[0], 128));
  EXPECT_CU(cuCtxSynchronize());
  CUDA_MEMCPY3D_PEER box = {};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = words[0], box.srcContext = context[0], box.srcPitch = 16;
  box.dstDevice = words[1], box.dstContext = context[1], box.dstPitch = 32;
  box.WidthInBytes = 16, box.Height = 4, box.Depth = 1;
  EXPECT_CU(cuMemsetD32(words[0], 8, 64));
  EXPECT_CU(cuMemcpy3DPeer(&box));
  uint32_t row[9];
  EXPECT_CU(cuMemcpyDtoH(row, words[1], sizeof row));
  EXPECT_EQ(8u, row[0]);
  EXPECT_EQ(3u, row[4]);
  EXPECT_EQ(8u, row[8]);
}

TEST_F(Devices, EventsOrderWorkAcrossDevices) {
  use(0);
  Gate gate;
  CUstream slow, fast;
  CUevent done;
  EXPECT_CU(cuStreamCreate(&slow, CU_STREAM_NON_BLOCKING));
  EXPECT_CU(cuEventCreate(&done, 0));
  EXPECT_CU(gate.hold(slow));
  EXPECT_CU(run_fill(0, words[0], 4, slow));
  EXPECT_CU(cuEventRecord(done, slow));
  use(1);
  EXPECT_CU(cuStreamCreate(&fast, CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(done, fast));  // another context's event
  EXPECT_CU(cuStreamWaitEvent(fast, done, 0));
  EXPECT_CU(cuMemcpyPeerAsync(words[1], context[1], words[0], context[0], 256, fast));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(fast));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(done));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(fast));
  EXPECT_EQ(4u, first(words[1]));
}

TEST_F(Devices, AFaultStaysOnItsDevice) {
  use(1);
  EXPECT_CU(run_fill(1, 64, 1));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  use(0);
  EXPECT_CU(run_fill(0, words[0], 2));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_EQ(2u, first(words[0]));
}

TEST_F(Devices, HostMemoryIsSeenByAll) {
  use(0);
  void* host = nullptr;
  EXPECT_CU(cuMemHostAlloc(&host, 256, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  for (int i = 0; i < 2; ++i) {
    use(i);
    EXPECT_CU(run_fill(i, reinterpret_cast<CUdeviceptr>(host), 10 + uint32_t(i)));
    EXPECT_CU(cuCtxSynchronize());
    EXPECT_EQ(10u + uint32_t(i), *static_cast<uint32_t*>(host));
  }
}

TEST_F(Devices, PoolsLieOnTheirDevice) {
  CUmemoryPool pool;
  use(0);
  EXPECT_CU(cuDeviceGetDefaultMemPool(&pool, 1));
  CUdeviceptr p;
  EXPECT_CU(cuMemAllocFromPoolAsync(&p, 256, pool, nullptr));
  int ordinal = -1;
  EXPECT_CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
  EXPECT_EQ(ordinal, 1);
  CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccess_flags flags;
  EXPECT_CU(cuMemPoolGetAccess(&flags, pool, &here));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CUmemAccessDesc access = {here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_CU(cuMemPoolSetAccess(pool, &access, 1));
  EXPECT_CU(cuMemPoolGetAccess(&flags, pool, &here));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_CU(run_fill(0, p, 3));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_EQ(3u, first(p));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, pool));
}

}  // namespace
}  // namespace softgpu_driver_test
