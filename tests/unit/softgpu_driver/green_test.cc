// Green contexts and device resources, and occupancy of clusters.
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "support.h"

namespace softgpu_driver_test {
namespace {

// The test device has four SMs, which are cut by twos.
class Green : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CU(cuInit(0));
    ASSERT_CU(cuDevicePrimaryCtxRetain(&primary, 0));
    ASSERT_CU(cuCtxSetCurrent(primary));
    ASSERT_CU(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    ASSERT_CU(cuModuleLoadData(&module, kPtx));
    ASSERT_CU(cuModuleGetFunction(&spin, module, "spin"));
    ASSERT_CU(cuMemAlloc(&p, 256));
  }
  void TearDown() override {
    for (CUgreenCtx each : contexts) EXPECT_CU(cuGreenCtxDestroy(each));
    EXPECT_CU(cuDevicePrimaryCtxRelease(0));
    EXPECT_CU(cuCtxSetCurrent(nullptr));
  }
  CUgreenCtx make(CUdevResource resource) {
    CUdevResourceDesc description;
    CUgreenCtx green = nullptr;
    EXPECT_CU(cuDevResourceGenerateDesc(&description, &resource, 1));
    EXPECT_CU(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    contexts.push_back(green);
    return green;
  }
  CUresult run(CUstream stream, unsigned blocks, uint32_t rounds) {
    void* params[] = {&p, &rounds};
    return cuLaunchKernel(spin, blocks, 1, 1, 1024, 1, 1, 0, stream, params, nullptr);
  }
  // Modelled length of a grid that fills an SM per block twice over: 8 blocks of 1024 threads.
  float length_on(CUstream stream) {
    CUevent from, to;
    float ms = 0;
    EXPECT_CU(cuEventCreate(&from, 0));
    EXPECT_CU(cuEventCreate(&to, 0));
    EXPECT_CU(run(stream, 8, 40));  // its cost becomes known
    EXPECT_CU(cuEventRecord(from, stream));
    EXPECT_CU(run(stream, 8, 40));
    EXPECT_CU(cuEventRecord(to, stream));
    EXPECT_CU(cuEventSynchronize(to));
    EXPECT_CU(cuEventElapsedTime(&ms, from, to));
    return ms;
  }

  CUcontext primary = nullptr;
  CUdevResource all;
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  CUdeviceptr p = 0;
  std::vector<CUgreenCtx> contexts;
};

TEST_F(Green, ResourcesAreSplit) {
  EXPECT_EQ(all.sm.smCount, 4u);
  EXPECT_EQ(all.sm.minSmPartitionSize, 2u);
  unsigned n = 0;
  EXPECT_CU(cuDevSmResourceSplitByCount(nullptr, &n, &all, nullptr, 0, 1));  // how many would there be?
  EXPECT_EQ(n, 2u);
  CUdevResource parts[3], rest;
  n = 1;
  EXPECT_CU(cuDevSmResourceSplitByCount(parts, &n, &all, &rest, 0, 2));
  EXPECT_EQ(n, 1u);
  EXPECT_EQ(parts[0].sm.smCount, 2u);
  EXPECT_EQ(rest.sm.smCount, 2u);
  n = 3;
  EXPECT_CU(cuDevSmResourceSplitByCount(parts, &n, &all, &rest, 0, 3));
  EXPECT_EQ(n, 1u);
  EXPECT_EQ(parts[0].sm.smCount, 4u);
  EXPECT_EQ(rest.type, CU_DEV_RESOURCE_TYPE_INVALID);
  n = 1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(parts, &n, &all, &rest, 0, 5));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(parts, &n, &all, &rest, 64, 2));
  EXPECT_EQ(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevSmResourceSplitByCount(parts, &n, &rest, nullptr, 0, 2));
  EXPECT_EQ(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDeviceGetDevResource(0, &rest, CUdevResourceType(77)));
  CUdevResourceDesc description;
  EXPECT_EQ(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevResourceGenerateDesc(&description, &rest, 1));
  CUgreenCtx green;
  EXPECT_CU(cuDevResourceGenerateDesc(&description, &all, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, description, 0, 0));
}

