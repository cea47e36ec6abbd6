// Checkpoints of a process by itself or another one: states, errors, what is refused, what becomes of memory. Each test is a process of
// its own, forked before the driver is initialised, since FAILED is final.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "support.h"

namespace softgpu_driver_test {
namespace {

using std::chrono::milliseconds;
constexpr int kOk = 42;
constexpr size_t kMiB = size_t(1) << 20;
constexpr unsigned kAWhileMs = 60'000;  // a limit that is not meant to pass
const char* const kLocal = std::getenv("TESSERA_SOFTGPU_LOCAL");
const std::string kOtherGpu = TS_OTHER_GPU;

#define CHILD_IS(code, call)                                                          \
  if (const CUresult got = (call); got != (code)) {                                   \
    std::fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, int(got)); \
    return 1;                                                                         \
  }
#define CHILD_CU(call) CHILD_IS(CUDA_SUCCESS, call)
#define CHILD_TRUE(condition)                                                     \
  if (!(condition)) {                                                             \
    std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
    return 1;                                                                     \
  }

CUcontext g_context;

// Status of a child that has the driver and a context.
int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(120);
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&g_context, nullptr, 0, 0) != CUDA_SUCCESS) _exit(1);
    _exit(body());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

CUresult lock(unsigned limit_ms = kAWhileMs) {
  CUcheckpointLockArgs args{};
  args.timeoutMs = limit_ms;
  return cuCheckpointProcessLock(getpid(), &args);
}
CUresult save() {
  return cuCheckpointProcessCheckpoint(getpid(), nullptr);
}
CUresult restore() {
  return cuCheckpointProcessRestore(getpid(), nullptr);
}
CUresult unlock() {
  return cuCheckpointProcessUnlock(getpid(), nullptr);
}
CUprocessState state() {
  CUprocessState now = CU_PROCESS_STATE_FAILED;
  return cuCheckpointProcessGetState(getpid(), &now) == CUDA_SUCCESS ? now : CU_PROCESS_STATE_FAILED;
}
bool idle(const std::future<CUresult>& call) {  // has not returned
  return call.wait_for(milliseconds(20)) == std::future_status::timeout;
}
std::future<CUresult> in_thread(std::function<CUresult()> call) {
  return std::async(std::launch::async, [call] {
    (void)cuCtxSetCurrent(g_context);
    return call();
  });
}
// Starts a call that has to wait and returns once its thread sleeps in it.
std::future<CUresult> in_waiting_thread(const std::function<CUresult()>& call) {
  std::atomic<pid_t> thread{0};
  auto result = in_thread([&thread, call] {
    thread = gettid();
    return call();
  });
  for (std::string line; thread == 0 || line.find(") S ") == std::string::npos; std::this_thread::yield()) {
    std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::getline(stat, line);
  }
  return result;
}
CUresult launch_add(CUfunction add, CUdeviceptr p, uint32_t value, uint32_t n) {
  void* params[] = {&p, &value, &n};
  return cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, nullptr, params, nullptr);
}

TEST(Checkpoint, EveryCallHasItsState) {
  EXPECT_EQ(kOk, in_child([] {
              CHILD_TRUE(state() == CU_PROCESS_STATE_RUNNING);
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, save());
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, restore());
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, unlock());
              CHILD_CU(lock());
              CHILD_TRUE(state() == CU_PROCESS_STATE_LOCKED);
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, lock());
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, restore());
              CHILD_CU(save());
              CHILD_TRUE(state() == CU_PROCESS_STATE_CHECKPOINTED);
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, lock());
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, save());
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, unlock());
              CHILD_CU(restore());
              CHILD_TRUE(state() == CU_PROCESS_STATE_LOCKED);
              CHILD_CU(unlock());
              CHILD_TRUE(state() == CU_PROCESS_STATE_RUNNING);
              return kOk;
            }));
}

