// Memory of processes, and limits: the hooks with the software GPU behind them, whose own figures are the oracle, and
// the daemon's side played by the test.
#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "base/units.h"
#include "interpose/memory/memory.h"
#include "interpose/track/track.h"
#include "tests/support/eventually.h"
#include "tests/unit/interpose/soft.h"

namespace tessera::test {
namespace {

using driver_api::real;
constexpr uint64_t kMiB = base::kMiB;
constexpr uint64_t kPieceBytes = 2 * kMiB;  // granularity of physical memory

using Table = abi::MemoryTable;
Table* g_table = nullptr;
uint64_t g_limit_bytes = 0;  // as the daemon grants it: all at once
bool g_hangs = false;

// Stands for tesserad when it is woken.
void daemon_answers() noexcept {
  if (g_hangs) return;
  for (abi::MemoryDevice& row : g_table->devices) {
    if (row.ready == 0 || row.question == row.answered) continue;
    static constinit uint64_t granted = 0;
    if (row.limit_bytes == 0) granted = 0;
    std::atomic_ref<int64_t> left(row.left_bytes);
    row.limit_bytes = g_limit_bytes;
    if (g_limit_bytes > granted) {
      left += int64_t(g_limit_bytes - granted);
      granted = g_limit_bytes;
    }
    row.refused = left < int64_t(row.wanted_bytes);
    row.free_bytes = uint64_t(std::max<int64_t>(0, left));
    std::atomic_ref(row.answered).store(row.question, std::memory_order_release);
  }
}

class Memory : public Soft {
 public:
  void SetUp() override {
    Soft::SetUp();
    g_table = new Table();  // leaked: as an attachment
    g_limit_bytes = 0;
    g_hangs = false;
    memory::adopt(g_table, 50, daemon_answers);
    before_ = held();
  }
  void TearDown() override {
    EXPECT_EQ(figures().used_bytes, 0u);
    EXPECT_EQ(figures().managed_bytes, 0u);
    EXPECT_EQ(held(), before_) << "and the driver holds nothing";
    memory::withdraw();
    Soft::TearDown();
  }

