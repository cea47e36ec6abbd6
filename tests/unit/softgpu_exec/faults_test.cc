// Faults and their reports, barriers and warp-synchronous operations in divergent code, refusals at load.
#include <atomic>
#include <thread>

#include "tests/unit/softgpu_exec/harness.h"

namespace tessera::softgpu::exec {
namespace {

// A kernel with one 64-bit pointer parameter %rd1, %r1 = tid.x, some registers.
std::string kernel(const std::string& body, const std::string& head = "") {
  return ptx_header() + head +
         ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<8>;\n.reg .b32 %r<32>;\n.reg .b64 "
         "%rd<16>;\n.reg .f32 %f<8>;\n"
         "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, "
         "%rd2;\n" +
         body + "\nret;\n}\n";
}
Fault run(const std::string& text, uint64_t address, uint32_t threads = 32, uint32_t blocks = 1) {
  TestModule m(text);
  EXPECT_TRUE(m.ok()) << m.error;
  if (!m.ok()) return {};
  return m.run("k", {blocks, 1, 1}, {threads, 1, 1}, Params().add(address));
}

TEST(Faults, OutOfBoundsNamesThreadAndAllocation) {
  DeviceArray<uint32_t> a(50);
  const Fault f = run(kernel("st.global.u32 [%rd3], %r1;"), a.address(), 64);
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  EXPECT_EQ(f.kernel, "k");
  EXPECT_EQ(f.thread[0], 50u);
  EXPECT_EQ(f.address, a.address() + 200);
  EXPECT_GT(f.line, 5u);
  EXPECT_NE(f.text.find("nearest allocation"), std::string::npos) << f.text;
}
// An allocation of 100 bytes, a constant of 8 and shared memory of 100 and 12 bytes: what lies between their
// ends and the granule's is hardware's to give.
TEST(Faults, BoundsAreThoseOfHardwareOrExact) {
  using Bounds = AllocationMap::Bounds;
  const std::string objects =
      ".const .align 8 .b8 c[8];\n.shared .align 4 .b8 s[100];\n.extern .shared .align 4 .b8 d[];\n";
  const struct {
    const char* body;
    bool hardware;  // lets it happen
  } rows[] = {
      {"st.global.u32 [%rd1+96], 7;", true},
      {"st.global.u32 [%rd1+100], 7;", true},
      {"ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+496];", true},
      {"ld.global.u32 %r2, [%rd1+512];", false},
      {"ld.global.u32 %r2, [%rd1-4];", false},
      {"ld.const.u32 %r2, [c+508];", true},
      {"ld.const.u32 %r2, [c+512];", false},
      {"mov.u64 %rd4, c; st.global.u32 [%rd4], %r1;", true},
      {"mov.u32 %r2, s; st.shared.u32 [%r2+124], 1;", true},
      {"mov.u32 %r2, s; st.shared.u32 [%r2+128], 1;", false},
      {"mov.u32 %r2, d; mov.u32 %r2, %total_smem_size; and.b32 %r2, %r2, 127; setp.ne.u32 %p1, %r2, 0; @%p1 "
       "trap;",
       true},
  };
  for (const Bounds bounds : {Bounds::kExact, Bounds::kHardware}) {
    AllocationMap memory(bounds);
    alignas(512) static char bytes[1024];
    memory.add(reinterpret_cast<uint64_t>(bytes), 100, true, kGlobalGranuleBytes);
    for (const auto& row : rows) {
      auto module = ptx::parse(kernel(row.body, objects));
      ASSERT_TRUE(module.ok());
      auto program = Program::load(module.value(), memory);
      ASSERT_TRUE(program.ok());
      Launch launch;
      launch.grid = {1, 1, 1}, launch.block = {1, 1, 1};
      launch.dynamic_shared_bytes = 12;  // they begin at byte 112
      Params params;
      params.add(reinterpret_cast<uint64_t>(bytes));
      launch.params = params.data();
      const Fault f = (*program)->run(*(*program)->kernel("k"), launch, 1, nullptr, nullptr, nullptr);
      const bool passes = &row == rows || (bounds == Bounds::kHardware && row.hardware);
      EXPECT_EQ(f.kind == FaultKind::kNone, passes) << row.body << ": " << f.text;
    }
  }
}
// The reserved region lies behind the block's own shared memory and is zero when a block begins.
TEST(Memory, ReservedSharedMemoryIsApart) {
  DeviceArray<uint32_t> out(8 * 32);
  TestModule m(kernel(
      "mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 128, 0; cvt.u64.u32 %rd4, %r3; add.u64 %rd3, %rd3, %rd4;\n"
      "mov.u32 %r4, s; mad.lo.u32 %r4, %r1, 4, %r4; mov.u32 %r5, %reserved_smem_offset_1;\n"
      "cvt.u64.u32 %rd5, %r5; cvta.shared.u64 %rd5, %rd5; add.u64 %rd5, %rd5, %rd2;\n"
      "mov.u32 %r6, -1; st.shared.u32 [%r4], %r6; ld.u32 %r7, [%rd5]; st.u32 [%rd5], %r1; st.u32 [%rd5+160], "
      "%r6;\n"
      "ld.shared.u32 %r8, [%r4]; ld.u32 %r9, [%rd5]; add.u32 %r9, %r9, %r8; add.u32 %r9, %r9, %r7;\n"
      "mov.u32 %r10, %reserved_smem_offset_begin; mov.u32 %r11, %reserved_smem_offset_end; sub.u32 %r11, "
      "%r11, "
      "%r10; setp.ne.u32 %p1, %r11, 1024; @%p1 trap; st.global.u32 [%rd3], %r9;",
      ".shared .align 4 .b8 s[128];\n"));
  ASSERT_TRUE(m.ok()) << m.error;
  const Fault f = m.run("k", {8, 1, 1}, {32, 1, 1}, Params().add(out.address()));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 8 * 32; ++i) ASSERT_EQ(out[i], i % 32 - 1) << i;
}
TEST(Faults, NullPointer) {
  EXPECT_EQ(run(kernel("ld.global.u32 %r2, [%rd3];"), 0).kind, FaultKind::kIllegalAddress);
}
TEST(Faults, ReadAcrossTheEnd) {
  DeviceArray<uint32_t> a(33);
  const Fault f =
      run(kernel("mul.wide.u32 %rd2, %r1, 8; add.s64 %rd3, %rd1, %rd2; ld.global.u64 %rd4, [%rd3];"),
          a.address());
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  EXPECT_EQ(f.thread[0], 16u);
}
TEST(Faults, UseAfterFree) {
  DeviceArray<uint32_t> a(64);
  const std::string text = kernel("ld.global.u32 %r2, [%rd3]; st.global.u32 [%rd3], %r2;");
  EXPECT_EQ(run(text, a.address()).kind, FaultKind::kNone);
  const uint64_t address = a.address();
  a.release();
  EXPECT_EQ(run(text, address).kind, FaultKind::kIllegalAddress);
}
TEST(Faults, Misaligned) {
  DeviceArray<uint32_t> a(64);
  EXPECT_EQ(run(kernel("ld.global.u32 %r2, [%rd3+2];"), a.address()).kind, FaultKind::kMisalignedAddress);
  EXPECT_EQ(run(kernel("ld.global.v2.u32 {%r2, %r3}, [%rd1+4];"), a.address()).kind,
            FaultKind::kMisalignedAddress);
}
TEST(Faults, SharedBounds) {
  const Fault f =
      run(kernel("shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.s32 %r2, %r2, %r3; st.shared.u32 [%r2], %r1;",
                 ".shared .align 4 .b8 s[64];\n"),
          0);
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  EXPECT_EQ(f.thread[0], 16u);
}
TEST(Faults, WriteToConstant) {
  EXPECT_EQ(
      run(kernel("mov.u64 %rd4, c; st.global.u32 [%rd4], %r1;", ".const .align 4 .b8 c[64];\n"), 0).kind,
      FaultKind::kIllegalAddress);
}
TEST(Faults, Trap) {
  const Fault f = run(kernel("setp.eq.u32 %p1, %r1, 9; @%p1 trap;"), 0);
  EXPECT_EQ(f.kind, FaultKind::kTrap);
  EXPECT_EQ(f.thread[0], 9u);
}
TEST(Faults, BarrierThatCannotCompleteIsADeadlock) {
  // Half of the block waits at barrier 1 for 64 threads, the rest at barrier 2.
  const Fault f = run(
      kernel("setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1, 64; bra B; A: bar.sync 2, 64; B:"), 0, 64);
  EXPECT_EQ(f.kind, FaultKind::kDeadlock);
  EXPECT_NE(f.text.find("barrier 2"), std::string::npos) << f.text;
  EXPECT_NE(f.text.find("line"), std::string::npos);
}
// Every block waits for the next one, which is not resident at first. A loop without barriers, one with the
// block's, one with the cluster's and one that also sleeps.
TEST(Scheduling, BlocksThatPollLetOthersBecomeResident) {
  for (const char* meet :
       {"", "bar.sync 0;", "bar.sync 0; bar.sync 1, 64;",
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "bar.sync 0; nanosleep.u32 100;"}) {
    const bool cluster = std::strstr(meet, "cluster");
    DeviceArray<uint32_t> flags(7);
    flags[6] = 1;
    // Blocks of a cluster wait for the same flag, and for each other.
    TestModule m(
        kernel(std::string("mov.u32 %r2, %ctaid.x; or.b32 %r3, %r2, ") + (cluster ? "1" : "0") +
               "; mul.wide.u32 %rd4, %r3, 4; add.u64 %rd4, %rd1, %rd4; POLL: " + meet +
               "ld.volatile.global.u32 %r4, [%rd4+4];\n"
               "setp.eq.u32 %p1, %r4, 0; @%p1 bra POLL;\n"
               "mul.wide.u32 %rd5, %r2, 4; add.u64 %rd5, %rd1, %rd5; st.volatile.global.u32 [%rd5], 1;"));
    ASSERT_TRUE(m.ok()) << m.error;
    const std::array<uint32_t, 3> clusters = {cluster ? 2u : 0u, cluster ? 1u : 0u, cluster ? 1u : 0u};
    const Fault f =
        m.run("k", {6, 1, 1}, {64, 1, 1}, Params().add(flags.address()), 0, nullptr, 0, 1, false, clusters);
    EXPECT_EQ(f.kind, FaultKind::kNone) << meet << ": " << f.text;
    EXPECT_EQ(flags.values(), std::vector<uint32_t>(7, 1)) << meet;
  }
}

Fault run_polls(
    const std::string& text, uint64_t address, uint32_t blocks, unsigned threads,
    const std::function<void(Launch&)>& shape = [](Launch&) {}) {
  TestModule m(text);
  EXPECT_TRUE(m.ok()) << m.error;
  if (!m.ok()) return {};
  const Params params = Params().add(address);
  Launch launch;
  launch.grid = {blocks, 1, 1};
  launch.block = {64, 1, 1};
  launch.params = params.data();
  shape(launch);
  watch(*m.program->kernel("k"));
  return m.program->run(*m.program->kernel("k"), launch, threads, nullptr, nullptr, nullptr);
}
const char* const kPoll = "POLL: ld.global.u32 %r4, [%rd1]; setp.eq.u32 %p1, %r4, 0; @%p1 bra POLL;";
const char* const kWaitAtBarrier =
    "mov.u32 %r2, b; setp.ne.u32 %p1, %r1, 0; @%p1 bra POLL; mbarrier.init.shared.b64 [%r2], 9;\n"
    "POLL: bar.sync 0; mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra POLL;";

// Nobody writes what the blocks read, and they come back to where they were: that is as much a deadlock as a
// barrier that nobody reaches.
TEST(Faults, EndlessPollIsADeadlock) {
  const struct {
    const char *head, *body;
    bool global;
  } rows[] = {
      {"", kPoll, true},
      {"", "POLL: bar.sync 0; ld.volatile.global.u32 %r4, [%rd1]; setp.eq.u32 %p1, %r4, 0; @%p1 bra POLL;",
       true},
      // Back-off that doubles up to a bound, and lanes that are at two places.
      {"",
       "mov.u32 %r5, 8; POLL: nanosleep.u32 %r5; shl.b32 %r5, %r5, 1; min.u32 %r5, %r5, 256;\n"
       "atom.global.add.u32 %r4, [%rd1], 0; setp.eq.u32 %p1, %r4, 0; @%p1 bra POLL;",
       true},
      {"",
       "and.b32 %r5, %r1, 1; setp.eq.u32 %p2, %r5, 0; @%p2 bra OTHER;\n"
       "POLL: ld.global.u32 %r4, [%rd1]; setp.eq.u32 %p1, %r4, 0; @%p1 bra POLL;\n"
       "OTHER: ld.global.u32 %r4, [%rd1+4]; setp.eq.u32 %p1, %r4, 0; @%p1 bra OTHER;",
       true},
      // A lock that is taken and never given back; writes that change nothing.
      {"", "POLL: atom.global.cas.b32 %r4, [%rd1+8], 0, 1; setp.ne.u32 %p1, %r4, 0; @%p1 bra POLL;", true},
      {"", "POLL: atom.global.exch.b32 %r4, [%rd1+8], 1; st.global.u32 [%rd1+8], 1; bra POLL;", false},
      {".shared .align 8 .b64 b;\n", kWaitAtBarrier, false},
  };
  for (const auto& row : rows)
    for (const unsigned threads : {1u, 2u}) {
      DeviceArray<uint32_t> flags(3);
      flags[2] = 1;
      const Fault f = run_polls(kernel(row.body, row.head), flags.address(), 5, threads);
      EXPECT_EQ(f.kind, FaultKind::kDeadlock) << row.body;
      EXPECT_EQ(f.kernel, "k");
      EXPECT_NE(f.text.find("polls"), std::string::npos) << f.text;
      if (!row.global) continue;
      EXPECT_GE(f.address, flags.address());
      EXPECT_LT(f.address, flags.address() + 12);
      EXPECT_GT(f.line, 7u);
    }
}

TEST(Faults, EndlessPollGoesOnWhileItMayBeReleased) {
  DeviceArray<uint32_t> flags(1);
  int questions = 0;
  const Fault f = run_polls(kernel(kPoll), flags.address(), 3, 2, [&](Launch& launch) {
    launch.may_be_released = [&](const EndlessPoll& poll) {
      EXPECT_EQ(poll.allocations, std::vector<uint64_t>{flags.address()});
      EXPECT_EQ(poll.where.kernel, "k");
      EXPECT_EQ(poll.where.address, flags.address());
      EXPECT_LE(poll.helpers, 1u);  // one thread may have found no block
      if (++questions == 3) std::atomic_ref(flags[0]).store(1);
      return true;
    };
  });
  EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  EXPECT_EQ(questions, 3);
}

// Whoever could write has just done so, and waits since: the blocks have not looked since then.
TEST(Faults, EndlessPollSeesWhatWasWrittenBeforeTheAnswer) {
  for (const bool written : {true, false})
    for (const unsigned threads : {1u, 2u}) {
      DeviceArray<uint32_t> flags(1);
      int questions = 0;
      const Fault f = run_polls(kernel(kPoll), flags.address(), 3, threads, [&](Launch& launch) {
        launch.may_be_released = [&](const EndlessPoll&) {
          if (++questions == 1 && written) std::atomic_ref(flags[0]).store(1);
          return false;
        };
      });
      EXPECT_EQ(f.kind, written ? FaultKind::kNone : FaultKind::kDeadlock) << f.text;
      EXPECT_EQ(questions, written ? 1 : 2);
    }
}

// Loops that count come to an end: while one block counts, the others wait for it.
TEST(Scheduling, BlocksThatCountAreNotStill) {
  for (const unsigned threads : {1u, 2u}) {
    DeviceArray<uint32_t> flags(1);
    const Fault f = run_polls(
        kernel(
            std::string("mov.u32 %r2, %ctaid.x; setp.eq.u32 %p2, %r2, 0; @!%p2 bra POLL; mov.u32 %r3, 0;\n"
                        "COUNT: ld.global.u32 %r4, [%rd1]; add.u32 %r3, %r3, 1;\n"
                        "setp.lt.u32 %p2, %r3, 200000; @%p2 bra COUNT; st.volatile.global.u32 [%rd1], 1;\n") +
            kPoll),
        flags.address(), 3, threads);
    EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  }
}

// Every block waits for the next one: all must be resident, as they are on the device that is stood for.
TEST(Scheduling, AsManyBlocksAreResidentAsOnTheDevice) {
  const std::string wait_for_next = kernel(
      "mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd4, %r2, 4; add.u64 %rd4, %rd1, %rd4;\n"
      "POLL: ld.global.u32 %r4, [%rd4+4]; setp.eq.u32 %p1, %r4, 0; @%p1 bra POLL;\n"
      "st.volatile.global.u32 [%rd4], 1;");
  constexpr uint32_t kBlocks = 150;  // more than the 128 of a device that is not named
  for (const uint64_t resident : {kBlocks, 0u}) {
    DeviceArray<uint32_t> flags(kBlocks + 1);
    flags[kBlocks] = 1;
    const Fault f = run_polls(wait_for_next, flags.address(), kBlocks, 1, [&](Launch& launch) {
      launch.block = {32, 1, 1};
      launch.resident_blocks = resident;
    });
    if (resident) {
      EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
      EXPECT_EQ(flags.values(), std::vector<uint32_t>(kBlocks + 1, 1));
    } else {
      EXPECT_EQ(f.kind, FaultKind::kDeadlock);
      EXPECT_NE(f.text.find("22 blocks wait for room"), std::string::npos) << f.text;
    }
  }
}
TEST(Faults, WarpOperationThatCannotCompleteIsADeadlock) {
  // Half of the warp waits for all of it, the rest for a barrier that the first half has to reach.
  const Fault f = run(kernel("setp.lt.u32 %p1, %r1, 16; @%p1 bra A; bar.sync 1, 64; bra B; A:"
                             "shfl.sync.idx.b32 %r2, %r1, 20, 31, -1; B:"),
                      0, 32);
  EXPECT_EQ(f.kind, FaultKind::kDeadlock);
  EXPECT_NE(f.text.find(".sync mask"), std::string::npos) << f.text;
  EXPECT_NE(f.text.find("barrier 1"), std::string::npos) << f.text;
  EXPECT_NE(f.text.find("line 14"), std::string::npos) << f.text;  // where each waits
}
TEST(Faults, SharedAndLocalMisalignment) {
  const std::string shared = "mov.u32 %r3, s; shl.b32 %r2, %r1, 2; add.u32 %r2, %r2, %r3;";
  const std::string head = ".shared .align 16 .b8 s[256];\n";
  EXPECT_EQ(run(kernel(shared + "ld.shared.u32 %r4, [%r2+1];", head), 0).kind, FaultKind::kMisalignedAddress);
  EXPECT_EQ(run(kernel(shared + "st.shared.u64 [%r2], %rd1;", head), 0).kind, FaultKind::kMisalignedAddress);
  EXPECT_EQ(run(kernel(shared + "atom.shared.add.u32 %r4, [%r2+2], 1;", head), 0).kind,
            FaultKind::kMisalignedAddress);
  const std::string local = "{ .local .align 16 .b8 l[32]; mov.u64 %rd4, l; ";
  EXPECT_EQ(run(kernel(local + "ld.local.u32 %r4, [%rd4+2]; }"), 0).kind, FaultKind::kMisalignedAddress);
  EXPECT_EQ(run(kernel(local + "st.local.u32 [%rd4+4096], %r1; }"), 0).kind, FaultKind::kIllegalAddress);
}
TEST(Faults, InvalidFunctionPointer) {
  const Fault f =
      run(kernel("{ proto: .callprototype _ (); call %rd1, proto; }", ".func f() { ret; }\n"), 1234);
  EXPECT_EQ(f.kind, FaultKind::kInvalidPc);
}
TEST(Faults, EndlessRecursionOverflowsTheStack) {
  const Fault f = run(kernel("call f;", ".func f() { .local .b8 a[64]; call f; ret; }\n"), 0);
  EXPECT_EQ(f.kind, FaultKind::kStackOverflow);
}

TEST(Refusals, NameInstructionLineAndKernel) {
  TestModule m(kernel("tcgen05.wait::ld.sync.aligned;"));
  ASSERT_TRUE(m.ok()) << m.error;
  EXPECT_EQ(m.program->kernel("k"), nullptr);
  const std::string& why = m.program->refused().at("k");
  EXPECT_NE(why.find("tcgen05.wait"), std::string::npos) << why;
  EXPECT_NE(why.find("line 14"), std::string::npos) << why;
  EXPECT_NE(why.find("kernel k"), std::string::npos) << why;
}
// Only kernels that can reach the instruction are refused; by name, by a chain of calls, by any pointer.
TEST(Refusals, StopAtTheKernelThatReachesTheInstruction) {
  TestModule m(
      ptx_header() +
      ".func bad() { tcgen05.wait::ld.sync.aligned; ret; }\n.func good() { ret; }\n"
      ".func between() { call bad; ret; }\n"
      ".visible .entry direct() { tcgen05.wait::ld.sync.aligned; ret; }\n"
      ".visible .entry chain() { call between; ret; }\n"
      ".visible .entry pointer() { .reg .b64 %rd<2>; mov.u64 %rd1, good;"
      " { proto: .callprototype _ (); call %rd1, proto; } ret; }\n"
      ".visible .entry fine(.param .u64 p) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [p];"
      " call good; mov.u32 %r1, 3; st.global.u32 [%rd1], %r1; ret; }\n");
  ASSERT_TRUE(m.ok()) << m.error;
  EXPECT_EQ(m.program->kernel_names(), std::vector<std::string>{"fine"});
  ASSERT_EQ(m.program->refused().size(), 3u);
  EXPECT_NE(m.program->refused().at("chain").find("in bad"), std::string::npos);
  EXPECT_NE(m.program->refused().at("chain").find("kernel chain"), std::string::npos);
  DeviceArray<uint32_t> out(1);
  EXPECT_EQ(m.run("fine", {1, 1, 1}, {32, 1, 1}, Params().add(out.address())).kind, FaultKind::kNone);
  EXPECT_EQ(out[0], 3u);
  const Fault refused = m.run("chain", {1, 1, 1}, {32, 1, 1}, Params());
  EXPECT_NE(refused.text.find("tcgen05"), std::string::npos) << refused.text;
}
// A fault that belongs to no kernel still refuses the module.
TEST(Refusals, AVariableThatCannotBePlacedRefusesTheModule) {
  TestModule m(ptx_header() + ".global .u64 p = nowhere;\n.visible .entry k() { ret; }\n");
  EXPECT_FALSE(m.ok());
  EXPECT_NE(m.error.find("nowhere"), std::string::npos) << m.error;
}

TEST(Control, BarrierInDivergentCode) {
  // The two halves of each warp arrive at different bar.sync instructions of the same barrier.
  DeviceArray<uint32_t> out(64);
  const Fault f = run(
      kernel(
          "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; shl.b32 %r3, %r1, 2; mov.u32 %r4, s;"
          "add.s32 %r5, %r4, %r3; st.shared.u32 [%r5], %r1; @%p1 bra A; bar.sync 0; bra B; A: bar.sync 0; B:"
          "xor.b32 %r6, %r1, 63; shl.b32 %r6, %r6, 2; add.s32 %r6, %r4, %r6; ld.shared.u32 %r7, [%r6];"
          "st.global.u32 [%rd3], %r7;",
          ".shared .align 4 .b8 s[256];\n"),
      out.address(), 64);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], 63 - i);
}
TEST(Control, BarrierReductions) {
  DeviceArray<uint32_t> out(96);
  const Fault f =
      run(kernel("setp.lt.u32 %p1, %r1, 40; barrier.red.popc.u32 %r2, 0, %p1; bar.red.or.pred %p2, 0, %p1;"
                 "bar.red.and.pred %p3, 0, %p1; selp.u32 %r3, 100, 0, %p2; selp.u32 %r4, 1000, 0, %p3;"
                 "add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; st.global.u32 [%rd3], %r2;"),
          out.address(), 96);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(out[i], 140u);
}
TEST(Control, NamedBarrierProducerConsumer) {
  DeviceArray<uint32_t> out(64);
  const Fault f = run(kernel("mov.u32 %r4, s; setp.ge.u32 %p1, %r1, 32; @%p1 bra CONSUME;"
                             "st.shared.u32 [%r4], 77; bar.arrive 3, 64; bra DONE; CONSUME: bar.sync 3, 64;"
                             "ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd3], %r5; DONE:",
                             ".shared .align 4 .b8 s[4];\n"),
                      out.address(), 64);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i < 32 ? 0u : 77u);
}
TEST(Control, WarpOperationsAfterEarlyReturnAndInDivergence) {
  // Lanes >= 20 have left; a full member mask must not wait for them. Odd lanes come to the shuffle by
  // another way.
  DeviceArray<uint32_t> out(32);
  const Fault f = run(
      kernel(
          "setp.ge.u32 %p1, %r1, 20; @%p1 ret; and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 1;"
          "mov.u32 %r3, 0; @%p2 bra ODD; bra JOIN; ODD: mov.u32 %r3, 5; add.u32 %r3, %r3, 1; JOIN:"
          "shfl.sync.idx.b32 %r4, %r3, 1, 31, -1; vote.sync.ballot.b32 %r5, %p2, -1;"
          "redux.sync.add.u32 %r6, %r1, -1; activemask.b32 %r7; and.b32 %r5, %r5, %r7;"
          "shl.b32 %r4, %r4, 24; xor.b32 %r5, %r5, %r4; add.u32 %r5, %r5, %r6; st.global.u32 [%rd3], %r5;"),
      out.address());
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i < 20 ? ((0xaaaaau ^ (6u << 24)) + 190) : 0u) << i;
}
TEST(Control, SubWarpMasks) {
  DeviceArray<uint32_t> out(32);
  // Each group of eight lanes names its own members and finds its sum.
  const Fault f = run(
      kernel("shr.u32 %r2, %r1, 3; shl.b32 %r3, %r2, 3; mov.u32 %r4, 255; shl.b32 %r4, %r4, %r3;"
             "redux.sync.add.u32 %r5, %r1, %r4; match.any.sync.b32 %r6, %r2, -1; setp.ne.u32 %p1, %r6, %r4;"
             "@%p1 trap; st.global.u32 [%rd3], %r5;"),
      out.address());
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 28 + (i / 8) * 64);
}
TEST(Control, BranchTable) {
  DeviceArray<uint32_t> out(32);
  const Fault f = run(kernel("and.b32 %r2, %r1, 3; t: .branchtargets A, B, C, D; brx.idx %r2, t;"
                             "A: mov.u32 %r3, 10; bra E; B: mov.u32 %r3, 20; bra E; C: mov.u32 %r3, 30; bra "
                             "E; D: mov.u32 %r3, 40;"
                             "E: st.global.u32 [%rd3], %r3;"),
                      out.address());
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 10 * (i % 4 + 1));
}
TEST(Control, GenericAddresses) {
  DeviceArray<uint32_t> out(32);
  // Shared, local and global through the same generic load.
  const Fault f = run(
      kernel(
          ".local .align 4 .b8 l[4]; mov.u32 %r2, s; st.shared.u32 [%r2], 5; mov.u64 %rd4, l;"
          "cvta.local.u64 %rd5, %rd4; st.u32 [%rd5], %r1; cvt.u64.u32 %rd6, %r2; cvta.shared.u64 %rd7, %rd6;"
          "bar.sync 0; and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; selp.b64 %rd8, %rd5, %rd7, %p1;"
          "ld.u32 %r4, [%rd8]; isspacep.shared %p2, %rd8; selp.u32 %r5, 1000, 0, %p2; add.u32 %r4, %r4, %r5;"
          "cvta.global.u64 %rd9, %rd3; st.u32 [%rd9], %r4;",
          ".shared .align 4 .b8 s[4];\n"),
      out.address());
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i % 2 ? 1005u : i);
}
TEST(Control, Atomics) {
  DeviceArray<uint32_t> out(40);
  const Fault f = run(kernel("atom.global.add.u32 %r2, [%rd1], 1; red.global.max.u32 [%rd1+4], %r1; "
                             "atom.global.min.s32 %r3, [%rd1+8], -5;"
                             "atom.global.or.b32 %r4, [%rd1+12], %r1; atom.global.inc.u32 %r5, [%rd1+16], 9; "
                             "mov.f32 %f1, 0f3F000000;"
                             "red.global.add.f32 [%rd1+20], %f1; atom.global.exch.b32 %r6, [%rd1+24], 3; "
                             "atom.global.cas.b32 %r7, [%rd1+28], 0, 42;"
                             "setp.ge.u32 %p1, %r2, 32; @%p1 trap;"),
                      out.address());
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  EXPECT_EQ(out[0], 32u);
  EXPECT_EQ(out[1], 31u);
  EXPECT_EQ(out[2], static_cast<uint32_t>(-5));
  EXPECT_EQ(out[3], 31u);
  EXPECT_EQ(out[4], 2u);
  EXPECT_EQ(out[5], 0x41800000u);
  EXPECT_EQ(out[6], 3u);
  EXPECT_EQ(out[7], 42u);
}
TEST(Control, BlockOrderFollowsTheSeed) {
  // Blocks append their number in order of execution.
  TestModule m(
      kernel("mov.u32 %r2, %ctaid.x; atom.global.add.u32 %r3, [%rd1], 1; mul.wide.u32 %rd4, %r3, 4;"
             "add.s64 %rd4, %rd1, %rd4; st.global.u32 [%rd4+4], %r2;"));
  ASSERT_TRUE(m.ok()) << m.error;
  std::vector<std::vector<uint32_t>> orders;
  for (uint64_t seed : {0u, 1u, 2u, 3u}) {
    DeviceArray<uint32_t> out(21);
    ASSERT_EQ(m.run("k", {20, 1, 1}, {1, 1, 1}, Params().add(out.address()), 0, nullptr, seed).kind,
              FaultKind::kNone);
    std::vector<uint32_t> order = out.values();
    order.erase(order.begin());
    orders.push_back(order);
  }
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(orders[0][i], i);
    EXPECT_EQ(orders[1][i], 19 - i);
  }
  EXPECT_NE(orders[2], orders[3]);
  for (auto& order : orders) {
    std::sort(order.begin(), order.end());
    for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(order[i], i);
  }
}
TEST(Control, CancelEndsAnEndlessKernel) {
  TestModule m(kernel(
      "mov.u32 %r3, 0; L: add.u32 %r3, %r3, 1; ld.volatile.global.u32 %r2, [%rd1]; setp.eq.u32 %p1, %r2, 0; "
      "st.volatile.global.u32 [%rd1+4], %r3; @%p1 bra L;"));  // it counts, so it never stands still
  ASSERT_TRUE(m.ok()) << m.error;
  DeviceArray<uint32_t> a(2);
  std::atomic<bool> cancel{false};
  const uint64_t address = a.address();
  Launch launch;
  launch.params = &address;
  Fault f;
  std::thread runner(
      [&] { f = m.program->run(*m.program->kernel("k"), launch, 1, nullptr, nullptr, &cancel); });
  while (__atomic_load_n(&a[1], __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
  cancel = true;
  runner.join();
  EXPECT_EQ(f.kind, FaultKind::kNone);
}
TEST(Control, ConcurrentGrids) {
  TestModule m(kernel("atom.global.add.u32 %r2, [%rd1], 1; st.global.u32 [%rd3+4], %r1;"));
  ASSERT_TRUE(m.ok()) << m.error;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  threads.reserve(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      DeviceArray<uint32_t> out(40);
      const Fault f = m.run("k", {50, 1, 1}, {32, 1, 1}, Params().add(out.address()));
      if (f.kind == FaultKind::kNone && out[0] == 50 * 32) ++good;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, 4);
}

// D = A B + C with small integers, exact in every format.
void matrix(const std::string& body, uint32_t m, uint32_t n, uint32_t k) {
  TestModule module(body);
  ASSERT_TRUE(module.ok()) << module.error;
  DeviceArray<uint16_t> a(m * k), b(k * n);  // A row by row, B row by row, as binary16
  DeviceArray<float> d(m * n);
  static const uint16_t kSmall[] = {0, 0x3c00, 0x4000, 0x4200, 0xbc00};  // 0 1 2 3 -1
  static const float kValues[] = {0, 1, 2, 3, -1};
  for (uint32_t i = 0; i < m * k; ++i) a[i] = kSmall[i * 7 % 5];
  for (uint32_t i = 0; i < k * n; ++i) b[i] = kSmall[(i * 3 + i / 8) % 5];
  Work work;
  const Fault f = module.run("k", {1, 1, 1}, {32, 1, 1},
                             Params().add(a.address()).add(b.address()).add(d.address()), 0, &work);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  EXPECT_EQ(work.tensor_operations, 2u * m * n * k);
  for (uint32_t i = 0; i < m; ++i)
    for (uint32_t j = 0; j < n; ++j) {
      float sum = 0;
      for (uint32_t x = 0; x < k; ++x)
        sum += kValues[(i * k + x) * 7 % 5] * kValues[((x * n + j) * 3 + (x * n + j) / 8) % 5];
      EXPECT_EQ(d[i * n + j], sum) << i << "," << j;
    }
}
TEST(Matrix, LdmatrixAndMma) {
  matrix(ptx_header() + R"(
.shared .align 16 .b8 sa[512];
.shared .align 16 .b8 sb[256];
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 d)
{
  .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .f32 %f<8>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [d];
  mov.u32 %r1, %tid.x;
  // copy A with cp.async, 16 bytes per lane; B by 8 bytes
  mul.wide.u32 %rd4, %r1, 16; add.s64 %rd5, %rd1, %rd4;
  mov.u32 %r2, sa; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;
  cp.async.cg.shared.global [%r4], [%rd5], 16;
  mul.wide.u32 %rd6, %r1, 8; add.s64 %rd7, %rd2, %rd6;
  mov.u32 %r5, sb; shl.b32 %r6, %r1, 3; add.u32 %r7, %r5, %r6;
  cp.async.ca.shared.global [%r7], [%rd7], 8;
  cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
  // A: rows of 32 bytes; matrices (0,0) (8,0) (0,8) (8,8): row = lane % 16, half = lane / 16
  and.b32 %r8, %r1, 15; shl.b32 %r8, %r8, 5; shr.u32 %r9, %r1, 4; shl.b32 %r9, %r9, 4;
  add.u32 %r8, %r8, %r9; add.u32 %r8, %r8, %r2;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r8];
  // B: 16 rows of 16 bytes, transposed while loading
  and.b32 %r14, %r1, 15; shl.b32 %r14, %r14, 4; add.u32 %r14, %r14, %r5;
  ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r15, %r16}, [%r14];
  mov.f32 %f1, 0f00000000;
  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r10, %r11, %r12, %r13}, {%r15, %r16}, {%f1, %f1, %f1, %f1};
  shr.u32 %r17, %r1, 2; and.b32 %r18, %r1, 3; shl.b32 %r19, %r17, 3; shl.b32 %r20, %r18, 1; add.u32 %r19, %r19, %r20;
  mul.wide.u32 %rd8, %r19, 4; add.s64 %rd9, %rd3, %rd8;
  st.global.v2.f32 [%rd9], {%f2, %f3};
  st.global.v2.f32 [%rd9+256], {%f4, %f5};
  ret;
})",
         16, 8, 16);
}
TEST(Matrix, Wmma) {
  matrix(ptx_header() + R"(
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 d)
{
  .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .f32 %f<32>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [d];
  mov.u32 %r31, 16; mov.f32 %f1, 0f00000000;
  wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%rd1], %r31;
  wmma.load.b.sync.aligned.row.m16n16k16.global.f16 {%r9,%r10,%r11,%r12,%r13,%r14,%r15,%r16}, [%rd2], %r31;
  wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f10,%f11,%f12,%f13,%f14,%f15,%f16,%f17}, {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, {%r9,%r10,%r11,%r12,%r13,%r14,%r15,%r16}, {%f1,%f1,%f1,%f1,%f1,%f1,%f1,%f1};
  wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd3], {%f10,%f11,%f12,%f13,%f14,%f15,%f16,%f17}, %r31;
  ret;
})",
         16, 16, 16);
}

}  // namespace
}  // namespace tessera::softgpu::exec