TEST(Checkpoint, ArgumentsAreChecked) {
  EXPECT_EQ(kOk, in_child([] {
              const int self = getpid();
              int tid = 0;
              CHILD_CU(cuCheckpointProcessGetRestoreThreadId(self, &tid));
              CHILD_TRUE(tid == self);
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetRestoreThreadId(self, nullptr));
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(self, nullptr));
              CUprocessState ignored;
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(-1, &ignored));
              CHILD_IS(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessGetState(getppid(), &ignored));
              CUcheckpointLockArgs lock_args{};
              lock_args.reserved1[6] = 1;
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessLock(self, &lock_args));
              CHILD_CU(lock());
              CUcheckpointCheckpointArgs save_args{};
              save_args.reserved[0] = 1;
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessCheckpoint(self, &save_args));
              CHILD_CU(save());
              CUcheckpointRestoreArgs args{};
              args.reserved1 = 1;
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(self, &args));
              CHILD_TRUE(state() == CU_PROCESS_STATE_CHECKPOINTED);
              CHILD_CU(restore());
              CUcheckpointUnlockArgs unlock_args{};
              unlock_args.reserved[7] = 1;
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessUnlock(self, &unlock_args));
              CHILD_CU(unlock());
              return kOk;
            }));
}

TEST(Checkpoint, GpusAreNamedAllAndStayTheSame) {
  EXPECT_EQ(kOk, in_child([] {
              CUcheckpointGpuPair pair{};
              CHILD_CU(cuDeviceGetUuid(&pair.oldUuid, 0));
              CHILD_CU(lock());
              CHILD_CU(save());
              CUcheckpointRestoreArgs args{};
              args.gpuPairs = &pair;
              args.gpuPairsCount = 1;
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(getpid(), &args));  // to no GPU
              std::swap(pair.oldUuid, pair.newUuid);
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(getpid(), &args));
              args.gpuPairs = nullptr;
              CHILD_IS(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(getpid(), &args));
              args.gpuPairs = &pair;
              pair.oldUuid = pair.newUuid;
              CHILD_CU(cuCheckpointProcessRestore(getpid(), &args));
              CHILD_CU(unlock());
              return kOk;
            }));
}

// A machine of two GPUs, of which the process has one: a restore puts the other one behind it, and back.
CUresult restore_at(const std::vector<CUcheckpointGpuPair>& pairs) {
  std::vector<CUcheckpointGpuPair> named = pairs;
  CUcheckpointRestoreArgs args{};
  args.gpuPairs = named.data();
  args.gpuPairsCount = unsigned(named.size());
  return cuCheckpointProcessRestore(getpid(), &args);
}
bool same(const CUuuid& a, const CUuuid& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}
// Beside this one; the software GPU numbers its devices' UUIDs in their last byte.
CUuuid second_of(CUuuid first) {
  first.bytes[15] = char(first.bytes[15] ^ 1);
  return first;
}

TEST(Checkpoint, GoesToAnotherGpuAndBack) {
  setenv("TESSERA_SOFTGPU_DEVICES", "2", 1);
  for (const char* visible : {"0,1", "0"}) {
    setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    EXPECT_EQ(kOk, in_child([] {
                CUuuid first, now;
                CHILD_CU(cuDeviceGetUuid(&first, 0));
                const CUuuid second = second_of(first);
                CUmodule module;
                CUfunction add;
                CUdeviceptr p;
                CHILD_CU(cuModuleLoadData(&module, kPtx));
                CHILD_CU(cuModuleGetFunction(&add, module, "add"));
                CHILD_CU(cuMemAlloc(&p, 2 * kMiB));
                CHILD_CU(cuMemsetD32(p, 3, 64));
                for (uint32_t round = 1; round <= 20; ++round) {
                  CHILD_CU(lock());
                  CHILD_CU(save());
                  CHILD_CU(restore_at({{first, second}, {second, first}}));
                  CHILD_CU(unlock());
                  CHILD_CU(cuDeviceGetUuid(&now, 0));
                  CHILD_TRUE(same(now, round % 2 ? second : first));
                  CHILD_CU(launch_add(add, p, 10, 1));
                  uint32_t word = 0;
                  CHILD_CU(cuMemcpyDtoH(&word, p, 4));
                  CHILD_TRUE(word == 3 + 10 * round);
                }
                return kOk;
              }));
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("TESSERA_SOFTGPU_DEVICES");
}

// Every GPU of the machine is named, each once as old and once as new; and nothing is lost by a wrong list.
TEST(Checkpoint, AMoveThatIsRefusedChangesNothing) {
  setenv("TESSERA_SOFTGPU_DEVICES", (std::string(kLocal) + "," + kOtherGpu + "," + kLocal).c_str(), 1);
  EXPECT_EQ(
      kOk, in_child([] {
        CUuuid gpus[3], now;
        for (int i = 0; i < 3; ++i) CHILD_CU(cuDeviceGetUuid(&gpus[i], i));
        const auto& [first, other, third] = gpus;
        CHILD_CU(lock());
        CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, restore_at({{first, third}, {other, other}, {third, first}}));
        CHILD_CU(save());
        CHILD_IS(CUDA_ERROR_INVALID_VALUE, restore_at({{first, third}}));
        CHILD_IS(CUDA_ERROR_INVALID_VALUE, restore_at({{first, third}, {other, other}, {third, third}}));
        CHILD_IS(CUDA_ERROR_INVALID_VALUE, restore_at({{first, third}, {other, other}, {first, first}}));
        CHILD_IS(CUDA_ERROR_NOT_SUPPORTED, restore_at({{first, other}, {other, first}, {third, third}}));
        CHILD_TRUE(state() == CU_PROCESS_STATE_CHECKPOINTED);
        CHILD_CU(restore_at({{first, third}, {other, other}, {third, first}}));
        CHILD_CU(unlock());
        CHILD_CU(cuDeviceGetUuid(&now, 0));
        CHILD_TRUE(same(now, third));
        CHILD_CU(cuDeviceGetUuid(&now, 2));
        CHILD_TRUE(same(now, first));
        return kOk;
      }));
  unsetenv("TESSERA_SOFTGPU_DEVICES");
}

