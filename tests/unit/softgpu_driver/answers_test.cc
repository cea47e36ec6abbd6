// The software GPU answers as an H200 did (h200_answers.def): which calls wait for what runs, whom they keep from
// launching, how many launches fit behind a closed gate. Kinds of answers are held, not times.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "support.h"

namespace softgpu_driver_test {
namespace {

struct Answer {
  const char* question;
  double us, launch_us;
};
constexpr Answer kDuringKernel[] = {
#define TS_DURING_KERNEL(question, us) {question, us, 0},
#include "h200_answers.def"
};
constexpr Answer kBehindGate[] = {
#define TS_BEHIND_GATE(question, us) {question, us, 0},
#include "h200_answers.def"
};
constexpr Answer kOtherThreads[] = {
#define TS_OTHER_THREADS(question, us, launch_us) {question, us, launch_us},
#include "h200_answers.def"
};
// Half of the shortest time that a call waited, four times the longest of those that did not.
constexpr double kWaitedUs = 40'000;

pid_t own_id() {
  return pid_t(syscall(SYS_gettid));
}

// A thread of this process that asks the driver something.
class Asker {
 public:
  Asker(CUcontext context, std::function<CUresult()> call)
      : thread_([this, context, call = std::move(call)] {
          EXPECT_CU(cuCtxSetCurrent(context));
          id_ = own_id();
          result_ = call();
          returned_ = true;
        }) {}
  // Blocks until the call has returned or sleeps.
  bool waits() const {
    constexpr int kLooks = 50;  // a thread that only passes a lock does not sleep for as many
    for (int asleep = 0; asleep < kLooks && !returned_; std::this_thread::yield())
      asleep = sleeps() ? asleep + 1 : 0;
    return !returned_;
  }
  CUresult join() {
    thread_.join();
    return result_;
  }

 private:
  bool sleeps() const {
    if (!id_) return false;
    std::string line;
    std::getline(std::ifstream("/proc/self/task/" + std::to_string(id_) + "/stat"), line);
    const size_t at = line.rfind(')');
    return at != std::string::npos && line.compare(at, 3, ") S") == 0;
  }
  std::atomic<pid_t> id_{0};
  std::atomic<bool> returned_{false};
  CUresult result_ = CUDA_SUCCESS;
  std::thread thread_;  // last: it uses the others
};

class Answers : public Cuda {
 protected:
  struct Question {
    std::function<void()> prepare;  // before anything runs
    std::function<CUresult()> call;
  };