TEST_F(Green, StreamsAreConfinedToTheirSms) {
  unsigned n = 2;
  CUdevResource halves[2];
  ASSERT_CU(cuDevSmResourceSplitByCount(halves, &n, &all, nullptr, 0, 2));
  CUgreenCtx green = make(halves[1]);
  CUstream half, whole;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&half, green, CU_STREAM_DEFAULT, 0));
  ASSERT_CU(cuGreenCtxStreamCreate(&half, green, CU_STREAM_NON_BLOCKING, 0));
  ASSERT_CU(cuStreamCreate(&whole, CU_STREAM_NON_BLOCKING));
  CUgreenCtx of = nullptr;
  EXPECT_CU(cuStreamGetGreenCtx(half, &of));
  EXPECT_EQ(of, green);
  EXPECT_CU(cuStreamGetGreenCtx(whole, &of));
  EXPECT_EQ(of, nullptr);
  // Modelled times: half of the SMs take twice as long, launch overhead aside. A machine that is late with
  // the work itself only lengthens what events show: the least of several measurements is the modelled one.
  float on_half = length_on(half), on_whole = length_on(whole);
  for (int i = 0; i < 2000 && (on_half <= on_whole * 1.7f || on_half >= on_whole * 2.1f); i++) {
    on_half = std::min(on_half, length_on(half));
    on_whole = std::min(on_whole, length_on(whole));
  }
  EXPECT_GT(on_half, on_whole * 1.7f);
  EXPECT_LT(on_half, on_whole * 2.1f);
  // A cooperative grid must fit into the part.
  void* params[] = {&p, &n};
  EXPECT_EQ(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            cuLaunchCooperativeKernel(spin, 8, 1, 1, 1024, 1, 1, 0, half, params));
  EXPECT_CU(cuLaunchCooperativeKernel(spin, 8, 1, 1, 1024, 1, 1, 0, whole, params));
  EXPECT_CU(cuCtxSynchronize());
}

TEST_F(Green, CanBeCurrent) {
  unsigned n = 2;
  CUdevResource halves[2], mine;
  ASSERT_CU(cuDevSmResourceSplitByCount(halves, &n, &all, nullptr, 0, 2));
  CUgreenCtx green = make(halves[0]), of = nullptr;
  CUcontext face, now;
  ASSERT_CU(cuCtxFromGreenCtx(&face, green));
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(face));
  ASSERT_CU(cuCtxSetCurrent(face));
  EXPECT_CU(cuCtxGetCurrent(&now));
  EXPECT_EQ(now, face);
  EXPECT_CU(cuCtxGetDevResource(face, &mine, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(mine.sm.smCount, 2u);
  EXPECT_CU(cuStreamGetGreenCtx(nullptr, &of));
  EXPECT_EQ(of, green);
  CUstream made_here;
  EXPECT_CU(cuStreamCreate(&made_here, CU_STREAM_NON_BLOCKING));
  EXPECT_CU(cuStreamGetGreenCtx(made_here, &of));
  EXPECT_EQ(of, green);
  // Memory and code of the primary context are at hand.
  EXPECT_CU(run(nullptr, 1, 1));
  EXPECT_CU(cuCtxSynchronize());
  uint32_t word = 0;
  EXPECT_CU(cuMemcpyDtoH(&word, p, 4));
  EXPECT_EQ(word, 1u);
  EXPECT_CU(cuGreenCtxDestroy(green));
  contexts.clear();
  EXPECT_EQ(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(face));
  EXPECT_CU(cuCtxSetCurrent(primary));
}

TEST_F(Green, EventsOfWholeContexts) {
  unsigned n = 2;
  CUdevResource halves[2];
  ASSERT_CU(cuDevSmResourceSplitByCount(halves, &n, &all, nullptr, 0, 2));
  CUgreenCtx green = make(halves[0]);
  CUstream a, b;
  CUevent e;
  Gate gate;
  ASSERT_CU(cuGreenCtxStreamCreate(&a, green, CU_STREAM_NON_BLOCKING, 0));
  ASSERT_CU(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  ASSERT_CU(cuEventCreate(&e, 0));
  EXPECT_CU(gate.hold(a));
  EXPECT_CU(cuGreenCtxRecordEvent(green, e));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(e));
  EXPECT_CU(cuCtxWaitEvent(primary, e));  // every stream of the context
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(b));
  EXPECT_CU(cuEventQuery(e));
  EXPECT_CU(cuCtxRecordEvent(primary, e));
  EXPECT_CU(cuGreenCtxWaitEvent(green, e));
  EXPECT_CU(cuStreamSynchronize(a));
  ASSERT_CU(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent(primary, e));
  CUgraph graph;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(b, &graph));
}