// Calls of other threads block until the process runs again; then they do what they do.
TEST(Checkpoint, CallsBlockMeanwhile) {
  EXPECT_EQ(kOk, in_child([] {
              CHILD_CU(lock());
              CUdeviceptr p = 0;
              auto made = in_thread([&p] { return cuMemAlloc(&p, 64); });
              CHILD_TRUE(idle(made));
              CHILD_CU(save());
              CHILD_TRUE(idle(made));
              CHILD_CU(restore());
              CHILD_TRUE(idle(made));
              CHILD_CU(unlock());
              CHILD_CU(made.get());
              CHILD_CU(cuMemFree(p));
              return kOk;
            }));
}

// A call that waits for work of the device is under way: the lock waits for both.
TEST(Checkpoint, ALockWaitsForCallsAndWork) {
  EXPECT_EQ(kOk, in_child([] {
              Gate gate;
              CUstream held;
              CHILD_CU(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
              CHILD_CU(gate.hold(held));
              auto waits = in_waiting_thread([held] { return cuStreamSynchronize(held); });
              auto locks = in_thread([] { return lock(); });
              CHILD_TRUE(idle(locks));
              CHILD_TRUE(idle(waits));
              gate.open();
              CHILD_CU(waits.get());
              CHILD_CU(locks.get());
              CHILD_CU(unlock());
              return kOk;
            }));
}

// A lock that waits for endless work gives up in time; the process runs on as if nothing had been.
TEST(Checkpoint, ALockHasALimit) {
  EXPECT_EQ(kOk, in_child([] {
              Gate gate;
              CUdeviceptr p;
              CUstream held;
              CHILD_CU(cuMemAlloc(&p, 64));
              CHILD_CU(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
              CHILD_CU(gate.hold(held));
              CHILD_CU(cuMemsetD32Async(p, 7, 16, held));
              CHILD_IS(CUDA_ERROR_NOT_READY, lock(10));
              CHILD_TRUE(state() == CU_PROCESS_STATE_RUNNING);
              auto waits = in_waiting_thread([held] { return cuStreamSynchronize(held); });
              CHILD_IS(CUDA_ERROR_NOT_READY, lock(10));  // a call is under way
              gate.open();
              CHILD_CU(waits.get());
              uint32_t words[16];
              CHILD_CU(cuMemcpyDtoH(words, p, sizeof words));
              CHILD_TRUE(words[0] == 7 && words[15] == 7);
              CHILD_CU(lock());
              CHILD_CU(unlock());
              return kOk;
            }));
}

TEST(Checkpoint, HostFunctionsEndBeforeTheLock) {
  EXPECT_EQ(kOk, in_child([] {
              static std::atomic<int> called{0};
              Gate gate;
              CHILD_CU(gate.hold(nullptr));
              CHILD_CU(cuLaunchHostFunc(
                  nullptr,
                  [](void*) {
                    CUcontext none;
                    called = cuCtxGetCurrent(&none) == CUDA_ERROR_NOT_PERMITTED ? 1 : 2;
                  },
                  nullptr));
              auto locks = in_thread([] { return lock(); });
              gate.open();
              CHILD_CU(locks.get());
              CHILD_TRUE(called == 1);
              CHILD_CU(unlock());
              return kOk;
            }));
}

// Memory of every kind has its place and contents afterwards, streams, modules and events what they had.
TEST(Checkpoint, EverythingComesBack) {
  EXPECT_EQ(
      kOk, in_child([] {
        CUmodule module;
        CUfunction add;
        CUdeviceptr plain, pooled, counter, at;
        CUstream stream;
        CHILD_CU(cuModuleLoadData(&module, kPtx));
        CHILD_CU(cuModuleGetFunction(&add, module, "add"));
        CHILD_CU(cuModuleGetGlobal(&counter, nullptr, module, "counter"));
        CHILD_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CHILD_CU(cuMemAlloc(&plain, 100 * kMiB));
        CHILD_CU(cuMemAllocAsync(&pooled, 256, stream));
        CHILD_CU(cuMemsetD32Async(pooled, 5, 64, stream));
        CHILD_CU(cuMemsetD32(plain, 1, 64));
        CHILD_CU(cuMemsetD32(plain + 99 * kMiB, 2, 64));
        CUmemAllocationProp prop{};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemGenericAllocationHandle handle;
        CHILD_CU(cuMemCreate(&handle, 2 * kMiB, &prop, 0));
        CHILD_CU(cuMemAddressReserve(&at, 2 * kMiB, 0, 0, 0));
        CHILD_CU(cuMemMap(at, 2 * kMiB, 0, handle, 0));
        CHILD_CU(cuMemRelease(handle));
        const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CHILD_CU(cuMemSetAccess(at, 2 * kMiB, &access, 1));
        CHILD_CU(cuMemsetD32(at, 3, 64));
        void* pinned;
        CHILD_CU(cuMemHostAlloc(&pinned, 64, 0));
        for (int round = 1; round <= 2; ++round) {
          CHILD_CU(lock());
          CHILD_CU(save());
          std::memset(pinned, round, 64);  // host memory stays valid
          CHILD_CU(restore());
          CHILD_CU(unlock());
          for (const CUdeviceptr p : {plain, plain + 99 * kMiB, at, pooled, counter})
            CHILD_CU(launch_add(add, p, 10, 1));
          CHILD_CU(cuCtxSynchronize());
        }
        const std::pair<CUdeviceptr, uint32_t> expected[] = {
            {plain, 21},  {plain + 4, 1}, {plain + 99 * kMiB, 22}, {at, 23}, {at + 4, 3},
            {pooled, 25}, {counter, 27}};
        for (const auto& [p, value] : expected) {
          uint32_t word = 0;
          CHILD_CU(cuMemcpyDtoH(&word, p, 4));
          CHILD_TRUE(word == value);
        }
        CHILD_TRUE(static_cast<char*>(pinned)[63] == 2);
        return kOk;
      }));
}

// As the one before 610: what another process may share ends a process that is checkpointed nevertheless.
TEST(Checkpoint, WhatIsSharedOrManagedIsRefusedForGood) {
  const std::function<CUresult()> makers[] = {
      [] {
        CUdeviceptr p;
        return cuMemAllocManaged(&p, 64, CU_MEM_ATTACH_GLOBAL);
      },
      [] {
        CUdeviceptr p;
        CUipcMemHandle handle;
        if (CUresult failed = cuMemAlloc(&p, 64)) return failed;
        return cuIpcGetMemHandle(&handle, p);
      },
      [] {
        CUmemAllocationProp prop{};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemGenericAllocationHandle handle;
        if (CUresult failed = cuMemCreate(&handle, 2 * kMiB, &prop, 0)) return failed;
        int fd;
        return cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      },
      [] {
        CUevent event;
        return cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
      },
  };
  for (const auto& make : makers)
    EXPECT_EQ(kOk, in_child([&make] {
                CHILD_CU(make());
                CHILD_CU(lock());
                CHILD_IS(CUDA_ERROR_NOT_SUPPORTED, save());
                CHILD_TRUE(state() == CU_PROCESS_STATE_FAILED);
                CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, unlock());
                CHILD_IS(CUDA_ERROR_OPERATING_SYSTEM, restore());
                return kOk;
              }));
}

// Bytes over the host link, each way: of test4, 0.4 GB/s.
TEST(Checkpoint, TakesTheTimeOfItsBytes) {
  EXPECT_EQ(kOk, in_child([] {
              CUdeviceptr p;
              CHILD_CU(cuMemAlloc(&p, 64 * kMiB));
              static constexpr milliseconds kLink(64 * kMiB / 400'000);
              const auto took_as_long = [](CUresult (*call)()) {
                const auto begin = std::chrono::steady_clock::now();
                return call() == CUDA_SUCCESS && std::chrono::steady_clock::now() - begin >= kLink;
              };
              CHILD_CU(lock());
              CHILD_TRUE(took_as_long(save));
              CHILD_TRUE(took_as_long(restore));
              CHILD_CU(unlock());
              return kOk;
            }));
}

// Two processes on one device of 2 GiB.
class SharedDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tessera-checkpoint-XXXXXX";
    ASSERT_TRUE(mkdtemp(folder));
    folder_ = folder;
    setenv("TESSERA_SOFTGPU_DIR", folder, 1);
    setenv("TESSERA_SOFTGPU_LINGER_MS", "50", 1);
    unsetenv("TESSERA_SOFTGPU_LOCAL");
    ASSERT_EQ(0, pipe(to_));
    ASSERT_EQ(0, pipe(from_));
  }
  void TearDown() override {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    for (int fd : {to_[0], to_[1], from_[0], from_[1]}) close(fd);
    setenv("TESSERA_SOFTGPU_LOCAL", kLocal, 1);
    std::filesystem::remove_all(folder_);
  }
  // The other process does what it is told, a letter a call: (a)llocate 1.5 GiB, (c)heckpoint, (f)ree.
  void start_other() {
    pid_ = fork();
    if (pid_) {
      wait_for_other();
      return;
    }
    alarm(120);
    CUdeviceptr p = 0;
    if (cuInit(0) || cuCtxCreate(&g_context, nullptr, 0, 0)) _exit(1);
    for (char order = '!'; write(from_[1], &order, 1) == 1 && ::read(to_[0], &order, 1) == 1;) {
      const CUresult done = order == 'a'   ? cuMemAlloc(&p, 1536 * kMiB)
                            : order == 'f' ? cuMemFree(p)
                            : lock()       ? CUDA_ERROR_UNKNOWN
                                           : save();
      if (done) _exit(1);
    }
    _exit(0);
  }
  void wait_for_other() const {
    char byte = 0;
    ASSERT_EQ(1, ::read(from_[0], &byte, 1));
  }
  void order(char what) const {
    ASSERT_EQ(1, write(to_[1], &what, 1));
    wait_for_other();
  }
  void kill_other() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  std::string folder_;
  int to_[2] = {}, from_[2] = {};
  pid_t pid_ = -1;
};