  void SetUp() override {
    ASSERT_CU(cuInit(0));
    ASSERT_CU(cuDevicePrimaryCtxRetain(&context, 0));
    ASSERT_CU(cuCtxSetCurrent(context));
    for (CUstream* each : {&busy, &other}) ASSERT_CU(cuStreamCreate(each, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    std::memset(memory, 0, 4096);
    ASSERT_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    buffer = alloc(4096);
    fill = function("fill");
    await = function("await");
  }
  void TearDown() override {
    open();
    EXPECT_CU(cuCtxSynchronize());
    EXPECT_CU(cuDevicePrimaryCtxRelease(0));
    context = nullptr;
  }

  CUdeviceptr word() { return reinterpret_cast<CUdeviceptr>(memory); }
  void open() { std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(memory)).store(1); }
  void close() { std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(memory)).store(0); }
  CUresult run_fill(CUstream stream) { return launch(fill, 1, 32, stream, buffer, 1u, 8u); }
  void run_kernel() {
    close();
    ASSERT_CU(launch(await, 1, 1, busy, word()));
  }
  void run_gate() {
    close();
    ASSERT_CU(cuStreamWaitValue32(busy, word(), 1, CU_STREAM_WAIT_VALUE_GEQ));
    ASSERT_CU(run_fill(busy));
  }
  CUdevResourceDesc sixteen_sms() {
    CUdevResource whole{}, part{}, rest{};
    CUdevResourceDesc made_of = nullptr;
    unsigned n = 1;
    EXPECT_CU(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT_CU(cuDevSmResourceSplitByCount(&part, &n, &whole, &rest, 0, 16));
    EXPECT_CU(cuDevResourceGenerateDesc(&made_of, &part, 1));
    return made_of;
  }

  std::map<std::string, Question> questions() {
    const auto load = [this] { ASSERT_CU(cuModuleLoadData(&loaded, kPtx)); };
    const auto load_library = [this] {
      ASSERT_CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
      ASSERT_CU(cuLibraryGetKernel(&kernel, library, "add"));
    };
    const auto nothing = [] {};
    return {
        {"cuModuleLoadData(machine code)",  // PTX in a fat binary here: the software GPU runs nothing else
         {[this] {
            std::ifstream in(TESSERA_TEST_IMAGES "/kernel_default.fatbin", std::ios::binary);
            image.assign(std::istreambuf_iterator<char>(in), {});
            ASSERT_FALSE(image.empty());
          },
          [this] { return cuModuleLoadData(&loaded, image.data()); }}},
        {"cuModuleLoadData(PTX)", {nothing, [this] { return cuModuleLoadData(&loaded, kPtx); }}},
        {"cuModuleGetFunction", {load, [this] { return cuModuleGetFunction(&loaded_fill, loaded, "fill"); }}},
        {"first cuLaunchKernel of a module's function",
         {[this, load] {
            load();
            ASSERT_CU(cuModuleGetFunction(&loaded_fill, loaded, "fill"));
          },
          [this] { return launch(loaded_fill, 1, 32, other, buffer, 1u, 8u); }}},
        {"cuFuncLoad",
         {[this, load] {
            load();
            ASSERT_CU(cuModuleGetFunction(&loaded_fill, loaded, "fill"));
          },
          [this] { return cuFuncLoad(loaded_fill); }}},
        {"cuLibraryLoadData",
         {nothing,
          [this] { return cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0); }}},
        {"first cuKernelGetFunction",
         {load_library, [this] { return cuKernelGetFunction(&loaded_fill, kernel); }}},
        {"cuFuncGetAttribute",
         {nothing, [this] { return cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, fill); }}},
        {"cuOccupancyMaxActiveBlocksPerMultiprocessor",
         {nothing, [this] { return cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, fill, 128, 0); }}},
        {"cuModuleUnload", {load, [this] { return cuModuleUnload(loaded); }}},
        {"cuLibraryUnload",
         {[this, load_library] {
            load_library();
            ASSERT_CU(cuKernelGetFunction(&loaded_fill, kernel));
          },
          [this] { return cuLibraryUnload(library); }}},
        {"cuMemAlloc", {nothing, [this] { return cuMemAlloc(&address, 4 << 20); }}},
        {"cuMemFree", {[this] { address = alloc(4 << 20); }, [this] { return cuMemFree(address); }}},
        {"cuMemAllocAsync", {nothing, [this] { return cuMemAllocAsync(&address, 4 << 20, other); }}},
        {"cuMemFreeAsync",
         {[this] { ASSERT_CU(cuMemAllocAsync(&address, 4 << 20, other)); },
          [this] { return cuMemFreeAsync(address, other); }}},
        {"cuMemHostAlloc",
         {nothing, [this] { return cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP); }}},
        {"cuMemFreeHost",
         {[this] { ASSERT_CU(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP)); },
          [this] { return cuMemFreeHost(host); }}},
        {"cuMemcpyHtoDAsync of 4 KiB",
         {nothing, [this] { return cuMemcpyHtoDAsync(buffer, pageable, sizeof pageable, other); }}},
        {"cuMemcpyHtoDAsync of 4 KiB in the same stream",
         {nothing, [this] { return cuMemcpyHtoDAsync(buffer, pageable, sizeof pageable, busy); }}},
        {"cuMemcpyHtoD of 4 KiB",
         {nothing, [this] { return cuMemcpyHtoD(buffer, pageable, sizeof pageable); }}},
        {"cuMemsetD8Async in the same stream",
         {nothing, [this] { return cuMemsetD8Async(buffer, 0, 4096, busy); }}},
        {"cuEventCreate", {nothing, [this] { return cuEventCreate(&made_event, 0); }}},
        {"cuEventRecord", {nothing, [this] { return cuEventRecord(event, other); }}},
        {"cuEventRecord in the same stream", {nothing, [this] { return cuEventRecord(event, busy); }}},
        {"cuStreamCreate", {nothing, [this] { return cuStreamCreate(&made, CU_STREAM_NON_BLOCKING); }}},
        {"cuStreamDestroy",
         {[this] { ASSERT_CU(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING)); },
          [this] { return cuStreamDestroy(made); }}},
        {"cuStreamSynchronize", {nothing, [this] { return cuStreamSynchronize(busy); }}},
        {"cuStreamWriteValue32",
         {nothing, [this] { return cuStreamWriteValue32(other, word() + 64, 7, 0); }}},
        {"cuGraphInstantiate",
         {[this] { ASSERT_CU(cuGraphCreate(&graph, 0)); },
          [this] { return cuGraphInstantiate(&graph_exec, graph, 0); }}},
        {"cuMemGetInfo",
         {nothing,
          [] {
            size_t free = 0, total = 0;
            return cuMemGetInfo(&free, &total);
          }}},
        {"cuGreenCtxCreate",
         {[this] { description = sixteen_sms(); },
          [this] { return cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM); }}},
        {"cuGreenCtxDestroy",
         {[this] { ASSERT_CU(cuGreenCtxCreate(&green, sixteen_sms(), 0, CU_GREEN_CTX_DEFAULT_STREAM)); },
          [this] { return cuGreenCtxDestroy(green); }}},
        {"launch in another stream and its end",
         {nothing,
          [this] {
            if (CUresult failed = run_fill(other)) return failed;
            return cuStreamSynchronize(other);
          }}},
    };
  }

  // Asks beside what `start` makes the device do, which goes on until the question has been answered or waits.
  void ask(const Answer& answer, const std::function<void()>& start) {
    SCOPED_TRACE(answer.question);
    const Question question = questions().at(answer.question);
    question.prepare();
    start();
    if (answer.us >= kWaitedUs) {
      Asker asker(context, question.call);
      EXPECT_TRUE(asker.waits());
      open();
      EXPECT_CU(asker.join());
    } else {
      EXPECT_CU(question.call());  // or the test hangs
      EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(busy));
    }
    open();
    EXPECT_CU(cuCtxSynchronize());
  }

  CUstream busy = nullptr, other = nullptr, made = nullptr;
  CUevent event = nullptr, made_event = nullptr;
  CUfunction fill = nullptr, await = nullptr, loaded_fill = nullptr;
  CUmodule loaded = nullptr;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec graph_exec = nullptr;
  CUgreenCtx green = nullptr;
  CUdevResourceDesc description = nullptr;
  CUdeviceptr buffer = 0, address = 0;
  void *memory = nullptr, *host = nullptr;
  int number = 0;
  std::vector<char> image;
  char pageable[4096] = {};
};

