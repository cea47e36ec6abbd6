// The engine against an arbiter inside this process: ordering, completion, lag, abort. Real time, so only
// orders and modelled durations are asserted, never how long anything took.
#include "softgpu/timing/engine.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "profiles/gpu_description.h"
#include "softgpu/timing/device_memory.h"
#include "softgpu/timing/stretch.h"

namespace tessera::softgpu::timing {
namespace {

class Gate {  // opened once, waited for by many
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = Engine::local("test4", "timesliced");
    ASSERT_TRUE(made.ok()) << made.error().text;
    engine_ = std::move(*made);
    gpu_ = *profiles::load_gpu_description(engine_->info().description_path);
  }

  OpSpec kernel(uint64_t blocks, double instructions, Body body = {}) {
    OpSpec spec;
    spec.kind = OpKind::kKernel;
    spec.n_blocks = blocks;
    spec.threads_per_block = 256;
    spec.work_known = true;
    spec.work.warp_instructions = instructions;
    spec.body = std::move(body);
    return spec;
  }
  OpSpec action(std::vector<OpRef> deps, Body body) {
    OpSpec spec;
    spec.kind = OpKind::kAction;
    spec.deps = std::move(deps);
    spec.body = std::move(body);
    return spec;
  }
  // Operations that depend on it start when start() is called: everything is submitted before anything runs.
  OpRef start_line() {
    return engine_->submit(action({}, [this](const Report&) {
      start_.wait();
      return 0;
    }));
  }
  void start() { start_.open(); }
  OpSpec after(OpRef dep, OpSpec spec) {
    spec.deps.push_back(std::move(dep));
    return spec;
  }
  OpSpec join(std::vector<OpRef> deps) {
    OpSpec spec;
    spec.deps = std::move(deps);
    return spec;
  }

  Gate start_;
  std::unique_ptr<Engine> engine_;
  profiles::GpuDescription gpu_;
};

Body nothing() {
  return [](const Report&) { return 0; };
}

TEST_F(EngineTest, InfoNamesTheDescription) {
  EXPECT_THAT(engine_->info().description_path, testing::EndsWith("test4.toml"));
  EXPECT_EQ(engine_->info().mode, "timesliced");
  EXPECT_EQ(engine_->info().uuid, gpu_.uuid);
}

TEST_F(EngineTest, KernelTakesItsModelledTime) {
  // One wave, one block of 8 warps per SM: 6000 instructions at 6 M/s each.
  OpRef op = engine_->submit(kernel(4, 6000, nothing()));
  engine_->wait(op);
  EXPECT_TRUE(engine_->complete(op));
  EXPECT_EQ(engine_->code(op), 0);
  OpTimes times = engine_->times(op);
  EXPECT_NEAR(double(times.end_ns - times.start_ns), 1e6 + gpu_.time.block_overhead_ns, 2);
  EXPECT_GE(times.start_ns, times.enqueued_ns + uint64_t(gpu_.time.launch_overhead_ns));
  EXPECT_LE(times.end_ns, base::now_ns());
}

TEST_F(EngineTest, ChainRunsInOrderAndBackToBack) {
  std::vector<int> order;
  OpRef last;
  std::vector<OpRef> ops;
  for (int i = 0; i < 5; ++i) {
    OpSpec spec = kernel(4, 600, [&order, i](const Report&) {
      order.push_back(i);
      return 0;
    });
    spec.deps = {last};
    ops.push_back(last = engine_->submit(std::move(spec)));
  }
  engine_->wait(last);
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4));
  for (size_t i = 1; i < ops.size(); ++i)
    EXPECT_GE(engine_->times(ops[i]).start_ns, engine_->times(ops[i - 1]).end_ns);
}