TEST_F(SharedDevice, MemoryIsCountedForAllProcesses) {
  start_other();
  order('a');
  EXPECT_EQ(kOk, in_child([&] {
              CUdeviceptr p;
              size_t free_bytes = 0, total_bytes = 0;
              CHILD_CU(cuMemGetInfo(&free_bytes, &total_bytes));
              CHILD_TRUE(total_bytes == 2048 * kMiB && free_bytes == 512 * kMiB);
              CHILD_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 513 * kMiB));
              CHILD_CU(cuMemAlloc(&p, 512 * kMiB));
              CHILD_CU(cuMemFree(p));
              order('f');
              CHILD_CU(cuMemAlloc(&p, 2048 * kMiB));
              return kOk;
            }));
}

TEST_F(SharedDevice, WhatADeadProcessHadIsFree) {
  start_other();
  order('a');
  kill_other();
  EXPECT_EQ(kOk, in_child([] {
              CUdeviceptr p;
              CHILD_CU(cuMemAlloc(&p, 2048 * kMiB));
              return kOk;
            }));
}

TEST_F(SharedDevice, WhoIsCheckpointedMakesRoom) {
  start_other();
  order('a');
  order('c');
  EXPECT_EQ(kOk, in_child([] {
              CUdeviceptr p;
              CHILD_CU(cuMemAlloc(&p, 2048 * kMiB));
              return kOk;
            }));
}

