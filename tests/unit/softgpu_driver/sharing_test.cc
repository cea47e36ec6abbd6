// Two processes on one device through the driver library and the arbiter, without Tessera: one long kernel of
// little importance fills the device, the other process sends short requests. What is asserted, in modelled
// time, is what is published about real devices: time slices cost a request a slice of the neighbour per
// slice of its own, whatever the priorities and the length of blocks; under MPS without priority it waits for
// the whole long kernel; with priority, of the client or the stream, it waits for blocks that run, so that
// long blocks defeat priority.
//
// The parent must not initialise the driver: children are forked before. Bounds from above hold for the best
// of several requests, since a host thread may be late between two calls; bounds from below hold for all.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

// On the default description 32 blocks of 256 threads fill the device; a round is three instructions, so that
// a wave of them takes 32 us of modelled time per round.
constexpr unsigned kWave = 32, kThreads = 256;
constexpr double kMsPerRound = 0.032;
constexpr double kRequestMs = 5, kSliceMs = 2, kSwitchMs = 0.15;
// A request needs three slices of its own, the last one half; two turns of the neighbour lie between them, up
// to one before.
constexpr double kTurnMs = kSliceMs + 2 * kSwitchMs;

unsigned rounds(double ms) {
  return unsigned(ms / kMsPerRound);
}

// A child process that runs `body` with one pipe from and one to the parent.
class Child {
 public:
  explicit Child(const std::function<void(int in, int out)>& body) {
    int to[2], from[2];
    EXPECT_EQ(pipe(to), 0);
    EXPECT_EQ(pipe(from), 0);
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);
      close(to[1]);
      close(from[0]);
      body(to[0], from[1]);
      _exit(0);
    }
    close(to[0]);
    close(from[1]);
    in_ = to[1];
    out_ = from[0];
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(in_);
    close(out_);
  }
  void go() { EXPECT_EQ(write(in_, "g", 1), 1); }
  double next() {  // a number that the child reports; -1 if it is gone
    double value = -1;
    return read(out_, &value, sizeof value) == sizeof value ? value : -1;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

// Calls of a child end it if they fail: the parent sees the closed pipe.
void must(CUresult result) {
  if (result != CUDA_SUCCESS) _exit(1);
}
void tell(int out, double value) {
  if (write(out, &value, sizeof value) != sizeof value) _exit(1);
}

struct Device {
  CUcontext context;
  CUmodule module;
  CUfunction spin;
  CUdeviceptr p;
  CUstream stream;
  CUevent begin, end;

  explicit Device(int stream_priority) {
    must(cuInit(0));
    must(cuCtxCreate(&context, nullptr, 0, 0));
    must(cuModuleLoadData(&module, kPtx));
    must(cuModuleGetFunction(&spin, module, "spin"));
    must(cuMemAlloc(&p, 64));
    must(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, stream_priority));
    must(cuEventCreate(&begin, 0));
    must(cuEventCreate(&end, 0));
  }
  void submit(unsigned blocks, unsigned n_rounds) {
    void* params[] = {&p, &n_rounds};
    Gate gate;  // submitted as a whole: delays of this thread between the calls do not count
    must(gate.hold(stream));
    must(cuEventRecord(begin, stream));
    must(cuLaunchKernel(spin, blocks, 1, 1, kThreads, 1, 1, 0, stream, params, nullptr));
    must(cuEventRecord(end, stream));
    gate.open();
  }
  double wait() {  // modelled milliseconds from submission to the end
    float ms = 0;
    must(cuEventSynchronize(end));
    must(cuEventElapsedTime(&ms, begin, end));
    return double(ms);
  }
};

struct Neighbour {
  double total_ms = 2000, block_ms = 2;
  const char* client_priority = "0";  // 1 is below normal
};