TEST_F(EngineTest, BodyRunsBeforeItsModelledStart) {
  // The first kernel takes 200 s of modelled time; the body of the second, which depends on it, runs at
  // once.
  Gate second_ran;
  OpRef first = engine_->submit(kernel(4, 1.2e9, nothing()));
  OpSpec spec = kernel(4, 600, [&](const Report&) {
    second_ran.open();
    return 0;
  });
  spec.deps = {first};
  OpRef second = engine_->submit(std::move(spec));
  second_ran.wait();
  EXPECT_FALSE(engine_->complete(first));
  engine_->abort_all(1);
  engine_->wait(second);
}

TEST_F(EngineTest, ActionsRunAfterCompletion) {
  OpRef op = engine_->submit(after(start_line(), kernel(4, 6000)));
  uint64_t ran_ns = 0;
  OpRef act = engine_->submit(action({op}, [&](const Report&) {
    EXPECT_TRUE(engine_->complete(op));
    ran_ns = base::now_ns();
    return 0;
  }));
  start();
  engine_->wait(act);
  EXPECT_GE(ran_ns, engine_->times(op).end_ns);
  EXPECT_EQ(engine_->times(act).end_ns, engine_->times(op).end_ns);
}

// A stream write is made by the thread that finds it due, not by a pool that has to wake up first. (The pool's thread
// that let the kernel start may be late, and find it due itself: not each time.)
TEST_F(EngineTest, InstantActionsNeedNoThreadOfTheirOwn) {
  std::string first, second;
  const auto writes = [](std::string* to) {
    return [to](const Report&) {
      char name[16] = "";
      pthread_getname_np(pthread_self(), name, sizeof name);
      *to = name;
      return 0;
    };
  };
  for (int i = 0; i < 20; i++) {
    Gate gate;
    OpRef line = engine_->submit(action({}, [&](const Report&) {
      gate.wait();
      return 0;
    }));
    OpRef op = engine_->submit(after(line, kernel(4, 6000, nothing())));
    OpSpec write = action({op}, writes(&first));
    write.instant = true;
    OpRef written = engine_->submit(std::move(write));
    write = action({written}, writes(&second));
    write.instant = true;
    OpRef again = engine_->submit(std::move(write));
    gate.open();
    engine_->wait(again);
    EXPECT_TRUE(engine_->complete(op) && engine_->complete(written));
    if (first != "softgpu-action" && second != "softgpu-action") break;
  }
  EXPECT_THAT(first, testing::AnyOf("softgpu-recv", "softgpu-exec"));
  EXPECT_THAT(second, testing::AnyOf("softgpu-recv", "softgpu-exec"));
}

TEST_F(EngineTest, BlockingActionsDoNotBlockOthers) {
  Gate gate;
  OpRef blocked = engine_->submit(action({}, [&](const Report&) {
    gate.wait();
    return 0;
  }));
  OpRef free = engine_->submit(action({}, nothing()));
  OpRef work = engine_->submit(kernel(4, 600, nothing()));
  engine_->wait(free);
  engine_->wait(work);
  OpRef after = engine_->submit(join({blocked, work}));
  EXPECT_FALSE(engine_->complete(after));
  gate.open();
  engine_->wait(after);
}

// One thread asks for all of them, in any number, and holds up nothing else.
TEST_F(EngineTest, PolledActionsWaitTogether) {
  constexpr int kWaits = 400;
  std::atomic<int> opened{0};
  std::vector<OpRef> waits, behind;
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto before = threads();
  for (int i = 0; i < kWaits; ++i) {
    OpSpec wait = action({}, [&opened, i](const Report&) { return opened.load() > i ? 0 : kNotYet; });
    wait.polled = true;
    waits.push_back(engine_->submit(std::move(wait)));
    behind.push_back(engine_->submit(action({waits.back()}, nothing())));
  }
  engine_->wait(engine_->submit(action({}, nothing())));
  EXPECT_LE(threads(), before + 2);  // the poller, and one for the action
  opened = kWaits / 2;
  for (int i = 0; i < kWaits / 2; ++i) engine_->wait(behind[size_t(i)]);
  for (int i = kWaits / 2; i < kWaits; ++i) EXPECT_FALSE(engine_->complete(waits[size_t(i)]));
  engine_->abort_all(7);
  for (const OpRef& op : waits) engine_->wait(op);
  EXPECT_EQ(7, engine_->code(waits.back()));
  EXPECT_EQ(0, engine_->code(waits.front()));
}

