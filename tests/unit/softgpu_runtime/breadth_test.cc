// Arrays, surfaces, several devices and generic graph nodes through the runtime, from plain C++. Run with two
// devices. The same file is linked with the shared library and with the static one.
// Deprecated functions are part of what is tested.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace {

#define OK(call) ASSERT_EQ(cudaGetErrorName(call), cudaGetErrorName(cudaSuccess))

constexpr cudaChannelFormatDesc kWords{32, 0, 0, 0, cudaChannelFormatKindUnsigned};
constexpr cudaChannelFormatDesc kFloats2{32, 32, 0, 0, cudaChannelFormatKindFloat};

class Breadth : public testing::Test {
 protected:
  void SetUp() override { OK(cudaSetDevice(0)); }
  void TearDown() override { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }
};

TEST_F(Breadth, ArraysKeepWhatIsCopiedIntoThem) {
  cudaArray_t array = nullptr;
  OK(cudaMallocArray(&array, &kWords, 8, 4));
  cudaChannelFormatDesc desc;
  cudaExtent extent;
  unsigned flags = 1;
  OK(cudaArrayGetInfo(&desc, &extent, &flags, array));
  EXPECT_EQ(desc.x, 32);
  EXPECT_EQ(desc.f, cudaChannelFormatKindUnsigned);
  EXPECT_EQ(extent.width, 8u);
  EXPECT_EQ(extent.height, 4u);
  std::vector<unsigned> in(32), out(32);
  std::iota(in.begin(), in.end(), 1u);
  OK(cudaMemcpy2DToArray(array, 0, 0, in.data(), 32, 32, 4, cudaMemcpyHostToDevice));
  OK(cudaMemcpy2DFromArrayAsync(out.data(), 16, array, 8, 1, 16, 2, cudaMemcpyDeviceToHost, nullptr));
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(out[0], 11u);
  EXPECT_EQ(out[4], 19u);
  OK(cudaMemcpyFromArray(out.data(), array, 4, 3, 8, cudaMemcpyDeviceToHost));
  EXPECT_EQ(out[0], 26u);
  cudaMemcpy3DParms p{};  // in elements, since an array takes part
  p.srcArray = array, p.srcPos = {2, 1, 0};
  p.dstPtr = {out.data(), 12, 3, 2};
  p.extent = {3, 2, 1}, p.kind = cudaMemcpyDeviceToHost;
  OK(cudaMemcpy3D(&p));
  EXPECT_EQ(out[0], 11u);
  EXPECT_EQ(out[3], 19u);
  p.extent.width = 8;  // beyond the array
  EXPECT_EQ(cudaMemcpy3D(&p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy2DToArray(array, 0, 0, in.data(), 16, 32, 4, cudaMemcpyHostToDevice),
            cudaErrorInvalidPitchValue);
  const cudaChannelFormatDesc uneven{32, 8, 0, 0, cudaChannelFormatKindFloat};
  cudaArray_t none;
  EXPECT_EQ(cudaMallocArray(&none, &uneven, 8, 4), cudaErrorInvalidChannelDescriptor);
  cudaGetLastError();
  OK(cudaFreeArray(array));
}

TEST_F(Breadth, SurfacesAndLevelsSayWhatTheyAre) {
  cudaArray_t array = nullptr;
  OK(cudaMalloc3DArray(&array, &kFloats2, {16, 16, 0}, cudaArraySurfaceLoadStore));
  cudaResourceDesc resource{}, resource_back{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaSurfaceObject_t surface = 0;
  OK(cudaCreateSurfaceObject(&surface, &resource));
  OK(cudaGetSurfaceObjectResourceDesc(&resource_back, surface));
  EXPECT_EQ(resource_back.resType, cudaResourceTypeArray);
  EXPECT_EQ(resource_back.res.array.array, array);
  OK(cudaDestroySurfaceObject(surface));
  cudaMipmappedArray_t mipmap = nullptr;
  cudaArray_t level = nullptr;
  cudaExtent extent;
  OK(cudaMallocMipmappedArray(&mipmap, &kWords, {16, 8, 0}, 3));
  OK(cudaGetMipmappedArrayLevel(&level, mipmap, 2));
  OK(cudaArrayGetInfo(nullptr, &extent, nullptr, level));
  EXPECT_EQ(extent.width, 4u);
  OK(cudaFreeMipmappedArray(mipmap));
  OK(cudaFreeArray(array));
}

TEST_F(Breadth, TwoDevices) {
  int count = 0, can = 0, device = -1;
  OK(cudaGetDeviceCount(&count));
  ASSERT_EQ(count, 2);
  OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  unsigned* on[2];
  for (int i = 0; i < 2; ++i) {
    OK(cudaSetDevice(i));
    OK(cudaGetDevice(&device));
    EXPECT_EQ(device, i);
    OK(cudaMalloc(reinterpret_cast<void**>(&on[i]), 256));
    OK(cudaMemset(on[i], i + 1, 256));
    OK(cudaDeviceSynchronize());
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, on[i]));
    EXPECT_EQ(attributes.device, i);
  }
  OK(cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
  OK(cudaDeviceDisablePeerAccess(0));
  EXPECT_EQ(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled);
  cudaGetLastError();
  OK(cudaMemcpyPeer(on[0], 0, on[1], 1, 128));
  unsigned words[64];
  OK(cudaMemcpy(words, on[0], 256, cudaMemcpyDefault));
  EXPECT_EQ(words[0], 0x02020202u);
  EXPECT_EQ(words[63], 0x01010101u);
  cudaMemcpy3DPeerParms p{};
  p.srcPtr = {on[0] + 32, 64, 64, 2}, p.srcDevice = 0;
  p.dstPtr = {on[1], 64, 64, 2}, p.dstDevice = 1;
  p.extent = {64, 2, 1};
  OK(cudaMemcpy3DPeer(&p));
  OK(cudaMemcpy(words, on[1], 256, cudaMemcpyDefault));
  EXPECT_EQ(words[31], 0x01010101u);
  EXPECT_EQ(words[32], 0x02020202u);
  cudaMemLocation second{cudaMemLocationTypeDevice, 1};
  cudaMemPool_t pool = nullptr, same = nullptr;
  OK(cudaMemGetDefaultMemPool(&pool, &second, cudaMemAllocationTypePinned));
  OK(cudaDeviceGetDefaultMemPool(&same, 1));
  EXPECT_EQ(pool, same);
  cudaEvent_t done;
  OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  OK(cudaEventRecord(done));
  OK(cudaSetDevice(0));
  OK(cudaStreamWaitEvent(cudaStreamPerThread, done, 0));
  OK(cudaStreamSynchronize(cudaStreamPerThread));
  const cudaAtomicOperation add = cudaAtomicOperationIntegerAdd;
  unsigned native = 0, over_bus = 1;
  OK(cudaDeviceGetP2PAtomicCapabilities(&native, &add, 1, 0, 1));
  OK(cudaDeviceGetHostAtomicCapabilities(&over_bus, &add, 1, 0));
  EXPECT_NE(native, 0u);
  EXPECT_EQ(over_bus, 0u);
}

TEST_F(Breadth, GenericGraphNodes) {
  unsigned* memory = nullptr;
  OK(cudaMalloc(reinterpret_cast<void**>(&memory), 64));
  cudaGraph_t graph;
  cudaGraphNode_t set, copy, branch;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNodeParams p{};
  p.type = cudaGraphNodeTypeMemset;
  p.memset.dst = memory, p.memset.value = 5, p.memset.elementSize = 4, p.memset.width = 4,
  p.memset.height = 1;
  OK(cudaGraphAddNode(&set, graph, nullptr, nullptr, 0, &p));
  unsigned out[4] = {};
  p = {};
  p.type = cudaGraphNodeTypeMemcpy;
  p.memcpy.copyParams.srcPtr = {memory, 16, 16, 1}, p.memcpy.copyParams.dstPtr = {out, 16, 16, 1};
  p.memcpy.copyParams.extent = {16, 1, 1}, p.memcpy.copyParams.kind = cudaMemcpyDeviceToHost;
  OK(cudaGraphAddNode(&copy, graph, &set, nullptr, 1, &p));
  cudaGraphConditionalHandle handle;
  OK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  p = {};
  p.type = cudaGraphNodeTypeConditional;
  p.conditional.handle = handle, p.conditional.type = cudaGraphCondTypeIf, p.conditional.size = 1;
  OK(cudaGraphAddNode(&branch, graph, &copy, nullptr, 1, &p));
  ASSERT_NE(p.conditional.phGraph_out, nullptr);
  cudaGraph_t body = p.conditional.phGraph_out[0];
  p = {};
  p.type = cudaGraphNodeTypeMemset;
  p.memset.dst = memory, p.memset.value = 9, p.memset.elementSize = 4, p.memset.width = 4,
  p.memset.height = 1;
  cudaGraphNode_t inside;
  OK(cudaGraphAddNode(&inside, body, nullptr, nullptr, 0, &p));
  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, nullptr));
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(out[3], 5u);
  unsigned now = 0;
  OK(cudaMemcpy(&now, memory, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(now, 9u);
  p.memset.value = 7;
  OK(cudaGraphExecNodeSetParams(exec, set, &p));
  OK(cudaGraphLaunch(exec, nullptr));
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(out[0], 7u);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaFree(memory));
}

TEST_F(Breadth, SharedMemoryBanksAndWhatIsMissing) {
  cudaSharedMemConfig config = cudaSharedMemBankSizeEightByte;
  OK(cudaDeviceGetSharedMemConfig(&config));
  EXPECT_EQ(config, cudaSharedMemBankSizeFourByte);
  OK(cudaDeviceSetSharedMemConfig(cudaSharedMemBankSizeDefault));
  cudaExternalMemory_t memory;
  cudaExternalMemoryHandleDesc desc{};
  EXPECT_EQ(cudaImportExternalMemory(&memory, &desc), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
}

}  // namespace