class Sharing : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tessera-sharing-XXXXXX";
    ASSERT_TRUE(mkdtemp(folder));
    folder_ = folder;
    setenv("TESSERA_SOFTGPU_DIR", folder, 1);
    setenv("TESSERA_SOFTGPU_LINGER_MS", "50", 1);
    unsetenv("TESSERA_SOFTGPU_GPU");
    unsetenv("TESSERA_SOFTGPU_LOCAL");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Modelled times of n requests beside the neighbour, in order of submission.
  std::vector<double> requests(const char* mode, const Neighbour& neighbour, int n, int stream_priority = 0) {
    setenv("TESSERA_SOFTGPU_MODE", mode, 1);
    Child client([&](int in, int out) {
      setenv("CUDA_MPS_CLIENT_PRIORITY", "0", 1);
      Device device(stream_priority);
      device.submit(kWave, rounds(kRequestMs));
      tell(out, device.wait());  // alone
      char byte;
      if (read(in, &byte, 1) != 1) _exit(1);
      for (int i = 0; i < n; ++i) {
        device.submit(kWave, rounds(kRequestMs));
        tell(out, device.wait());
      }
    });
    EXPECT_GT(client.next(), kRequestMs - 0.5);
    Child busy([&](int, int out) {
      setenv("CUDA_MPS_CLIENT_PRIORITY", neighbour.client_priority, 1);
      Device device(0);
      device.submit(unsigned(neighbour.total_ms / neighbour.block_ms) * kWave, rounds(neighbour.block_ms));
      must(cuEventSynchronize(device.begin));
      tell(out, 1);
      pause();
    });
    EXPECT_EQ(busy.next(), 1);
    client.go();
    std::vector<double> times;
    for (int i = 0; i < n; ++i) {
      times.push_back(client.next());
      if (times.back() < 0) {
        ADD_FAILURE() << "the client failed";
        break;
      }
    }
    return times;
  }
  static double best(const std::vector<double>& times) {
    return *std::min_element(times.begin(), times.end());
  }
  static double worst(const std::vector<double>& times) {
    return *std::max_element(times.begin(), times.end());
  }

  // Children started from now on share a device of their own.
  void another_device(const char* mode) const {
    const std::string folder = folder_ + "/" + mode;
    std::filesystem::create_directory(folder);
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
    setenv("TESSERA_SOFTGPU_DIR", folder.c_str(), 1);
    setenv("TESSERA_SOFTGPU_MODE", mode, 1);
  }

  std::string folder_;
};

TEST_F(Sharing, TimeSlicesCostATurnPerSlice) {
  const auto times = requests("timesliced", {}, 8);
  EXPECT_GT(best(times), kRequestMs + 2 * kTurnMs - 0.5);
  EXPECT_LT(best(times), kRequestMs + 3 * kTurnMs + 2);
}

TEST_F(Sharing, TimeSlicesKnowNoPriorityAcrossProcesses) {
  Neighbour low;
  low.client_priority = "1";
  const auto times = requests("timesliced", low, 8, -5);
  EXPECT_GT(best(times), kRequestMs + 2 * kTurnMs - 0.5);
}

TEST_F(Sharing, TimeSlicesDoNotWaitForBlocks) {
  Neighbour long_blocks;
  long_blocks.block_ms = 40;
  EXPECT_LT(best(requests("timesliced", long_blocks, 8)), kRequestMs + 3 * kTurnMs + 2);
}

TEST_F(Sharing, MpsWithoutPriorityWaitsForTheWholeKernel) {
  Neighbour neighbour;
  neighbour.total_ms = 1000;
  EXPECT_GT(best(requests("mps", neighbour, 1)), 300);
}

TEST_F(Sharing, MpsClientPriorityWaitsForRunningBlocksOnly) {
  Neighbour low;
  low.client_priority = "1";
  const auto times = requests("mps", low, 8);
  EXPECT_LT(best(times), kRequestMs + low.block_ms + 1);
  EXPECT_LT(best(times), kRequestMs + 2 * kTurnMs - 0.5);  // better than time slices
}

TEST_F(Sharing, MpsStreamPriorityActsAcrossClients) {
  EXPECT_LT(best(requests("mps", {}, 8, -5)), kRequestMs + 2 + 1);
}

TEST_F(Sharing, LongBlocksDefeatMpsPriority) {
  Neighbour low;
  low.client_priority = "1";
  low.block_ms = 60;
  EXPECT_GT(worst(requests("mps", low, 3)), kRequestMs + 3 * kTurnMs + 2);  // worse than time slices
}

// A client that makes a request for each byte it is sent.
void serve(int in, int out) {
  Device device(0);
  device.submit(kWave, rounds(kRequestMs));
  tell(out, device.wait());  // alone
  for (char byte; read(in, &byte, 1) == 1;) {
    device.submit(kWave, rounds(kRequestMs));
    tell(out, device.wait());
  }
}

// SIGKILL of a client whose kernel fills the device: its blocks leave, the arbiter and the others go on.
TEST_F(Sharing, AKilledNeighbourLeavesTheDevice) {
  for (const char* mode : {"timesliced", "mps"}) {
    another_device(mode);
    Child client(serve);
    EXPECT_GT(client.next(), kRequestMs - 0.5);
    {
      Child busy([](int, int out) {
        Device device(0);
        device.submit(50 * kWave, rounds(40));  // two seconds
        must(cuEventSynchronize(device.begin));
        tell(out, 1);
        pause();
      });
      EXPECT_EQ(busy.next(), 1);
      client.go();
    }  // killed while the request waits
    const double beside = client.next();
    EXPECT_GT(beside, 0) << mode;
    EXPECT_LT(beside, 1000) << mode;
    double least = 1000;  // a busy host may delay one
    for (int i = 0; i < 8; i++) {
      client.go();
      least = std::min(least, client.next());
    }
    EXPECT_GT(least, 0) << mode;
    EXPECT_LT(least, kRequestMs + 1) << mode;
  }
}