// A green context as a context has no work of its own.
TEST_F(Green, DoesNotDisturbCallsThatWaitForAllContexts) {
  make(all);
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  size_t bytes = 0;
  CUmemGenericAllocationHandle memory;
  CUdeviceptr at;
  ASSERT_CU(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ASSERT_CU(cuMemCreate(&memory, bytes, &prop, 0));
  ASSERT_CU(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  ASSERT_CU(cuMemMap(at, bytes, 0, memory, 0));
  EXPECT_CU(cuMemUnmap(at, bytes));
  EXPECT_CU(cuMemRelease(memory));
  EXPECT_CU(cuMemAddressFree(at, bytes));
  EXPECT_CU(cuCheckpointProcessLock(getpid(), nullptr));
  EXPECT_CU(cuCheckpointProcessUnlock(getpid(), nullptr));
}

TEST_F(Green, OccupancyOfClusters) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {4, 1, 1};
  CUlaunchConfig config = {};
  config.gridDimX = 8, config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 1024, config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0, size = 0;
  EXPECT_CU(cuOccupancyMaxActiveClusters(&clusters, spin, &config));
  EXPECT_EQ(clusters, 2);  // two blocks on each of four SMs
  EXPECT_CU(cuOccupancyMaxPotentialClusterSize(&size, spin, &config));
  EXPECT_EQ(size, 8);
  attribute.value.clusterDim.x = 16;
  EXPECT_EQ(CUDA_ERROR_INVALID_CLUSTER_SIZE, cuOccupancyMaxActiveClusters(&clusters, spin, &config));
}

// Each block stores its rank in its cluster.
constexpr char kRanks[] = R"(.version 8.0
.target sm_90
.address_size 64
.visible .entry ranks(.param .u64 p)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %cluster_ctarank;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r2;
  ret;
}
.visible .entry fixed() .explicitcluster .reqnctapercluster 2, 3 { ret; }
.visible .entry any() .explicitcluster { ret; }
)";

TEST_F(Green, ClustersReachTheKernel) {
  CUmodule ranks_module;
  CUfunction ranks;
  ASSERT_CU(cuModuleLoadData(&ranks_module, kRanks));
  ASSERT_CU(cuModuleGetFunction(&ranks, ranks_module, "ranks"));
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {4, 1, 1};
  CUlaunchConfig config = {};
  config.gridDimX = 8, config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute, config.numAttrs = 1;
  void* params[] = {&p};
  EXPECT_CU(cuLaunchKernelEx(&config, ranks, params, nullptr));
  uint32_t got[8];
  EXPECT_CU(cuMemcpyDtoH(got, p, sizeof got));
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(got[i], i % 4);
  attribute.value.clusterDim.x = 3;  // the grid is no multiple of it
  EXPECT_EQ(CUDA_ERROR_INVALID_CLUSTER_SIZE, cuLaunchKernelEx(&config, ranks, params, nullptr));
  attribute.value.clusterDim.x = 16, config.gridDimX = 16;  // not portable, must be allowed first
  EXPECT_EQ(CUDA_ERROR_INVALID_CLUSTER_SIZE, cuLaunchKernelEx(&config, ranks, params, nullptr));

  CUfunction fixed, any;
  ASSERT_CU(cuModuleGetFunction(&fixed, ranks_module, "fixed"));
  ASSERT_CU(cuModuleGetFunction(&any, ranks_module, "any"));
  int height = 0, must_be_set = 0;
  EXPECT_CU(cuFuncGetAttribute(&height, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, fixed));
  EXPECT_EQ(height, 3);
  EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED,
            cuFuncSetAttribute(fixed, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 3));
  EXPECT_CU(cuFuncGetAttribute(&must_be_set, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, any));
  EXPECT_EQ(must_be_set, 1);
  EXPECT_EQ(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            cuLaunchKernel(any, 4, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  attribute.value.clusterDim.x = 2;
  EXPECT_CU(cuLaunchKernelEx(&config, any, nullptr, nullptr));
  EXPECT_CU(cuLaunchKernel(fixed, 4, 3, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

}  // namespace
}  // namespace softgpu_driver_test
