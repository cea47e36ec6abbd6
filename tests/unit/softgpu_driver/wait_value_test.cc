// Streams that wait for a value in memory: every comparison, every kind of memory, words that another process writes,
// and hundreds of streams that wait at once.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

constexpr size_t kPageBytes = 4096;

struct Mapping {
  Mapping(int fd, int flags) : at(mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0)) {
    EXPECT_NE(MAP_FAILED, at);
  }
  ~Mapping() { munmap(at, kPageBytes); }
  Mapping(const Mapping&) = delete;
  void* at;
};

int memory_file() {
  const int fd = memfd_create("wait_value_test", MFD_CLOEXEC);
  EXPECT_EQ(0, ftruncate(fd, kPageBytes));
  return fd;
}

struct Comparison {
  unsigned bits, flags;
  uint64_t value, closed, open;
};
constexpr Comparison kComparisons[] = {
    {32, CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 5},
    {32, CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
    {32, CU_STREAM_WAIT_VALUE_GEQ, 5, 0xfffffff0, 5},  // a signed difference
    {32, CU_STREAM_WAIT_VALUE_GEQ, 0xfffffff0, 0xffffffef, 2},
    {32, CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
    {32, CU_STREAM_WAIT_VALUE_AND, 6, 9, 2},
    {32, CU_STREAM_WAIT_VALUE_NOR, 0xfffffff0, 15, 14},
    {32, CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_FLUSH, 5, 4, 5},
    {64, CU_STREAM_WAIT_VALUE_GEQ, uint64_t(5) << 32, uint64_t(4) << 32, uint64_t(6) << 32},
    {64, CU_STREAM_WAIT_VALUE_GEQ, 5, ~uint64_t(0), 5},
    {64, CU_STREAM_WAIT_VALUE_EQ, uint64_t(1) << 40, 1, uint64_t(1) << 40},
    {64, CU_STREAM_WAIT_VALUE_AND, uint64_t(1) << 40, 1, uint64_t(3) << 40},
    {64, CU_STREAM_WAIT_VALUE_NOR, ~uint64_t(0) >> 1, uint64_t(1) << 63, 1},
};

class WaitValue : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    ASSERT_CU(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuMemHostAlloc(&host, kPageBytes, CU_MEMHOSTALLOC_DEVICEMAP));
    std::memset(host, 0, kPageBytes);
  }
  static void store(void* word, uint64_t value, unsigned bits) {
    if (bits == 32)
      std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(word)).store(uint32_t(value));
    else
      std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(word)).store(value);
  }
  CUdeviceptr registered(void* at) {
    CUdeviceptr device = 0;
    EXPECT_CU(cuMemHostRegister(at, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    EXPECT_CU(cuMemHostGetDevicePointer(&device, at, 0));
    return device;
  }
  static CUresult wait(CUstream stream, CUdeviceptr word, const Comparison& row) {
    return row.bits == 32 ? cuStreamWaitValue32(stream, word, uint32_t(row.value), row.flags)
                          : cuStreamWaitValue64(stream, word, row.value, row.flags);
  }
  // Works in another stream meanwhile, often enough that a wait which does not hold would have ended.
  void work_elsewhere() {
    for (int i = 0; i < 3; ++i) {
      EXPECT_CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(host) + 64, 1, 64, other));
      EXPECT_CU(cuStreamSynchronize(other));
    }
  }
  size_t threads() {
    size_t n = 0;
    for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++n;
    return n;
  }

  CUstream waiting = nullptr, other = nullptr;
  void* host = nullptr;
};

// `write` changes the word of that memory as the host or the device would.
template <class Write>
void all_rows(CUstream stream, CUdeviceptr word, CUresult (*wait)(CUstream, CUdeviceptr, const Comparison&),
              const Write& write, const std::function<void()>& meanwhile) {
  for (const Comparison& row : kComparisons) {
    SCOPED_TRACE(testing::Message() << row.bits << " bits, flags " << row.flags << ", value " << row.value);
    write(row.closed, row.bits);
    ASSERT_CU(wait(stream, word, row));
    meanwhile();
    EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    write(row.open, row.bits);
    EXPECT_CU(cuStreamSynchronize(stream));
  }
}

TEST_F(WaitValue, ComparesWordsOfHostMemory) {
  Mapping anonymous(-1, MAP_PRIVATE | MAP_ANONYMOUS), shared(-1, MAP_SHARED | MAP_ANONYMOUS);
  Mapping file(memory_file(), MAP_SHARED);
  for (void* memory : {host, anonymous.at, shared.at, file.at}) {
    const CUdeviceptr word = memory == host ? reinterpret_cast<CUdeviceptr>(host) : registered(memory);
    all_rows(
        waiting, word, wait, [&](uint64_t value, unsigned bits) { store(memory, value, bits); },
        [&] { work_elsewhere(); });
  }
}

TEST_F(WaitValue, ComparesWordsOfDeviceMemory) {
  const CUdeviceptr word = alloc(kPageBytes);
  all_rows(
      waiting, word, wait,
      [&](uint64_t value, unsigned bits) {
        EXPECT_CU(bits == 32 ? cuStreamWriteValue32(other, word, uint32_t(value), 0)
                             : cuStreamWriteValue64(other, word, value, 0));
        EXPECT_CU(cuStreamSynchronize(other));
      },
      [&] { work_elsewhere(); });
}