TEST_F(EngineTest, ABodyMayWaitForAnother) {
  // Kernels that are on the device together may wait for each other; one executor thread must not make that a
  // deadlock.
  Gate gate;
  OpRef waits = engine_->submit(kernel(1, 600, [&](const Report&) {
    gate.wait();
    return 0;
  }));
  OpRef opens = engine_->submit(kernel(1, 600, [&](const Report&) {
    gate.open();
    return 0;
  }));
  engine_->wait(waits);
  engine_->wait(opens);
  engine_->wait(engine_->submit(kernel(1, 600, nothing())));
}

TEST_F(EngineTest, JoinTakesTheLatestEnd) {
  OpRef line = start_line();
  OpRef a = engine_->submit(after(line, kernel(4, 3000))), b = engine_->submit(after(line, kernel(4, 9000)));
  OpRef both = engine_->submit(join({a, b, nullptr, a}));
  start();
  engine_->wait(both);
  EXPECT_EQ(engine_->times(both).end_ns, std::max(engine_->times(a).end_ns, engine_->times(b).end_ns));
}

TEST_F(EngineTest, ManyDependencies) {
  std::vector<OpRef> all;
  Gate gate;
  OpRef holder = engine_->submit(action({}, [&](const Report&) {
    gate.wait();
    return 0;
  }));
  for (int i = 0; i < 9000; ++i) all.push_back(engine_->submit(join({holder})));
  OpRef end = engine_->submit(join(all));
  EXPECT_FALSE(engine_->complete(end));
  gate.open();
  engine_->wait(end);
  for (auto& op : all) EXPECT_TRUE(engine_->complete(op));
}