TEST_F(Answers, WhichCallsWaitForAKernel) {
  for (const Answer& answer : kDuringKernel) ask(answer, [this] { run_kernel(); });
}

TEST_F(Answers, WhichCallsWaitForAClosedGate) {
  for (const Answer& answer : kBehindGate) ask(answer, [this] { run_gate(); });
}

// A call that waits beside a kernel waits behind a gate, too ("the same calls", though few of them were asked).
TEST_F(Answers, AGateIsAsGoodAsAKernel) {
  for (const Answer& answer : kDuringKernel) ask(answer, [this] { run_gate(); });
}

TEST_F(Answers, WhoseWaitKeepsOthersFromLaunching) {
  for (const Answer& answer : kOtherThreads) {
    SCOPED_TRACE(answer.question);
    const Question question = questions().at(answer.question);
    question.prepare();
    run_gate();
    Asker asker(context, question.call);
    EXPECT_TRUE(asker.waits());
    EXPECT_CU(cuEventRecord(event, other));
    (void)cuStreamQuery(other);
    if (answer.launch_us >= kWaitedUs) {
      Asker launcher(context, [this] { return run_fill(other); });
      EXPECT_TRUE(launcher.waits());
      EXPECT_CU(cuEventRecord(event, other));
      open();
      EXPECT_CU(launcher.join());
    } else {
      EXPECT_CU(run_fill(other));  // or the test hangs
      EXPECT_CU(cuStreamSynchronize(other));
    }
    open();
    EXPECT_CU(asker.join());
    EXPECT_CU(cuCtxSynchronize());
  }
}

// A call that keeps others from launching has its turn although they never stop.
TEST_F(Answers, ThreadsThatLaunchAllTheTimeDoNotHoldUpAFree) {
  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<Asker>> launchers;
  for (int i = 0; i < 4; ++i)
    launchers.push_back(std::make_unique<Asker>(context, [this, &stop] {
      CUresult failed = CUDA_SUCCESS;
      while (!stop && !failed) failed = run_fill(other);
      return failed;
    }));
  for (int i = 0; i < 20; ++i) EXPECT_CU(cuMemFree(alloc(4096)));  // or the test hangs
  stop = true;
  for (auto& launcher : launchers) EXPECT_CU(launcher->join());
}