  static uint64_t held() {  // by the driver's own figures
    size_t free = 0, total = 0;
    EXPECT_EQ(real().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return total - free;
  }
  static memory::Figures figures() {
    const memory::Lock lock(memory::g_books);
    return memory::books().of(0);
  }
  static uint64_t used() { return figures().used_bytes; }
  static memory::Ties ties() {
    const memory::Lock lock(memory::g_books);
    return memory::books().ties();
  }
  static const abi::MemoryDevice& row() { return g_table->devices[0]; }

  // A limit of that many bytes more than what is used, and the row that the daemon needs for it.
  void limit(uint64_t bytes) {
    g_limit_bytes = bytes;
    CUdeviceptr p = 0;
    ASSERT_EQ(hook_cuMemAlloc_v2(&p, 1), CUDA_SUCCESS);
    ASSERT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
    std::atomic_ref(g_table->devices[0].limit_bytes).store(bytes);  // as after a reload
  }
  uint64_t before_ = 0;
};

CUmemAllocationProp on_device() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return prop;
}

// One way to device memory: takes about `bytes` (a multiple of kPieceBytes), and gives it back.
struct Way {
  const char* name;
  uint64_t overhead_bytes;  // at most
  std::function<CUresult(uint64_t bytes, std::function<void()>* give_back)> take;
};

template <class Handle>
std::function<void()> freeing(CUresult (*hook)(Handle) noexcept, Handle handle) {
  return [=] { EXPECT_EQ(hook(handle), CUDA_SUCCESS); };
}

CUresult pooled(CUresult result, CUdeviceptr p, bool in_order, std::function<void()>* back) {
  *back = [=] {
    EXPECT_EQ(in_order ? hook_cuMemFreeAsync(p, nullptr) : hook_cuMemFree_v2(p), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  };
  return result;
}

CUmemoryPool own_pool() {
  static CUmemoryPool pool = [] {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool made = nullptr;
    EXPECT_EQ(hook_cuMemPoolCreate(&made, &props), CUDA_SUCCESS);
    return made;
  }();
  return pool;
}

std::vector<Way> ways() {
  return {
      {"cuMemAlloc", 0,
       [](uint64_t n, auto* back) {
         CUdeviceptr p = 0;
         const CUresult r = hook_cuMemAlloc_v2(&p, n);
         *back = freeing<CUdeviceptr>(hook_cuMemFree_v2, p);
         return r;
       }},
      {"cuMemAllocPitch", 0,
       [](uint64_t n, auto* back) {
         CUdeviceptr p = 0;
         size_t pitch = 0;
         const CUresult r = hook_cuMemAllocPitch_v2(&p, &pitch, 4096, n / 4096, 4);
         *back = freeing<CUdeviceptr>(hook_cuMemFree_v2, p);
         return r;
       }},
      {"cuMemAllocAsync", 0,
       [](uint64_t n, auto* back) {
         CUdeviceptr p = 0;
         const CUresult r = hook_cuMemAllocAsync(&p, n, nullptr);
         return pooled(r, p, true, back);
       }},
      {"cuMemAllocAsync_ptsz, cuMemFree", 0,
       [](uint64_t n, auto* back) {
         CUdeviceptr p = 0;
         const CUresult r = hook_cuMemAllocAsync_ptsz(&p, n, nullptr);
         return pooled(r, p, false, back);
       }},
      {"cuMemAllocFromPoolAsync", 0,
       [](uint64_t n, auto* back) {
         CUdeviceptr p = 0;
         const CUresult r = hook_cuMemAllocFromPoolAsync(&p, n, own_pool(), nullptr);
         return pooled(r, p, true, back);
       }},
      {"cuMemCreate", 0,
       [](uint64_t n, auto* back) {
         CUmemGenericAllocationHandle h = 0;
         const CUmemAllocationProp prop = on_device();
         const CUresult r = hook_cuMemCreate(&h, n, &prop, 0);
         *back = freeing<CUmemGenericAllocationHandle>(hook_cuMemRelease, h);
         return r;
       }},
      {"cuArrayCreate", 0,
       [](uint64_t n, auto* back) {
         CUarray a = nullptr;
         const CUDA_ARRAY_DESCRIPTOR d{1024, n / 4096, CU_AD_FORMAT_FLOAT, 1};
         const CUresult r = hook_cuArrayCreate_v2(&a, &d);
         *back = freeing<CUarray>(hook_cuArrayDestroy, a);
         return r;
       }},
      {"cuArray3DCreate", 0,
       [](uint64_t n, auto* back) {
         CUarray a = nullptr;
         const CUDA_ARRAY3D_DESCRIPTOR d{256, n / (256 * 8 * 8), 8, CU_AD_FORMAT_HALF, 4, 0};
         const CUresult r = hook_cuArray3DCreate_v2(&a, &d);
         *back = freeing<CUarray>(hook_cuArrayDestroy, a);
         return r;
       }},
      {"cuMipmappedArrayCreate", kMiB,
       [](uint64_t n, auto* back) {
         CUmipmappedArray a = nullptr;
         const CUDA_ARRAY3D_DESCRIPTOR d{1024, n / 4096, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
         const CUresult r = hook_cuMipmappedArrayCreate(&a, &d, 1);
         *back = freeing<CUmipmappedArray>(hook_cuMipmappedArrayDestroy, a);
         return r;
       }},
  };
}

// Released whatever call frees it: 2, 7 and 9 of the acceptance tests of memory are here, too.
TEST_F(Memory, EveryWayIsChargedWhenAndByHowMuchTheDriverHolds) {
  for (const Way& way : ways()) {
    std::function<void()> give_back;
    const uint64_t held_before = held();
    ASSERT_EQ(way.take(4 * kMiB, &give_back), CUDA_SUCCESS) << way.name;
    EXPECT_GE(used(), 4 * kMiB) << way.name;
    EXPECT_EQ(used(), held() - held_before) << way.name;
    EXPECT_EQ(row().used_bytes, used()) << way.name << ": what the daemon sees";
    give_back();
    EXPECT_EQ(used(), 0u) << way.name;
    EXPECT_EQ(held(), held_before) << way.name;
  }
  EXPECT_GE(figures().peak_bytes, 4 * kMiB);
  EXPECT_EQ(row().refusals, 0u);
}

TEST_F(Memory, BeyondALimitEveryWayIsRefusedAndNothingIsAllocated) {
  limit(8 * kMiB);
  uint64_t refusals = 0;
  for (const Way& way : ways()) {
    std::function<void()> give_back, not_needed;
    ASSERT_EQ(way.take(6 * kMiB, &give_back), CUDA_SUCCESS) << way.name;
    const uint64_t held_before = held();
    EXPECT_EQ(way.take(4 * kMiB, &not_needed), CUDA_ERROR_OUT_OF_MEMORY) << way.name;
    EXPECT_EQ(held(), held_before) << way.name;
    EXPECT_EQ(row().refusals, ++refusals) << way.name;
    ASSERT_EQ(way.take(2 * kMiB, &not_needed), CUDA_SUCCESS) << way.name << ": what is left";
    not_needed();
    give_back();
    ASSERT_EQ(way.take(8 * kMiB, &give_back), CUDA_SUCCESS) << way.name << ": all is there again";
    give_back();
  }
}

// Their length is the driver's choice.
TEST_F(Memory, BeyondALimitRowsAreRefusedThatAreLongerThanWhatWasAskedFor) {
  limit(8 * kMiB);
  constexpr size_t kWidth = 1000, kTooHigh = 8 * kMiB / kWidth;
  const uint64_t refusals = row().refusals, held_before = held();
  CUdeviceptr p = 0;
  size_t pitch = 0;
  EXPECT_EQ(hook_cuMemAllocPitch_v2(&p, &pitch, kWidth, kTooHigh, 4), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_GT(pitch, kWidth);
  EXPECT_EQ(held(), held_before);
  EXPECT_EQ(row().refusals, refusals + 1);
  ASSERT_EQ(hook_cuMemAllocPitch_v2(&p, &pitch, kWidth, 8 * kMiB / pitch, 4), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
}

TEST_F(Memory, BeyondALimitAGraphIsRefusedWhatItWouldAllocate) {
  limit(8 * kMiB);
  CUgraph graph = nullptr;
  ASSERT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytesize = 9 * kMiB;
  CUgraphNode node = nullptr;
  EXPECT_EQ(hook_cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params), CUDA_ERROR_OUT_OF_MEMORY);
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  any.alloc.poolProps = params.poolProps;
  any.alloc.bytesize = params.bytesize;
  EXPECT_EQ(hook_cuGraphAddNode(&node, graph, nullptr, 0, &any), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
}

// 2, within a capture, which goes on after the refusal.
TEST_F(Memory, BeyondALimitACaptureIsRefusedWhatItsGraphWouldAllocate) {
  limit(8 * kMiB);
  CUstream stream = new_stream();
  const uint64_t refusals = row().refusals, held_before = held();
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr p = 0;
  EXPECT_EQ(hook_cuMemAllocAsync(&p, 9 * kMiB, stream), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuMemAllocFromPoolAsync(&p, 9 * kMiB, own_pool(), stream), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(hook_cuMemAllocAsync(&p, 4 * kMiB, stream), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  size_t nodes = 0;
  EXPECT_EQ(real().cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 2u);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(row().refusals, refusals + 2);
  EXPECT_EQ(held(), held_before);
}

// 16: one answer everywhere with a limit, and the driver's own without.
TEST_F(Memory, WithALimitItIsTheDeviceWithoutOneAnswersAreTheDrivers) {
  size_t free = 0, total = 0, real_free = 0, real_total = 0, device = 0, real_device = 0;
  ASSERT_EQ(hook_cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  ASSERT_EQ(real().cuMemGetInfo_v2(&real_free, &real_total), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuDeviceTotalMem_v2(&device, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuDeviceTotalMem_v2(&real_device, 0), CUDA_SUCCESS);
  EXPECT_EQ(free, real_free);
  EXPECT_EQ(total, real_total);
  EXPECT_EQ(device, real_device);
  limit(8 * kMiB);
  CUdeviceptr p = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&p, 3 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuDeviceTotalMem_v2(&device, 0), CUDA_SUCCESS);
  EXPECT_EQ(free, 5 * kMiB);
  EXPECT_EQ(total, 8 * kMiB);
  EXPECT_EQ(device, 8 * kMiB);
  ASSERT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
}

// Nobody could keep it out before, and with the daemon may come a limit.
TEST_F(Memory, AnAllocationWaitsForTheEndOfTheAttempt) {
  memory::attaching();
  std::atomic<bool> allocated{false};
  std::thread program([&] {
    CUdeviceptr p = 0;
    EXPECT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuMemAlloc_v2(&p, kMiB), CUDA_SUCCESS);
    allocated = true;
    EXPECT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
  });
  EXPECT_FALSE(eventually([&] { return allocated.load(); }, 400));
  memory::attaching_ended();
  program.join();
}

// The daemon is told as soon as it comes of what was allocated before.
TEST_F(Memory, AnAttachmentTellsWhatWasAllocatedBefore) {
  memory::withdraw();
  CUdeviceptr p = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&p, 3 * kMiB), CUDA_SUCCESS);
  g_table = new Table();
  memory::adopt(g_table, 50, daemon_answers);
  EXPECT_EQ(row().ready, 1u);
  EXPECT_EQ(row().used_bytes, 3 * kMiB);
  EXPECT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
}

TEST_F(Memory, ADaemonThatHangsIsWaitedForOnceAndRefusesNothing) {
  limit(8 * kMiB);
  g_hangs = true;
  CUdeviceptr p = 0, more = 0;
  ASSERT_EQ(hook_cuMemAlloc_v2(&p, 12 * kMiB), CUDA_SUCCESS);
  const uint32_t question = row().question;
  ASSERT_EQ(hook_cuMemAlloc_v2(&more, 12 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(row().question, question) << "the first one is open";
  g_hangs = false;
  daemon_answers();
  CUdeviceptr beyond = 0;
  EXPECT_EQ(hook_cuMemAlloc_v2(&beyond, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemFree_v2(more), CUDA_SUCCESS);
}

// 4 and 5: physical memory lives with its last reference, and counts once however often it is mapped.
TEST_F(Memory, PhysicalMemoryCountsOnceUntilItsLastReference) {
  CUmemGenericAllocationHandle handle = 0, again = 0;
  const CUmemAllocationProp prop = on_device();
  CUdeviceptr at = 0;
  ASSERT_EQ(hook_cuMemCreate(&handle, kPieceBytes, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuMemAddressReserve(&at, 2 * kPieceBytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemMap(at, kPieceBytes, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemMap(at + kPieceBytes, kPieceBytes, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(used(), kPieceBytes);
  ASSERT_EQ(hook_cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(used(), kPieceBytes) << "mapped";
  ASSERT_EQ(hook_cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + kPieceBytes)),
            CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemUnmap(at, 2 * kPieceBytes), CUDA_SUCCESS);
  EXPECT_EQ(used(), kPieceBytes) << "retained";
  ASSERT_EQ(hook_cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
  ASSERT_EQ(real().cuMemAddressFree(at, 2 * kPieceBytes), CUDA_SUCCESS);
}

// Its import is the first that is seen of the device.
TEST_F(Memory, WhoOnlyImportsHasARow) {
  auto& slots = driver_api::mutable_real_for_tests();
  const auto before = slots;
  slots.cuCtxGetDevice = [](CUdevice* device) { return *device = 5, CUDA_SUCCESS; };
  slots.cuDeviceGetUuid_v2 = [](CUuuid* uuid, CUdevice) { return uuid->bytes[0] = 5, CUDA_SUCCESS; };
  slots.cuDeviceTotalMem_v2 = [](size_t* bytes, CUdevice) { return *bytes = kMiB, CUDA_SUCCESS; };
  slots.cuIpcOpenMemHandle_v2 = [](CUdeviceptr* p, CUipcMemHandle, unsigned) {
    return *p = kMiB, CUDA_SUCCESS;
  };
  slots.cuMemGetAddressRange_v2 = [](CUdeviceptr*, size_t* bytes, CUdeviceptr) {
    return *bytes = 64, CUDA_SUCCESS;
  };
  slots.cuIpcCloseMemHandle = [](CUdeviceptr) { return CUDA_SUCCESS; };
  const auto imported = [] {
    uint64_t bytes = 0;
    for (const abi::MemoryDevice& row : g_table->devices)
      if (row.ready != 0 && row.uuid[0] == 5) bytes += row.imported_bytes;
    return bytes;
  };
  CUdeviceptr p = 0;
  EXPECT_EQ(hook_cuIpcOpenMemHandle_v2(&p, {}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
  EXPECT_EQ(imported(), 64u);
  EXPECT_EQ(hook_cuIpcCloseMemHandle(p), CUDA_SUCCESS);
  EXPECT_EQ(imported(), 0u);
  slots = before;
}

// 6: what is imported is not the importer's; what is exported is marked.
TEST_F(Memory, ImportsAreListedAndExportsMarked) {
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  CUmemAllocationProp prop = on_device();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ASSERT_EQ(hook_cuMemCreate(&handle, kPieceBytes, &prop, 0), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(hook_cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(figures().shared_bytes, kPieceBytes);
  ASSERT_EQ(hook_cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t(fd)),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(real().cuMemAddressReserve(&at, kPieceBytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemMap(at, kPieceBytes, 0, imported, 0), CUDA_SUCCESS);
  EXPECT_EQ(figures().imported_bytes, kPieceBytes);
  EXPECT_EQ(used(), kPieceBytes) << "once, for who made it";
  ASSERT_EQ(hook_cuMemUnmap(at, kPieceBytes), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(figures().imported_bytes, 0u);
  ASSERT_EQ(hook_cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(figures().shared_bytes, 0u);
  ASSERT_EQ(real().cuMemAddressFree(at, kPieceBytes), CUDA_SUCCESS);
  close(fd);
}

// 8: a captured allocation is the graph's, once.
TEST_F(Memory, ACapturedAllocationIsTheGraphsAndTrimmedWithIt) {
  CUstream stream = new_stream();
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr p = 0;
  ASSERT_EQ(hook_cuMemAllocAsync(&p, 4 * kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemFreeAsync(p, stream), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(figures().pool_bytes, 0u);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamSynchronize(stream), CUDA_SUCCESS);
  cuuint64_t reserved = 0;
  ASSERT_EQ(real().cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved),
            CUDA_SUCCESS);
  EXPECT_EQ(figures().graph_bytes, reserved);
  EXPECT_EQ(used(), reserved) << "not the pool's, too";
  ASSERT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
}

TEST_F(Memory, WhatIsUnknownIsForwardedAndAFailureIsNotCounted) {
  EXPECT_EQ(hook_cuMemFree_v2(0x1234), real().cuMemFree_v2(0x1234));
  EXPECT_EQ(hook_cuMemRelease(0x1234), real().cuMemRelease(0x1234));
  CUdeviceptr p = 0;
  EXPECT_NE(hook_cuMemAlloc_v2(&p, uint64_t(1) << 45), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
  ASSERT_EQ(hook_cuMemAlloc_v2(&p, kMiB), CUDA_SUCCESS);
  EXPECT_NE(hook_cuMemFree_v2(p + 4096), CUDA_SUCCESS);
  EXPECT_EQ(used(), kMiB) << "nothing was freed";
  EXPECT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
}

TEST_F(Memory, ManagedAndPinnedMemoryHaveSumsOfTheirOwn) {
  CUdeviceptr managed = 0;
  void* pinned = nullptr;
  ASSERT_EQ(hook_cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemHostAlloc(&pinned, 2 * kMiB, 0), CUDA_SUCCESS);
  EXPECT_EQ(figures().managed_bytes + used(), kMiB);
  EXPECT_EQ(g_table->totals.pinned_bytes, 2 * kMiB);
  ASSERT_EQ(hook_cuMemFree_v2(managed), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(g_table->totals.pinned_bytes, 0u);
}

// The software GPU has no physical memory of the host: the two calls are played.
TEST_F(Memory, PhysicalMemoryAndPoolsOfTheHostArePinned) {
  auto& table = driver_api::mutable_real_for_tests();
  const auto before = table;
  table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                         unsigned long long) { return *handle = 0x7777, CUDA_SUCCESS; };
  table.cuMemRelease = [](CUmemGenericAllocationHandle) { return CUDA_SUCCESS; };
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(hook_cuMemCreate(&handle, kPieceBytes, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(g_table->totals.pinned_bytes, kPieceBytes);
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = host;
  CUmemoryPool pools[2] = {};
  ASSERT_EQ(hook_cuMemPoolCreate(&pools[0], &props), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemGetDefaultMemPool(&pools[1], &host, CU_MEM_ALLOCATION_TYPE_PINNED), CUDA_SUCCESS);
  CUdeviceptr p[2] = {};
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(hook_cuMemAllocFromPoolAsync(&p[i], kMiB, pools[i], nullptr), CUDA_SUCCESS);
  EXPECT_EQ(g_table->totals.pinned_bytes, kPieceBytes + 2 * kMiB);
  EXPECT_EQ(g_table->totals.untracked, 0u);
  EXPECT_EQ(used(), 0u);
  for (CUdeviceptr each : p) ASSERT_EQ(hook_cuMemFreeAsync(each, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemPoolDestroy(pools[0]), CUDA_SUCCESS);
  EXPECT_EQ(g_table->totals.pinned_bytes, kPieceBytes);
  EXPECT_EQ(hook_cuMemRelease(handle), CUDA_SUCCESS);
  table = before;
  EXPECT_EQ(g_table->totals.pinned_bytes, 0u);
}

// Allocations from such a pool count one by one. The software GPU has none: a pool of the device plays it.
TEST_F(Memory, PoolsOfManagedMemoryAreSeenAndTieTheProcess) {
  auto& table = driver_api::mutable_real_for_tests();
  static const auto create = table.cuMemPoolCreate;
  table.cuMemPoolCreate = [](CUmemoryPool* pool, const CUmemPoolProps* props) {
    CUmemPoolProps ours = *props;
    ours.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    return create(pool, &ours);
  };
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  EXPECT_FALSE(ties().managed);
  EXPECT_EQ(hook_cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  table.cuMemPoolCreate = create;
  EXPECT_TRUE(ties().managed) << "it may hold something that nobody has any more";
  CUdeviceptr p = 0, q = 0;
  ASSERT_EQ(hook_cuMemAllocFromPoolAsync(&p, kMiB, pool, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemAllocFromPoolAsync(&q, kMiB, pool, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(figures().managed_bytes, 2 * kMiB);
  EXPECT_EQ(used(), 0u);
  ASSERT_EQ(hook_cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_TRUE(ties().managed);
  ASSERT_EQ(hook_cuMemFreeAsync(p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemFree_v2(q), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(figures().managed_bytes, 0u);
  EXPECT_FALSE(ties().managed);
}

// No sum says it: such memory counts as used.
TEST_F(Memory, ManagedMemoryTiesTheProcessWhereverItCounts) {
  for (const int moves : {0, 1}) {
    auto& table = driver_api::mutable_real_for_tests();
    static const auto before = table.cuDeviceGetAttribute;
    static int answer;
    answer = moves;
    table.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice device) {
      if (attribute != CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) return before(value, attribute, device);
      return *value = answer, CUDA_SUCCESS;
    };
    CUdeviceptr managed = 0;
    EXPECT_EQ(hook_cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    table.cuDeviceGetAttribute = before;
    EXPECT_EQ(figures().managed_bytes, moves * kMiB);
    EXPECT_TRUE(ties().managed);
    ASSERT_EQ(hook_cuMemFree_v2(managed), CUDA_SUCCESS);
    EXPECT_FALSE(ties().managed);
  }
}

TEST_F(Memory, AnExportedPoolAndAnImportOfUnknownSizeTieTheProcess) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(hook_cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  EXPECT_FALSE(ties().foreign);
  int fd = -1;
  ASSERT_EQ(hook_cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  EXPECT_TRUE(ties().foreign);
  ASSERT_EQ(hook_cuMemPoolDestroy(pool), CUDA_SUCCESS);
  close(fd);
  EXPECT_FALSE(ties().foreign);
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  CUmemAllocationProp prop = on_device();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  ASSERT_EQ(real().cuMemCreate(&handle, kPieceBytes, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t(fd)),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  EXPECT_EQ(figures().imported_bytes, 0u);
  EXPECT_TRUE(ties().foreign);
  ASSERT_EQ(hook_cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_FALSE(ties().foreign);
  ASSERT_EQ(real().cuMemRelease(handle), CUDA_SUCCESS);
  close(fd);
}

// The image may be one that nobody could read: who asks for the variable's address says it, too.
TEST_F(Memory, AVariableInManagedMemoryIsSeenWhereItsAddressIsAskedFor) {
  auto& table = driver_api::mutable_real_for_tests();
  const auto before = table;
  table.cuModuleGetGlobal_v2 = [](CUdeviceptr* at, size_t*, CUmodule, const char*) {
    return *at = 64, CUDA_SUCCESS;
  };
  table.cuLibraryGetManaged = [](CUdeviceptr*, size_t*, CUlibrary, const char*) { return CUDA_SUCCESS; };
  static unsigned managed;
  table.cuPointerGetAttribute = [](void* value, CUpointer_attribute attribute, CUdeviceptr) {
    EXPECT_EQ(attribute, CU_POINTER_ATTRIBUTE_IS_MANAGED);
    return *static_cast<unsigned*>(value) = managed, CUDA_SUCCESS;
  };
  const auto& seen = track::g_has_managed_variables;
  CUdeviceptr at = 0;
  managed = 0;
  EXPECT_EQ(hook_cuModuleGetGlobal_v2(&at, nullptr, nullptr, "v"), CUDA_SUCCESS);
  EXPECT_FALSE(seen.load());
  managed = 1;
  EXPECT_EQ(hook_cuModuleGetGlobal_v2(&at, nullptr, nullptr, "v"), CUDA_SUCCESS);
  EXPECT_TRUE(track::g_has_managed_variables.exchange(false));
  EXPECT_EQ(hook_cuLibraryGetManaged(&at, nullptr, nullptr, "v"), CUDA_SUCCESS);
  EXPECT_TRUE(track::g_has_managed_variables.exchange(false));
  table = before;
}

// A GPU that shares the host's memory leaves pages no place to move to.
TEST_F(Memory, ManagedMemoryIsUsedWhereTheGpuSharesTheHosts) {
  auto& table = driver_api::mutable_real_for_tests();
  const auto before = table.cuDeviceGetAttribute;
  table.cuDeviceGetAttribute = [](int* value, CUdevice_attribute, CUdevice) {
    return *value = 1, CUDA_SUCCESS;
  };
  CUdeviceptr managed = 0;
  EXPECT_EQ(hook_cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  table.cuDeviceGetAttribute = before;
  EXPECT_EQ(used(), kMiB);
  EXPECT_EQ(figures().managed_bytes, 0u);
  ASSERT_EQ(hook_cuMemFree_v2(managed), CUDA_SUCCESS);
}

TEST_F(Memory, AGpuWhoseTotalIsUnknownHasARowAndRefusesNothing) {
  constexpr int kOther = 1;  // the first one's total is known already
  auto& table = driver_api::mutable_real_for_tests();
  const auto before = table;
  table.cuDeviceGetUuid_v2 = [](CUuuid* uuid, CUdevice) { return uuid->bytes[0] = 77, CUDA_SUCCESS; };
  table.cuDeviceTotalMem_v2 = [](size_t*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; };
  memory::Reservation reservation;
  EXPECT_TRUE(memory::reserve(kOther, kMiB, &reservation));
  memory::cancel(reservation);
  EXPECT_TRUE(memory::could_fit(kOther, uint64_t{1} << 50));
  table = before;
  const auto is_it = [](const abi::MemoryDevice& d) { return d.ready == 1 && d.uuid[0] == 77; };
  const auto* found = std::ranges::find_if(g_table->devices, is_it);
  ASSERT_NE(found, std::end(g_table->devices));
  EXPECT_EQ(found->total_bytes, 0u);
}

TEST_F(Memory, WhatAContextOwnsGoesWithIt) {
  CUcontext own = nullptr;
  CUdeviceptr p = 0;
  ASSERT_EQ(hook_cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemAlloc_v2(&p, kMiB), CUDA_SUCCESS);
  EXPECT_EQ(used(), kMiB);
  ASSERT_EQ(hook_cuCtxDestroy_v2(own), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
}

// 1: whatever is done in whatever order, the books say what the driver holds.
TEST_F(Memory, WhatAPoolHasOfAContextGoesWithIt) {
  CUcontext own = nullptr;
  CUstream s = nullptr;
  CUdeviceptr p = 0;
  ASSERT_EQ(hook_cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuMemAllocAsync(&p, kMiB, s), CUDA_SUCCESS);
  EXPECT_GE(used(), kMiB);
  ASSERT_EQ(hook_cuCtxDestroy_v2(own), CUDA_SUCCESS);
  EXPECT_EQ(used(), held() - before_);
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
}

// It is the primary context's, whose face a green context is.
TEST_F(Memory, WhatAGreenContextAllocatedGoesWithThePrimaryOne) {
  CUdevResource sms{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext face = nullptr;
  CUdeviceptr p = 0;
  const auto allocate = [&] {
    ASSERT_EQ(real().cuDeviceGetDevResource(0, &sms, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    ASSERT_EQ(real().cuDevResourceGenerateDesc(&description, &sms, 1), CUDA_SUCCESS);
    ASSERT_EQ(hook_cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    ASSERT_EQ(real().cuCtxFromGreenCtx(&face, green), CUDA_SUCCESS);
    ASSERT_EQ(hook_cuCtxSetCurrent(face), CUDA_SUCCESS);
    ASSERT_EQ(hook_cuMemAlloc_v2(&p, kMiB), CUDA_SUCCESS);
  };
  allocate();
  ASSERT_EQ(hook_cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(used(), kMiB);
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(held(), before_ + kMiB);
  ASSERT_EQ(hook_cuMemFree_v2(p), CUDA_SUCCESS);
  allocate();
  ASSERT_EQ(hook_cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
  ASSERT_EQ(hook_cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
}

TEST_F(Memory, TenThousandRandomOperationsAgreeWithTheDriverAfterEach) {
  std::mt19937 random(7);
  const std::vector<Way> all = ways();
  std::vector<std::function<void()>> live;
  const uint64_t base_bytes = held();
  for (int i = 0; i < 10'000; ++i) {
    if (live.size() < 24 && (live.empty() || random() % 2 == 0)) {
      std::function<void()> give_back;
      const Way& way = all[random() % all.size()];
      if (way.take((1 + random() % 4) * kPieceBytes, &give_back) == CUDA_SUCCESS)
        live.push_back(std::move(give_back));
    } else {
      std::swap(live[random() % live.size()], live.back());
      live.back()();
      live.pop_back();
    }
    ASSERT_EQ(used(), held() - base_bytes) << i;
  }
  for (auto& give_back : live) give_back();
}

}  // namespace
}  // namespace tessera::test
