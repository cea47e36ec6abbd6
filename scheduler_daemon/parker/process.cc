#include "scheduler_daemon/parker/process.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "driver_api/cuda.h"
#include "ipc/abi/park.h"
#include "scheduler_daemon/parker/protocol.h"

namespace tessera::parker {
namespace {

using ipc::abi::ParkStep;

// The functions of the driver that it needs. Null: this driver has no such function.
struct Driver {
#define TS_FUNCTION(name) decltype(&::name) name = nullptr;
#define TS_FUNCTIONS                         \
  TS_FUNCTION(cuInit)                        \
  TS_FUNCTION(cuDeviceGetCount)              \
  TS_FUNCTION(cuDeviceGetUuid_v2)            \
  TS_FUNCTION(cuCheckpointProcessGetState)   \
  TS_FUNCTION(cuCheckpointProcessLock)       \
  TS_FUNCTION(cuCheckpointProcessCheckpoint) \
  TS_FUNCTION(cuCheckpointProcessRestore)    \
  TS_FUNCTION(cuCheckpointProcessUnlock)
  TS_FUNCTIONS
#undef TS_FUNCTION
  CUresult usable = CUDA_ERROR_NOT_INITIALIZED;

  Driver() {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    bool all = library != nullptr;
#define TS_FUNCTION(name)                                      \
  if (library) name = decltype(name)(::dlsym(library, #name)); \
  all = all && name;
    TS_FUNCTIONS
#undef TS_FUNCTION
    usable = !library ? CUDA_ERROR_NO_DEVICE : all ? cuInit(0) : CUDA_ERROR_NOT_SUPPORTED;
  }
};

const Driver& driver() {
  static const Driver loaded;  // stays loaded: a fresh one takes seconds
  return loaded;
}

// All GPUs of the machine have to be named. The daemon hides none from this process (parker.cc).
CUresult restore_elsewhere(const Request& request) {
  const auto is = [](const CUuuid& a, const uint8_t(&b)[16]) { return std::memcmp(&a, b, sizeof a) == 0; };
  int n = 0;
  if (CUresult failed = driver().cuDeviceGetCount(&n)) return failed;
  std::vector<CUcheckpointGpuPair> pairs;
  for (int i = 0; i < n; ++i) {
    CUuuid old{};
    if (CUresult failed = driver().cuDeviceGetUuid_v2(&old, i)) return failed;
    CUcheckpointGpuPair pair{old, old};
    if (is(old, request.from)) std::memcpy(&pair.newUuid, request.to, sizeof request.to);
    if (is(old, request.to)) std::memcpy(&pair.newUuid, request.from, sizeof request.from);
    pairs.push_back(pair);
  }
  CUcheckpointRestoreArgs args{};
  args.gpuPairs = pairs.data();
  args.gpuPairsCount = unsigned(pairs.size());
  return driver().cuCheckpointProcessRestore(request.pid, &args);
}

CUresult call(const Request& request, CUprocessState* state) {
  switch (request.step) {
    case ParkStep::kStepState:
      return driver().cuCheckpointProcessGetState(request.pid, state);
    case ParkStep::kStepLock: {
      CUcheckpointLockArgs args{};
      args.timeoutMs = request.within_ms;
      return driver().cuCheckpointProcessLock(request.pid, &args);
    }
    case ParkStep::kStepSave:
      return driver().cuCheckpointProcessCheckpoint(request.pid, nullptr);
    case ParkStep::kStepRestore:
      if (std::memcmp(request.from, request.to, sizeof request.from) != 0) return restore_elsewhere(request);
      return driver().cuCheckpointProcessRestore(request.pid, nullptr);
    case ParkStep::kStepUnlock:
      return driver().cuCheckpointProcessUnlock(request.pid, nullptr);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUprocessState ends_in(uint32_t step) {
  return step == ParkStep::kStepUnlock ? CU_PROCESS_STATE_RUNNING
         : step == ParkStep::kStepSave ? CU_PROCESS_STATE_CHECKPOINTED
                                       : CU_PROCESS_STATE_LOCKED;
}

Answer answer(const Request& request) {
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  CUresult result = driver().usable;
  if (result == CUDA_SUCCESS && request.again && request.step != ParkStep::kStepState) {
    // The driver may have done it, or still be about it: who asked for it is dead.
    constexpr int kMostLooks = 100;
    constexpr auto kBetweenLooks = std::chrono::milliseconds(50);
    for (int i = 0; i < kMostLooks; ++i) {
      if (driver().cuCheckpointProcessGetState(request.pid, &state) == CUDA_SUCCESS &&
          state == ends_in(request.step))
        return {request.number, CUDA_SUCCESS, uint32_t(state)};
      result = call(request, &state);
      if (result != CUDA_ERROR_ILLEGAL_STATE) break;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  } else if (result == CUDA_SUCCESS) {
    result = call(request, &state);
  }
  return {request.number, int32_t(result), uint32_t(state)};
}

}  // namespace

int serve_requests(int socket) {
  static std::atomic<uint32_t> under_way{0};  // threads use it until they have ended
  for (Request request;;) {
    const ssize_t got = ::recv(socket, &request, sizeof request, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != ssize_t(sizeof request)) break;
    under_way.fetch_add(1, std::memory_order_relaxed);
    std::thread([socket, request] {
      const Answer said = answer(request);
      (void)!::send(socket, &said, sizeof said, MSG_NOSIGNAL);
      under_way.fetch_sub(1, std::memory_order_release);  // pairs with the load below
      under_way.notify_one();
    }).detach();
  }
  for (uint32_t left; (left = under_way.load(std::memory_order_acquire)) != 0;)
    under_way.wait(left, std::memory_order_acquire);
  return 0;
}

}  // namespace tessera::parker