// A client's work, over and over; it says so after each step, and does not wait to be heard.
void restless(int, int out) {
  CUcontext context;
  CUmodule module;
  CUfunction spin;
  CUstream stream;
  CUdeviceptr p;
  unsigned blocks = 2 * kWave, n_rounds = rounds(1);
  void* params[] = {&p, &n_rounds};
  const auto launch = [&] {
    return cuLaunchKernel(spin, blocks, 1, 1, kThreads, 1, 1, 0, stream, params, nullptr);
  };
  const std::function<CUresult()> steps[] = {
      [] { return cuInit(0); },
      [&] { return cuCtxCreate(&context, nullptr, 0, 0); },
      [&] { return cuModuleLoadData(&module, kPtx); },
      [&] { return cuModuleGetFunction(&spin, module, "spin"); },
      [&] { return cuMemAlloc(&p, 1 << 20); },
      [&] { return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); },
      [&] { return cuMemsetD8Async(p, 1, 1 << 20, stream); },
      launch,
      launch,
      [&] { return cuMemcpyDtoDAsync(p, p + (1 << 19), 1 << 19, stream); },
      [&] { return cuStreamSynchronize(stream); },
      launch,
      [&] { return cuMemFree(p); },
      [&] { return cuCtxDestroy(context); },
  };
  for (;;)
    for (const auto& step : steps) {
      must(step());
      tell(out, 1);
    }
}

// SIGKILL of clients at every point of their lives: while they start, connect, submit, run, free and leave.
TEST_F(Sharing, ClientsMayBeKilledAtAnyPoint) {
  for (const char* mode : {"timesliced", "mps"}) {
    another_device(mode);
    Child client(serve);
    EXPECT_GT(client.next(), kRequestMs - 0.5);
    for (int steps = 0; steps < 18; ++steps) {
      Child victim(restless);
      for (int i = 0; i < steps; ++i) EXPECT_EQ(victim.next(), 1);
    }  // killed during the next step, or soon after
    std::vector<double> after;
    for (int i = 0; i < 4; ++i) {
      client.go();
      after.push_back(client.next());
      EXPECT_GT(after.back(), 0) << mode;
    }
    EXPECT_LT(best(after), kRequestMs + 1) << mode;  // the device is its own again
  }
}

// Modelled milliseconds of a copy of 1 MiB within the device.
double copy_ms(Device& device, CUdeviceptr to, CUdeviceptr from) {
  Gate gate;
  must(gate.hold(device.stream));
  must(cuEventRecord(device.begin, device.stream));
  must(cuMemcpyDtoDAsync(to, from, 1 << 20, device.stream));
  must(cuEventRecord(device.end, device.stream));
  gate.open();
  return device.wait();
}

// Two processes that are bound by memory get half of its bandwidth each.
TEST_F(Sharing, MemoryBoundWorkSharesBandwidth) {
  setenv("TESSERA_SOFTGPU_MODE", "mps", 1);
  Child client([](int in, int out) {
    Device device(0);
    CUdeviceptr a, b;
    must(cuMemAlloc(&a, 1 << 20));
    must(cuMemAlloc(&b, 1 << 20));
    tell(out, copy_ms(device, a, b));
    for (char byte; read(in, &byte, 1) == 1;) tell(out, copy_ms(device, a, b));
  });
  std::vector<double> first = {client.next()};
  for (int i = 0; i < 4; ++i) {
    client.go();
    first.push_back(client.next());
  }
  const double alone = best(first);
  EXPECT_GT(alone, 0);
  Child busy([](int, int out) {
    Device device(0);
    CUdeviceptr a, b;
    must(cuMemAlloc(&a, 1 << 20));
    must(cuMemAlloc(&b, 1 << 20));
    for (int i = 0; i < 400; ++i) must(cuMemcpyDtoDAsync(a, b, 1 << 20, device.stream));
    copy_ms(device, a, b);  // never reached in time: the copies before take two seconds
    tell(out, 1);
  });
  // Until the neighbour is at work: then all take longer, and the best of some as long as the model says.
  std::vector<double> beside;
  for (int i = 0; i < 60 && (beside.empty() || best(beside) < 1.6 * alone); ++i) {
    beside.clear();
    for (int k = 0; k < 3; ++k) {
      client.go();
      beside.push_back(client.next());
    }
  }
  EXPECT_GT(best(beside), 1.6 * alone);
  EXPECT_LT(best(beside), 2.4 * alone);
}

}  // namespace
}  // namespace softgpu_driver_test
