// Random programs by seed: streams with events and waits for memory between them, the legacy and the per-thread stream, copies,
// fills, captures, graphs, host functions, waits of every kind, two threads at once, other contexts, and resets of the context.
// They run before the gate on the device, which another thread opens, closes
// and takes away, and under a reserve of SMs, which another thread changes. Work that shares a buffer is ordered by what the
// program enqueues and by nothing else, so that what they leave in memory is what they leave bare.
// TESSERA_RANDOM_ORDERS says how many (scripts/orders.sh raises it), TESSERA_RANDOM_ORDERS_FROM where they begin.
#include <sys/mman.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "interpose/gate/device_gate.h"
#include "interpose/slice/confine.h"
#include "interpose/slice/trial.h"
#include "interpose/track/graphs.h"
#include "ipc/channel/gate.h"
#include "tests/unit/interpose/mix_kernel.h"
#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

namespace abi = ipc::abi;
using driver_api::real;
using test::kMixBlocks;
using test::kMixThreads;
using test::kMixWords;

constexpr uint32_t kBuffers = 5, kStreams = 4, kBytes = kMixWords * 4;
constexpr uint32_t kWords = 4096;  // of one program, at most
constexpr uint32_t kSms = 132, kMostSteps = 24;
constexpr uint32_t kFewSms = 4;  // of which a launch is more than two pilots
constexpr uint32_t kLegacy = kStreams, kPerThread = kStreams + 1, kLanes = kStreams + 2;

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = getenv(variable);
  return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

enum class Mode { kBare, kDevice, kDeviceCut, kDeviceRuns, kReserve };