TEST_F(WaitValue, EveryVersionOfTheCalls) {
  const CUdeviceptr word = reinterpret_cast<CUdeviceptr>(host);
  for (const char* bits : {"32", "64"})
    for (const char* version : {"", "_v2", "_ptsz", "_v2_ptsz"}) {
      const std::string name = std::string("cuStreamWaitValue") + bits + version;
      SCOPED_TRACE(name);
      void* call = dlsym(RTLD_DEFAULT, name.c_str());
      ASSERT_NE(nullptr, call);
      store(host, 1, 64);
      if (bits[0] == '3')
        EXPECT_CU(reinterpret_cast<decltype(&cuStreamWaitValue32)>(call)(waiting, word, 2, 0));
      else
        EXPECT_CU(reinterpret_cast<decltype(&cuStreamWaitValue64)>(call)(waiting, word, 2, 0));
      EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
      store(host, 2, 64);
      EXPECT_CU(cuStreamSynchronize(waiting));
    }
}

TEST_F(WaitValue, SeesAStoreOfAnotherProcess) {
  Mapping file(memory_file(), MAP_SHARED);
  const CUdeviceptr word = registered(file.at);
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_CU(cuStreamWaitValue64(waiting, word, round, CU_STREAM_WAIT_VALUE_GEQ));
    EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
    const pid_t child = fork();
    if (child == 0) {
      *static_cast<volatile uint64_t*>(file.at) = round;
      _exit(0);
    }
    EXPECT_CU(cuStreamSynchronize(waiting));
    waitpid(child, nullptr, 0);
  }
}

// A gate may stay closed for long in front of every stream of a program: that takes no thread for each of them, and
// all go on when it opens.
TEST_F(WaitValue, ManyWaitingStreamsShareAThread) {
  constexpr int kStreams = 300;
  const CUdeviceptr word = reinterpret_cast<CUdeviceptr>(host), p = alloc(kStreams * 4);
  EXPECT_CU(cuMemsetD32(p, 0, kStreams));
  const size_t before = threads();
  std::vector<CUstream> streams(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_CU(cuStreamCreate(&streams[size_t(i)], CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuStreamWaitValue64(streams[size_t(i)], word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    EXPECT_CU(cuMemsetD32Async(p + uint64_t(i) * 4, 8, 1, streams[size_t(i)]));
  }
  CUcontext second;  // another context is not held up
  CUstream free_stream;
  ASSERT_CU(cuCtxCreate(&second, nullptr, 0, 0));
  ASSERT_CU(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
  EXPECT_LE(threads(), before + 8);
  bool ran = false;
  if (!HasFailure()) {
    EXPECT_CU(cuLaunchHostFunc(
        free_stream, [](void* to) { *static_cast<bool*>(to) = true; }, &ran));
    EXPECT_CU(cuStreamSynchronize(free_stream));
    EXPECT_TRUE(ran);
  }
  for (CUstream stream : streams) EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_CU(cuCtxDestroy(second));
  store(host, 1, 64);
  for (CUstream stream : streams) EXPECT_CU(cuStreamSynchronize(stream));
  EXPECT_EQ(std::vector<uint32_t>(kStreams, 8), read(p, kStreams));
}

TEST_F(WaitValue, ContextWithManyWaitingStreamsCanBeDestroyed) {
  for (int i = 0; i < 64; ++i) {
    CUstream stream;
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuStreamWaitValue64(stream, reinterpret_cast<CUdeviceptr>(host), 1, CU_STREAM_WAIT_VALUE_GEQ));
    EXPECT_CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(host) + 64, 1, 1, stream));
  }
  EXPECT_CU(cuCtxDestroy(context));
  context = nullptr;
}

// The order of a batch is kept across the waits in it.
TEST_F(WaitValue, BatchGoesOnWhereItWaited) {
  auto* words = static_cast<volatile uint64_t*>(host);
  const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(host);
  CUstreamBatchMemOpParams ops[4] = {};
  for (int i = 0; i < 2; ++i) {
    ops[2 * i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    ops[2 * i].waitValue.address = at + uint64_t(i) * 16;
    ops[2 * i].waitValue.value64 = 1;
    ops[2 * i + 1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[2 * i + 1].writeValue.address = at + uint64_t(i) * 16 + 8;
    ops[2 * i + 1].writeValue.value64 = 7;
  }
  ASSERT_CU(cuStreamBatchMemOp(waiting, 4, ops, 0));
  words[0] = 1;
  while (words[1] != 7) work_elsewhere();
  words[0] = 0;  // it does not ask again
  work_elsewhere();
  EXPECT_EQ(0u, words[3]);
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
  words[2] = 1;
  EXPECT_CU(cuStreamSynchronize(waiting));
  EXPECT_EQ(7u, words[3]);
}

// The H200's driver pinned some of these mappings and refused others (2026-11-27).
TEST_F(WaitValue, OrdinaryFilesCannotBeRegistered) {
  char path[] = "wait_value_test.XXXXXX";  // in the build folder: /tmp may lie in memory
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(0, ftruncate(fd, kPageBytes));
  unlink(path);
  Mapping shared(fd, MAP_SHARED), copied(fd, MAP_PRIVATE);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(shared.at, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  EXPECT_CU(cuMemHostRegister(copied.at, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  EXPECT_CU(cuMemHostUnregister(copied.at));
  Mapping gap(-1, MAP_PRIVATE | MAP_ANONYMOUS);
  munmap(gap.at, kPageBytes);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(gap.at, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
}

TEST_F(WaitValue, Attributes) {
  const struct {
    CUdevice_attribute attribute;
    int value;
  } rows[] = {{CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0},
              {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 0},
              {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 0},
              {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
              {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1}};
  for (const auto& row : rows) {
    int value = -1;
    EXPECT_CU(cuDeviceGetAttribute(&value, row.attribute, 0));
    EXPECT_EQ(row.value, value) << row.attribute;
  }
}

}  // namespace
}  // namespace softgpu_driver_test