TEST_F(Answers, HowMultiprocessorsAreSplit) {
  const struct {
    unsigned wanted, got, rest;
  } rows[] = {
#define TS_GREEN_SPLIT(wanted, got, rest) {wanted, got, rest},
#include "h200_answers.def"
  };
  CUdevResource whole{};
  ASSERT_CU(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  ASSERT_EQ(132u, whole.sm.smCount);
  for (const auto& row : rows) {
    CUdevResource part{}, rest{};
    unsigned n = 1;
    EXPECT_CU(cuDevSmResourceSplitByCount(&part, &n, &whole, &rest, 0, row.wanted));
    EXPECT_EQ(1u, n);
    EXPECT_EQ(row.got, part.sm.smCount) << row.wanted;
    EXPECT_EQ(row.rest, rest.sm.smCount) << row.wanted;
    for (CUdevResource* each : {&part, &rest}) {
      CUdevResourceDesc made_of = nullptr;
      EXPECT_CU(cuDevResourceGenerateDesc(&made_of, each, 1));
      EXPECT_CU(cuGreenCtxCreate(&green, made_of, 0, CU_GREEN_CTX_DEFAULT_STREAM));
      EXPECT_CU(cuGreenCtxDestroy(green));
    }
  }
}

// ---- hardware queues

// A context of its own queues, current while it lives.
class OwnContext {
 public:
  explicit OwnContext(const char* connections = nullptr) {
    if (connections) setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    EXPECT_CU(cuCtxCreate(&context, nullptr, 0, 0));
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  }
  ~OwnContext() { EXPECT_CU(cuCtxDestroy(context)); }
  OwnContext(const OwnContext&) = delete;

  std::vector<CUstream> streams(int n) {
    std::vector<CUstream> made(static_cast<size_t>(n));
    for (CUstream& stream : made) EXPECT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return made;
  }
  CUcontext context = nullptr;
};

TEST_F(Answers, HowManyLaunchesFitBehindAClosedGate) {
  constexpr int kLaunches =
#define TS_LAUNCHES_BEHIND_GATE(n) n
#include "h200_answers.def"
      ;
  close();
  ASSERT_CU(cuStreamWaitValue32(busy, word(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  for (int i = 1; i < kLaunches; ++i) ASSERT_CU(run_fill(busy));  // or the test hangs
  Asker last(context, [this] { return run_fill(busy); });
  EXPECT_TRUE(last.waits());
  EXPECT_CU(run_fill(other));
  EXPECT_CU(cuStreamSynchronize(other));
  open();
  EXPECT_CU(last.join());
  for (int i = 0; i < 2 * kLaunches; ++i) EXPECT_CU(run_fill(busy));
  EXPECT_CU(cuStreamSynchronize(busy));
}

TEST_F(Answers, DestructionEndsALaunchThatWaitsForRoom) {
  OwnContext own;
  const CUstream stream = own.streams(1)[0];
  close();
  ASSERT_CU(cuStreamWaitValue32(stream, word(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  const CUdeviceptr p = alloc(64);
  Asker asker(own.context, [&] {
    for (;;)
      if (CUresult failed = cuMemsetD8Async(p, 1, 64, stream)) return failed;
  });
  EXPECT_TRUE(asker.waits());
  EXPECT_CU(cuCtxDestroy(own.context));
  EXPECT_NE(CUDA_SUCCESS, asker.join());
  ASSERT_CU(cuCtxCreate(&own.context, nullptr, 0, 0));
}

TEST_F(Answers, WhichStreamsStandBehindWaitingOnes) {
  struct Row {
    const char* connections;
    int n_waiting;
    bool waits;
  };
  const Row rows[] = {
#define TS_BESIDE_WAITING_STREAMS(n, us) {nullptr, n, us >= kWaitedUs},
#include "h200_answers.def"
      {"1", 1, true}, {"32", 30, false}, {"32", 32, true}};
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << row.n_waiting << " of "
                                    << (row.connections ? row.connections : "the usual"));
    OwnContext own(row.connections);
    close();
    const CUdeviceptr p = alloc(64);
    for (CUstream stream : own.streams(row.n_waiting)) {
      ASSERT_CU(cuStreamWaitValue32(stream, word(), 1, CU_STREAM_WAIT_VALUE_GEQ));
      ASSERT_CU(cuMemsetD8Async(p, 1, 64, stream));
    }
    const CUstream fresh = own.streams(1)[0];
    EXPECT_CU(cuMemsetD8Async(p, 2, 64, fresh));
    if (row.waits) {
      const OwnContext elsewhere;  // is not held up, and does more than the fresh stream would have had to
      const CUdeviceptr q = alloc(64);
      for (int i = 0; i < 20; ++i) EXPECT_CU(cuMemsetD8(q, 3, 64));
      EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(fresh));
      open();
    }
    EXPECT_CU(cuStreamSynchronize(fresh));  // or the test hangs
    open();
    EXPECT_CU(cuCtxSynchronize());
  }
}

}  // namespace
}  // namespace softgpu_driver_test