// Its memory leaves the one GPU and is on the other.
TEST_F(SharedDevice, AMoveMakesRoomAndTakesIt) {
  setenv("TESSERA_SOFTGPU_DEVICES", "2", 1);
  start_other();
  EXPECT_EQ(kOk, in_child([&] {
              CUdeviceptr p;
              CUuuid first;
              CUcontext context;
              CHILD_CU(cuDeviceGetUuid(&first, 0));
              const CUuuid second = second_of(first);
              CHILD_CU(cuMemAlloc(&p, 1024 * kMiB));
              CHILD_CU(lock());
              CHILD_CU(save());
              CHILD_CU(restore_at({{first, second}, {second, first}}));
              CHILD_CU(unlock());
              order('a');
              size_t free_bytes = 0, total_bytes = 0;
              CHILD_CU(cuMemGetInfo(&free_bytes, &total_bytes));
              CHILD_TRUE(total_bytes - free_bytes == 1024 * kMiB);
              CHILD_CU(cuCtxCreate(&context, nullptr, 0, 1));
              CHILD_CU(cuMemGetInfo(&free_bytes, &total_bytes));
              CHILD_TRUE(total_bytes - free_bytes == 1536 * kMiB);
              return kOk;
            }));
  unsetenv("TESSERA_SOFTGPU_DEVICES");
}