class DeviceOrder : public test::Soft {
 protected:
  void SetUp() override {
    setenv("TESSERA_SOFTGPU_LOCAL", TS_WIDE_GPU, 1);  // of more SMs than one step of a reserve
    Soft::SetUp();
    // A reset ends what the library saw retained.
    ASSERT_EQ(hook_cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    state::g_sm_count.store(kSms);
    gate::g_device_gate.refused.store(0);
    open();
    void* page = mmap(nullptr, abi::kGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    page_ = static_cast<abi::GatePage*>(page);  // leaked, as the library does
  }
  void TearDown() override {
    gate::adopt_device_gate(nullptr);
    confine::forget(nullptr);
    Soft::TearDown();
  }

  void open() {
    EXPECT_EQ(hook_cuModuleLoadData(&module_, test::kMixPtx), CUDA_SUCCESS);
    mix_ = function_of(module_, "mix");
    // The first blocks on the legacy stream, the others do not.
    for (uint32_t i = 0; i < kStreams; i++)
      EXPECT_EQ(hook_cuStreamCreate(&streams_[i], i == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING),
                CUDA_SUCCESS);
    EXPECT_EQ(real().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    if (whole_) keep_whole();
  }

  // A kernel that cannot be cut is confined, also after a reset.
  void keep_whole() {
    whole_ = true;
    state::find_kernel(mix_)->variant.handle.store(state::kNoVariant);
  }

  // A lane's work comes after all earlier work that shares a buffer with it, whatever lane that was in.
  void use(uint32_t lane, std::initializer_list<uint32_t> buffers) {
    for (uint32_t b : buffers) {
      if (last_lane_[b] != lane && last_lane_[b] != kLanes) {
        if (random_() % 4 == 0) {
          wait_for_word(lane, last_lane_[b]);
        } else {
          record(last_lane_[b]);
          wait(lane);
        }
      }
      last_lane_[b] = lane;
    }
  }
  CUstream handle(uint32_t lane) const {
    return lane == kLegacy ? CU_STREAM_LEGACY : lane == kPerThread ? CU_STREAM_PER_THREAD : streams_[lane];
  }
  void record(uint32_t lane) { EXPECT_EQ(hook_cuEventRecord(event_, handle(lane)), CUDA_SUCCESS); }
  void wait(uint32_t lane) { EXPECT_EQ(hook_cuStreamWaitEvent(handle(lane), event_, 0), CUDA_SUCCESS); }
  void wait_for_word(uint32_t lane, uint32_t for_lane) {
    const CUdeviceptr word = words_ + 4 * words_used_++;
    EXPECT_EQ(real().cuStreamWriteValue32_v2(handle(for_lane), word, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuStreamWaitValue32_v2(handle(lane), word, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  }
  // Has work of its own when it ends, and what is behind the gate meanwhile is another one's.
  void other_context(uint32_t salt) {
    CUcontext other = nullptr;
    CUmodule module = nullptr;
    CUdeviceptr own = 0;
    EXPECT_EQ(hook_cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuModuleLoadData(&module, test::kMixPtx), CUDA_SUCCESS);
    EXPECT_EQ(real().cuMemAlloc_v2(&own, kBytes), CUDA_SUCCESS);
    const CUfunction mix = function_of(module, "mix");
    void* params[] = {&own, &own, &salt};
    for (uint32_t n = salt % 4; n > 0; n--)
      EXPECT_EQ(hook_cuLaunchKernel(mix, kMixBlocks, 1, 1, kMixThreads, 1, 1, 0, nullptr, params, nullptr),
                CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxDestroy_v2(other), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  void launch(uint32_t lane, uint32_t out, uint32_t in, uint32_t salt) {
    CUdeviceptr a = buffers_[out], b = buffers_[in];
    void* params[] = {&a, &b, &salt};
    EXPECT_EQ(
        hook_cuLaunchKernel(mix_, kMixBlocks, 1, 1, kMixThreads, 1, 1, 0, handle(lane), params, nullptr),
        CUDA_SUCCESS);
  }
  // A chain of `n` launches, captured while the rest goes on. Stream kStreams - 1 is free for it.
  CUgraphExec captured(uint32_t out, uint32_t in, uint32_t salt, uint32_t n) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    EXPECT_EQ(hook_cuStreamBeginCapture_v2(streams_[kStreams - 1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              CUDA_SUCCESS);
    for (uint32_t i = 0; i < n; i++) launch(kStreams - 1, out, i % 2 == 0 ? in : out, salt + i);
    EXPECT_EQ(hook_cuStreamEndCapture(streams_[kStreams - 1], &graph), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
  }
  void graph(uint32_t lane, uint32_t out, uint32_t in, uint32_t salt) {
    const CUgraphExec exec = captured(out, in, salt, 2 + salt % 9);
    for (uint32_t n = 1 + salt % 3; n > 0; n--)
      EXPECT_EQ(hook_cuGraphLaunch(exec, handle(lane)), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  }
  // Another thread launches at the same time, into another stream and another buffer.
  void two_threads(uint32_t lane, uint32_t out, uint32_t salt) {
    const uint32_t other_lane = (lane + 1) % kStreams, other_out = (out + 1) % kBuffers, n = 1 + salt % 6;
    use(lane, {out});
    use(other_lane, {other_out});
    std::thread other([&] {
      EXPECT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (uint32_t i = 0; i < n; i++) launch(other_lane, other_out, other_out, salt + i);
    });
    for (uint32_t i = 0; i < n; i++) launch(lane, out, out, salt + i);
    other.join();
  }
  // Everything of the context ends. What was in its buffers is in those of the next one.
  void reset() {
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    const std::vector<uint32_t> words = contents();
    EXPECT_EQ(hook_cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
    open();
    words_ = zeros(kWords);
    words_used_ = 0;
    for (uint32_t i = 0; i < kBuffers; i++) {
      buffers_[i] = zeros(kMixWords);
      EXPECT_EQ(real().cuMemcpyHtoD_v2(buffers_[i], words.data() + i * kMixWords, kBytes), CUDA_SUCCESS);
      last_lane_[i] = kLanes;
    }
    EXPECT_EQ(real().cuCtxSynchronize(), CUDA_SUCCESS);
    if (on_device_) {
      EXPECT_TRUE(gate::pin_device_gate(context));
    }
  }
  std::vector<uint32_t> contents() {  // and frees them
    std::vector<uint32_t> all;
    for (CUdeviceptr buffer : buffers_) {
      const std::vector<uint32_t> one = read(buffer, kMixWords);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  void step() {
    const uint32_t lane = random_() % kLanes, out = random_() % kBuffers, in = random_() % kBuffers;
    const uint32_t salt = random_() % 1000;
    switch (random_() % 16) {
      case 0:
        use(lane, {out, in});
        if (out != in) {
          EXPECT_EQ(hook_cuMemcpyDtoDAsync_v2(buffers_[out], buffers_[in] + 64, kBytes - 64, handle(lane)),
                    CUDA_SUCCESS);
        }
        break;
      case 1:
        use(lane, {out});
        EXPECT_EQ(hook_cuMemsetD32Async(buffers_[out] + 128, salt, 512, handle(lane)), CUDA_SUCCESS);
        break;
      case 2:
        EXPECT_EQ(hook_cuStreamSynchronize(handle(lane)), CUDA_SUCCESS);
        break;
      case 3:
        if (salt % 4 == 0) {
          EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
        }
        break;
      case 4:
        record(lane);
        if (salt % 3 == 0) {
          EXPECT_EQ(hook_cuEventSynchronize(event_), CUDA_SUCCESS);
        }
        break;
      case 5:
        if (lane != kStreams - 1) {
          use(lane, {out, in});
          graph(lane, out, in, salt);
        }
        break;
      case 6:
        EXPECT_EQ(real().cuLaunchHostFunc(
                      handle(lane), [](void*) {}, nullptr),
                  CUDA_SUCCESS);
        break;
      case 7:
        two_threads(lane, out, salt);
        break;
      case 8:
        if (salt % 64 == 0) reset();  // the images are compiled anew: rarely
        if (salt % 64 == 1) other_context(salt / 64);
        break;
      default:
        for (uint32_t n = 1 + salt % 6; n > 0; n--) {
          use(lane, {out, in});
          launch(lane, out, in, salt + n);
        }
    }
  }

  std::vector<uint32_t> run(uint64_t seed, Mode mode) {
    return run(seed, mode, [this] {
      for (uint64_t n = 1 + random_() % kMostSteps; n > 0; n--) step();
    });
  }
  std::vector<uint32_t> run(uint64_t seed, Mode mode, const std::function<void()>& program) {
    random_.seed(seed);
    words_ = zeros(kWords);
    words_used_ = 0;
    for (uint32_t i = 0; i < kBuffers; i++) {
      buffers_[i] = zeros(kMixWords);  // until it is read
      EXPECT_EQ(real().cuMemsetD32_v2(buffers_[i], i + 1, kMixWords), CUDA_SUCCESS);
      last_lane_[i] = kLanes;
    }
    EXPECT_EQ(real().cuCtxSynchronize(), CUDA_SUCCESS);
    attach(mode == Mode::kBare ? state::Role::kForward : state::Role::kBestEffort);
    state::g_sm_count.store(mode == Mode::kDeviceCut ? kFewSms : kSms);
    std::atomic<bool> over{false};
    std::thread daemon;
    if (mode == Mode::kReserve) {
      lease(abi::kLeaseGranted, 1'000, 0);  // whatever is launched takes longer
      reserve(1, true);                     // until the thread below comes to run
      daemon = std::thread([&, seed] { disturb_reserve(seed, over); });
    } else if (mode != Mode::kBare) {
      if (mode == Mode::kDeviceCut)
        cutting();
      else if (mode == Mode::kDeviceRuns)
        lease(abi::kLeaseGranted, 500'000'000, 20 * measure(mix_, kMixBlocks, kMixThreads));
      else
        lease(abi::kLeaseGranted, 2'000'000, 0);
      gate::adopt_device_gate(page_);
      on_device_ = true;
      ipc::override_gate(*page_, abi::kGateOwnerOpens, false);
      EXPECT_TRUE(gate::pin_device_gate(context));
      quantum(1);  // until the thread below comes to run
      if (disturbed_)
        daemon = std::thread([&, seed] { disturb_gate(seed, over); });
      else
        open_all();
    }
    program();
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    over = true;
    if (daemon.joinable()) daemon.join();
    boundaries_ += page_->boundaries;
    page_->boundaries = 0;
    on_device_ = false;
    EXPECT_EQ(real().cuMemFree_v2(words_), CUDA_SUCCESS);
    return contents();
  }

  void quantum(uint16_t us) { ipc::store(region->lease.quantum_us, us, std::memory_order_relaxed); }
  void reserve(uint32_t steps, bool confine_all) {
    ipc::store(region->lease.reserved_sms, uint16_t(steps * abi::kReserveStep), std::memory_order_relaxed);
    ipc::store(region->lease.rights,
               {.confine_all = confine_all, .burst_classes = uint8_t(confine_all ? 0xf : 0)},
               std::memory_order_relaxed);
  }

  // A moment, or mostly a sleep: the program needs the processor, too.
  static void pause(std::mt19937_64& random) {
    const timespec a_while{0, long(random() % 50'000)};
    if (random() % 4 != 0) return void(ppoll(nullptr, 0, &a_while, nullptr));
    for (uint64_t n = random() % 500; n > 0; n--) base::cpu_relax();
  }
  // A daemon and protected clients that do what they like, and open in the end.
  void disturb_gate(uint64_t seed, const std::atomic<bool>& over) {
    std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15);
    state::t_thread.inside = state::kAlwaysInside;
    while (!over) {
      const uint32_t byte = random() % abi::kGateOverrideByte;
      switch (random() % 6) {
        case 0:
          ipc::close_gate(*page_, byte, random());
          break;
        case 1:
          quantum(uint16_t(random() % 3 == 0 ? 0 : 1 + random() % 40));
          break;
        default:
          open_all();
      }
      gate::watch_device_gate(link, base::now_ns());
      pause(random);
    }
    open_all();
  }
  void open_all() {
    for (uint32_t b = 0; b < abi::kGateOverrideByte; b++) ipc::gate_byte(*page_, b).store(abi::kGateByteOpen);
  }

  // A policy that cannot make up its mind.
  void disturb_reserve(uint64_t seed, const std::atomic<bool>& over) {
    std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15);
    while (!over) {
      const auto steps = uint32_t(random() % 5);
      reserve(steps, random() % 4 != 0);
      pause(random);
    }
  }

  CUmodule module_ = nullptr;
  CUfunction mix_ = nullptr;
  CUstream streams_[kStreams] = {};
  CUevent event_ = nullptr;
  CUdeviceptr buffers_[kBuffers] = {};
  CUdeviceptr words_ = 0;  // each written and waited for once
  uint32_t words_used_ = 0;
  uint32_t last_lane_[kBuffers] = {};
  abi::GatePage* page_ = nullptr;
  bool whole_ = false;      // keep_whole
  bool disturbed_ = true;   // by a daemon and protected clients
  bool on_device_ = false;  // its context has the page pinned
  std::mt19937_64 random_;
  uint64_t boundaries_ = 0;
};

TEST_F(DeviceOrder, LeavesWhatItLeavesBare) {
  const uint64_t from = number("TESSERA_RANDOM_ORDERS_FROM", 1), n = number("TESSERA_RANDOM_ORDERS", 40);
  for (uint64_t seed = from; seed < from + n; seed++) {
    const auto bare = run(seed, Mode::kBare);
    ASSERT_EQ(run(seed, seed % 2 == 0 ? Mode::kDeviceCut : Mode::kDevice), bare) << "seed " << seed;
  }
  EXPECT_GT(boundaries_, n);
}

// A graph of short kernels whose times are known goes out as sub-graphs, each of them work like a kernel.
TEST_F(DeviceOrder, SubGraphsWaitOnTheDevice) {
  constexpr uint32_t kNodes = 40, kLaunches = 8, kMostTries = 50;
  size_t n_runs = 0;
  const auto chain = [&] {
    const CUgraphExec exec = captured(0, 1, 3, kNodes);
    use(0, {0, 1});
    for (uint32_t i = 0; i < kLaunches; i++) EXPECT_EQ(hook_cuGraphLaunch(exec, streams_[0]), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    const auto known = track::find_graph(exec);
    n_runs = known ? known->runs.all().size() : 0;
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  };
  for (uint64_t seed = 1; n_runs == 0 && seed <= kMostTries; seed++) {
    const auto bare = run(seed, Mode::kBare, chain);
    ASSERT_EQ(run(seed, Mode::kDeviceRuns, chain), bare) << "seed " << seed;
  }
  EXPECT_GT(n_runs, 0u);
  EXPECT_GT(boundaries_, 0u);
}

// A trial judges how long a slice takes. Behind a closed gate it would take one for a hang, so that it asks in its thread;
// the slices of a kernel that is trusted wait on the device.
TEST_F(DeviceOrder, ATrialAsksInItsThreadAndLaterSlicesWaitOnTheDevice) {
  const uint32_t releases = cut::g_watchdog_releases.load();
  const auto program = [&] {
    use(1, {0, 1});
    launch(1, 0, 1, 5);
    if (on_device_) {
      EXPECT_GT(slices(), 1u);
      EXPECT_EQ(page_->boundaries, 0u);
      ipc::close_gate(*page_, 1, 1);
    }
    launch(1, 0, 0, 6);
    if (on_device_) {
      EXPECT_GT(page_->boundaries, 0u);
      EXPECT_EQ(hook_cuStreamQuery(streams_[1]), CUDA_ERROR_NOT_READY);
      ipc::reopen_gate(*page_, 1, 1);
    }
  };
  const auto bare = run(1, Mode::kBare, program);
  disturbed_ = false;
  EXPECT_EQ(run(1, Mode::kDeviceCut, program), bare);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases);
}

// As one that is launched into the stream does.
TEST_F(DeviceOrder, AHostFunctionAndAWaitOfAGraphInPiecesEndTheQuantum) {
  disturbed_ = false;
  const auto program = [&] {
    const CUstream capturing = streams_[kStreams - 1];
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    launch(1, 0, 0, 1);  // a trial, in its thread
    record(1);
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    launch(kStreams - 1, 0, 0, 2);
    EXPECT_EQ(hook_cuLaunchHostFunc(
                  capturing, [](void*) {}, nullptr),
              CUDA_SUCCESS);
    launch(kStreams - 1, 0, 0, 3);
    EXPECT_EQ(real().cuStreamWaitEvent(capturing, event_, CU_EVENT_WAIT_EXTERNAL), CUDA_SUCCESS);
    launch(kStreams - 1, 0, 0, 4);
    EXPECT_EQ(hook_cuStreamEndCapture(capturing, &graph), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    quantum(60'000);
    const uint64_t slices_before = slices(), before = page_->boundaries;
    EXPECT_EQ(hook_cuGraphLaunch(exec, streams_[1]), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    if (on_device_) {
      EXPECT_GT(slices(), slices_before);
      EXPECT_GE(page_->boundaries - before, 2u);  // more where this machine was slow
    }
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  };
  const auto bare = run(1, Mode::kBare, program);
  EXPECT_EQ(run(1, Mode::kDeviceCut, program), bare);
}

// The memory of the gate is no memory of the GPU any more. Who waited for it would fail.
TEST_F(DeviceOrder, TheContextThatPinnedThePageEndsWhileAnotherHasWork) {
  disturbed_ = false;
  const auto program = [&] {
    CUcontext other = nullptr;
    ASSERT_EQ(hook_cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    if (on_device_) {
      gate::unpin_device_gate(nullptr);
      ASSERT_EQ(real().cuMemHostUnregister(page_), CUDA_SUCCESS);
      ASSERT_TRUE(gate::pin_device_gate(other));
    }
    ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
    if (on_device_) ipc::close_gate(*page_, 1, 1);
    use(1, {0, 1});
    launch(1, 0, 1, 5);
    EXPECT_EQ(hook_cuCtxDestroy_v2(other), CUDA_SUCCESS);
    if (on_device_) ipc::reopen_gate(*page_, 1, 1);
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  };
  const auto bare = run(1, Mode::kBare, program);
  EXPECT_EQ(run(1, Mode::kDevice, program), bare);
}

TEST_F(DeviceOrder, LeavesItUnderAReserveToo) {
  const uint64_t from = number("TESSERA_RANDOM_ORDERS_FROM", 1), n = number("TESSERA_RANDOM_ORDERS", 40);
  keep_whole();
  const auto confined = [] {
    ipc::abi::SignalLine line{};
    confine::publish(line);
    return line.confined_launches;
  };
  const uint64_t before = confined();
  for (uint64_t seed = from; seed < from + n; seed++) {
    const auto bare = run(seed, Mode::kBare);
    ASSERT_EQ(run(seed, Mode::kReserve), bare) << "seed " << seed;
  }
  EXPECT_GT(confined() - before, n);
}

}  // namespace
}  // namespace tessera