TEST_F(EngineTest, RunsAheadFurtherThanTheArbiterAccepts) {
  constexpr int kOps = 300'000;  // more than wire::kMaxOperations
  Gate gate;
  OpRef last = engine_->submit(action({}, [&](const Report&) {
    gate.wait();
    return 0;
  }));
  std::atomic<int> callbacks{0};
  for (int i = 0; i < kOps; ++i) {
    OpSpec spec = join({last});
    if (i >= kOps - 100) {  // kernels whose bodies run long before the arbiter hears of them
      spec = kernel(4, 0, [](const Report& report) {
        report({60, 0, 0});
        return 0;
      });
      spec.work_known = false;
    }
    spec.on_complete = [&](int code) { callbacks += code == 0; };
    last = engine_->submit(std::move(spec));
  }
  OpRef end = engine_->submit(join({last}));
  gate.open();
  engine_->wait(end);
  EXPECT_EQ(engine_->code(end), 0);
  EXPECT_FALSE(engine_->lost());
  EXPECT_GE(engine_->times(last).end_ns - engine_->times(last).start_ns, 10'000u);
  while (callbacks < kOps) std::this_thread::yield();  // called after completion, by engine threads
}

TEST_F(EngineTest, CostBecomesKnownThroughReports) {
  OpSpec spec = kernel(4, 0, [](const Report& report) {
    report({6000, 0, 0});
    return 0;
  });
  spec.work_known = false;
  spec.cost_key = 7;
  OpRef first = engine_->submit(spec);
  engine_->wait(first);
  OpTimes t = engine_->times(first);
  EXPECT_GE(t.end_ns - t.start_ns, 1'000'000u);
  OpRef second = engine_->submit(spec);  // known from the first now
  engine_->wait(second);
  t = engine_->times(second);
  EXPECT_NEAR(double(t.end_ns - t.start_ns), 1e6 + gpu_.time.block_overhead_ns, 2);
}

TEST_F(EngineTest, LateBodyDelaysCompletionNotTheModel) {
  Gate gate;
  OpRef op = engine_->submit(kernel(4, 600, [&](const Report&) {
    gate.wait();
    return 0;
  }));
  OpSpec spec = kernel(4, 600);  // another stream; shows that modelled time has passed
  OpRef probe = engine_->submit(spec);
  OpRef probe2 = engine_->submit(join({probe}));
  engine_->wait(probe2);
  EXPECT_FALSE(engine_->complete(op));
  EXPECT_EQ(engine_->times(op).end_ns, 0u);
  uint64_t opened_ns = base::now_ns();
  gate.open();
  engine_->wait(op);
  EXPECT_LT(engine_->times(op).end_ns, opened_ns);
}

TEST_F(EngineTest, CodesAndCallbacks) {
  std::atomic<int> seen{0};
  OpSpec spec = kernel(4, 600, [](const Report&) { return 700; });
  Gate called;
  spec.on_complete = [&](int code) {
    seen = code;
    called.open();
  };
  OpRef op = engine_->submit(std::move(spec));
  engine_->wait(op);
  called.wait();
  EXPECT_EQ(seen, 700);
  EXPECT_EQ(engine_->code(op), 700);
}

TEST_F(EngineTest, AbortEndsEverythingAndTheEngineGoesOn) {
  Gate started, finish;
  std::atomic<int> callbacks{0};
  OpRef running = engine_->submit(kernel(4, 6e6, [&](const Report&) {
    started.open();
    finish.wait();
    return 0;
  }));
  std::vector<OpRef> waiting;
  Gate all_called;
  for (int i = 0; i < 10; ++i) {
    OpSpec spec = kernel(4, 6e6, [](const Report&) {
      ADD_FAILURE() << "dropped operations do not run";
      return 0;
    });
    spec.deps = {waiting.empty() ? running : waiting.back()};
    spec.on_complete = [&](int code) {
      EXPECT_EQ(code, 719);
      if (++callbacks == 10) all_called.open();
    };
    waiting.push_back(engine_->submit(std::move(spec)));
  }
  started.wait();
  engine_->abort_all(719);
  for (auto& op : waiting) {
    engine_->wait(op);
    EXPECT_EQ(engine_->code(op), 719);
  }
  all_called.wait();
  EXPECT_FALSE(engine_->complete(running));
  finish.open();
  engine_->wait(running);
  EXPECT_EQ(engine_->code(running), 719);
  OpRef after = engine_->submit(kernel(4, 600, nothing()));
  engine_->wait(after);
  EXPECT_EQ(engine_->code(after), 0);
}

TEST_F(EngineTest, CopiesUseTheirEngines) {
  OpSpec spec;
  spec.kind = OpKind::kCopy;
  spec.bytes = 400'000;
  OpRef line = start_line();
  spec.direction = CopyDirection::kHostToDevice;
  OpRef down = engine_->submit(after(line, spec));
  spec.direction = CopyDirection::kDeviceToHost;
  OpRef up = engine_->submit(after(line, spec));
  start();
  engine_->wait(down);
  engine_->wait(up);
  OpTimes d = engine_->times(down), u = engine_->times(up);
  EXPECT_NEAR(double(d.end_ns - d.start_ns), 1e6 + gpu_.transfer.overhead_ns, 2);
  EXPECT_EQ(u.start_ns, d.start_ns);
}

TEST_F(EngineTest, DestroyWithWorkOutstanding) {
  for (int i = 0; i < 50; ++i) engine_->submit(kernel(400, 6e6, nothing()));
  engine_.reset();
}

TEST_F(EngineTest, ForkedChildIsRefusedAndHarmless) {
  OpRef op = engine_->submit(kernel(4, 600, nothing()));
  pid_t child = fork();
  if (child == 0) {
    OpRef mine = engine_->submit(join({}));
    bool refused = engine_->lost() && engine_->complete(mine) && engine_->code(mine) == kDeviceLost;
    engine_->wait(op);  // returns at once
    engine_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  engine_->wait(op);
  EXPECT_FALSE(engine_->lost());
}

// Dependencies of another device hold bodies and modelled ends back, and either engine answers for both.
TEST_F(EngineTest, DependsOnAnotherEngine) {
  auto other = Engine::local("test4", "timesliced", 1);
  ASSERT_TRUE(other.ok()) << other.error().text;
  Gate gate;
  std::atomic<int> order{0};
  int first = 0, second = 0;
  OpSpec before, after;
  before.kind = after.kind = OpKind::kAction;
  before.body = [&](const Report&) {
    gate.wait();
    first = ++order;
    return 0;
  };
  after.body = [&](const Report&) {
    second = ++order;
    return 0;
  };
  OpRef far = (*other)->submit(std::move(before));
  after.deps = {far};
  OpRef near = engine_->submit(std::move(after));
  EXPECT_FALSE(engine_->complete(far));
  EXPECT_FALSE(engine_->complete(near));
  gate.open();
  (*other)->wait(near);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
  EXPECT_TRUE(engine_->complete(far));
  EXPECT_GE(engine_->times(near).end_ns, engine_->times(far).end_ns);
}

TEST(EngineLocal, BadArguments) {
  auto mode = Engine::local("test4", "fast");
  ASSERT_FALSE(mode.ok());
  EXPECT_THAT(mode.error().text, testing::HasSubstr("timesliced or mps"));
  auto file = Engine::local("no-such-gpu", "mps");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().text, testing::HasSubstr("TESSERA_SOFTGPU_GPU"));
}

TEST(Stretch, ModelledTimePassesMoreSlowly) {
  const StretchedClock usual(1000, 1), slow(1000, 2.5);
  EXPECT_EQ(usual.modelled_ns(123'456'789), 123'456'789u);
  EXPECT_EQ(usual.real_ns(123'456'789), 123'456'789u);
  EXPECT_EQ(slow.modelled_ns(1000 + 2500), 1000u + 1000);
  EXPECT_EQ(slow.real_ns(1000 + 1001), 1000u + 2503);  // rounded up
  EXPECT_EQ(slow.modelled_ns(999), 1000u);             // before its time there is none
  EXPECT_EQ(slow.real_ns(UINT64_MAX), UINT64_MAX);     // never is never
}

class Stretched : public testing::Test {
 protected:
  void SetUp() override { setenv("TESSERA_SOFTGPU_STRETCH", "3", 1); }
  void TearDown() override { unsetenv("TESSERA_SOFTGPU_STRETCH"); }
};

TEST_F(Stretched, OperationsTakeSoManyTimesLonger) {
  auto engine = Engine::local("test4", "timesliced");
  ASSERT_TRUE(engine.ok()) << engine.error().text;
  EXPECT_EQ((*engine)->info().stretch, 3);
  OpSpec spec;
  spec.kind = OpKind::kKernel;
  spec.n_blocks = 4;
  spec.threads_per_block = 256;
  spec.work_known = true;
  spec.work.warp_instructions = 6000;
  OpRef op = (*engine)->submit(spec);
  (*engine)->wait(op);
  const OpTimes times = (*engine)->times(op);
  EXPECT_NEAR(double(times.end_ns - times.start_ns), 3 * 1'000'500, 10);
  EXPECT_GE(times.start_ns, times.enqueued_ns);  // a program's own clock agrees
  EXPECT_LE(times.end_ns, base::now_ns());
}

TEST_F(Stretched, NonsenseIsRefused) {
  for (const char* factor : {"0.5", "1001", "2x", "nan", "-3"}) {
    setenv("TESSERA_SOFTGPU_STRETCH", factor, 1);
    auto engine = Engine::local("test4", "timesliced");
    ASSERT_FALSE(engine.ok()) << factor;
    EXPECT_THAT(engine.error().text, testing::HasSubstr("TESSERA_SOFTGPU_STRETCH"));
  }
}

TEST(EngineTrace, RecordsAndSummary) {
  char folder[] = "/tmp/tessera-trace-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder));
  setenv("TESSERA_SOFTGPU_TRACE", folder, 1);
  auto engine = Engine::local("test4", "mps");
  unsetenv("TESSERA_SOFTGPU_TRACE");
  ASSERT_TRUE(engine.ok());
  OpSpec spec;
  spec.kind = OpKind::kKernel;
  spec.n_blocks = 4;
  spec.threads_per_block = 256;
  spec.work_known = true;
  spec.work.warp_instructions = 600;
  spec.work.fp32_operations = 1.5;
  spec.registers_per_thread = 24;
  spec.image_hash = 0xabc;
  spec.block = {128, 2, 1};
  spec.dynamic_shared_bytes = 512;
  spec.body = nothing();
  spec.name = "with,comma";
  spec.stream = 42;
  (*engine)->wait((*engine)->submit(spec));
  engine->reset();
  std::string base = std::string(folder) + "/softgpu-" + std::to_string(getpid());
  std::stringstream csv, json;
  csv << std::ifstream(base + ".csv").rdbuf();
  json << std::ifstream(base + ".json").rdbuf();
  EXPECT_THAT(csv.str(), testing::HasSubstr("\nkernel,with;comma,42,"));
  EXPECT_THAT(csv.str(), testing::EndsWith(",4,256,24,0,600,0,0,0,1.5,0,0x0000000000000abc,128,2,1,512,0\n"));
  EXPECT_THAT(json.str(), testing::HasSubstr("\"ops\": 1, \"timed_ops\": 1, \"modelled_busy_ns\": 100500"));
  std::filesystem::remove_all(folder);
}

// The trace of a stretched device is written as if it had not been stretched.
TEST_F(Stretched, TracesAreModelledTime) {
  char folder[] = "/tmp/tessera-trace-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder));
  setenv("TESSERA_SOFTGPU_TRACE", folder, 1);
  auto engine = Engine::local("test4", "mps");
  unsetenv("TESSERA_SOFTGPU_TRACE");
  ASSERT_TRUE(engine.ok());
  OpSpec spec;
  spec.kind = OpKind::kKernel;
  spec.n_blocks = 4;
  spec.threads_per_block = 256;
  spec.work_known = true;
  spec.work.warp_instructions = 6000;
  (*engine)->wait((*engine)->submit(spec));
  engine->reset();
  std::ifstream csv(std::string(folder) + "/softgpu-" + std::to_string(getpid()) + ".csv");
  std::string line;
  std::getline(csv, line);
  std::getline(csv, line);
  unsigned long start = 0, end = 0;
  ASSERT_EQ(sscanf(line.c_str(), "kernel,,0,%*u,%lu,%lu", &start, &end), 2) << line;
  EXPECT_NEAR(double(end - start), 1'000'500, 2);
  std::filesystem::remove_all(folder);
}

// In a process of its own: 0 if it could count there.
int counts_in_a_child(const std::function<bool()>& prepare, const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    if (!prepare()) _exit(77);
    DeviceMemory memory(1 << 20, folder + "/memory");
    _exit(memory.take(4096) && memory.used() >= 4096 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Whoever touches what the disk has no room for gets a signal.
TEST(DeviceMemory, AFileForWhichThereIsNoRoomIsNotUsed) {
  const std::string folder = testing::TempDir() + "tessera-no-room-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  const auto small_files = [] {
    const rlimit none{0, 0};
    return setrlimit(RLIMIT_FSIZE, &none) == 0;
  };
  EXPECT_EQ(counts_in_a_child(small_files, folder), 0);
  const auto full_disk = [&] {
    if (unshare(CLONE_NEWNS) != 0) return false;  // root's right
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
    if (mount("none", folder.c_str(), "tmpfs", 0, "size=16k") != 0) return false;
    std::ofstream(folder + "/filler") << std::string(64 << 10, ' ');
    return true;
  };
  EXPECT_THAT(counts_in_a_child(full_disk, folder), testing::AnyOf(0, 77));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera::softgpu::timing