// A restore that finds no room loses the process (NVIDIA/cuda-checkpoint#44).
TEST_F(SharedDevice, ARestoreWithoutRoomIsTheEnd) {
  start_other();
  EXPECT_EQ(kOk, in_child([&] {
              CUdeviceptr p;
              CHILD_CU(cuMemAlloc(&p, 1024 * kMiB));
              CHILD_CU(lock());
              CHILD_CU(save());
              order('a');
              CHILD_IS(CUDA_ERROR_OUT_OF_MEMORY, restore());
              CHILD_TRUE(state() == CU_PROCESS_STATE_FAILED);
              order('f');
              CHILD_IS(CUDA_ERROR_OPERATING_SYSTEM, restore());
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, unlock());
              return kOk;
            }));
}

// States of the other process as this one sees and sets them.
CUprocessState state_of(pid_t pid) {
  CUprocessState now = CU_PROCESS_STATE_FAILED;
  return cuCheckpointProcessGetState(pid, &now) == CUDA_SUCCESS ? now : CU_PROCESS_STATE_FAILED;
}
CUresult lock_other(pid_t pid) {
  CUcheckpointLockArgs args{};
  args.timeoutMs = kAWhileMs;
  return cuCheckpointProcessLock(pid, &args);
}

TEST_F(SharedDevice, AnotherProcessCheckpointsIt) {
  start_other();
  order('a');
  EXPECT_EQ(kOk, in_child([&] {
              CUdeviceptr p;
              int tid = 0;
              CHILD_CU(cuCheckpointProcessGetRestoreThreadId(pid_, &tid));
              CHILD_TRUE(tid == pid_);
              CHILD_TRUE(state_of(pid_) == CU_PROCESS_STATE_RUNNING);
              CHILD_IS(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(pid_, nullptr));
              CHILD_CU(lock_other(pid_));
              CHILD_TRUE(state_of(pid_) == CU_PROCESS_STATE_LOCKED);
              CHILD_CU(cuCheckpointProcessCheckpoint(pid_, nullptr));
              CHILD_TRUE(state_of(pid_) == CU_PROCESS_STATE_CHECKPOINTED);
              CHILD_CU(cuMemAlloc(&p, 2048 * kMiB));
              CHILD_CU(cuMemFree(p));
              CHILD_TRUE(state() == CU_PROCESS_STATE_RUNNING);
              CHILD_CU(cuCheckpointProcessRestore(pid_, nullptr));
              CHILD_CU(cuCheckpointProcessUnlock(pid_, nullptr));
              CHILD_TRUE(state_of(pid_) == CU_PROCESS_STATE_RUNNING);
              CHILD_IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 2048 * kMiB));
              return kOk;
            }));
  order('f');
}

// The process that asked is killed meanwhile: the driver ends what it has begun.
TEST_F(SharedDevice, WhatADeadProcessAskedForEnds) {
  start_other();
  order('a');
  EXPECT_EQ(-SIGKILL, in_child([&] {
    CHILD_CU(lock_other(pid_));
    const auto saved = in_waiting_thread([&] { return cuCheckpointProcessCheckpoint(pid_, nullptr); });
    return kill(getpid(), SIGKILL);
  }));
  EXPECT_EQ(kOk, in_child([&] {
              CHILD_TRUE(state_of(pid_) == CU_PROCESS_STATE_CHECKPOINTED);
              CHILD_CU(cuCheckpointProcessRestore(pid_, nullptr));
              CHILD_CU(cuCheckpointProcessUnlock(pid_, nullptr));
              return kOk;
            }));
  order('f');
}

}  // namespace
}  // namespace softgpu_driver_test
