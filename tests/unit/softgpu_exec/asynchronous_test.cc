// mbarrier objects against a model that counts with plain integers; asynchronous copies; clusters.
#include <algorithm>
#include <cmath>
#include <random>

#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

// %rd1: the parameter; %r1: thread; %r2: 32-bit address of 4 KB of shared memory, %rd2 the same, generic.
std::string kernel(const std::string& body, const std::string& head = "") {
  return ptx_header() + ".visible .entry k(.param .u64 p) " + head +
         "\n{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<32>;\n.reg .b64 %rd<16>;\n"
         ".shared .align 128 .b8 s[4096];\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, s;\n"
         "mov.u64 %rd2, s;\ncvta.shared.u64 %rd2, %rd2;\n" +
         body + "\nret;\n}\n";
}
Fault run(const std::string& text, uint64_t address, uint32_t threads = 1, uint32_t blocks = 1,
          std::array<uint32_t, 3> cluster = {}) {
  TestModule m(text);
  EXPECT_TRUE(m.ok()) << m.error;
  if (!m.ok()) return {};
  return m.run("k", {blocks, 1, 1}, {threads, 1, 1}, Params().add(address), 0, nullptr, 0, 1, false, cluster);
}

struct Model {
  int expected, pending, bytes = 0, phase = 0;
  explicit Model(int count) : expected(count), pending(count) {}
  void settle() {
    if (pending != 0 || bytes != 0) return;
    phase++;
    pending = expected;
  }
};

TEST(Mbarrier, RandomSequencesAgainstAModel) {
  std::mt19937 random(11);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 60; ++round) {
    Model m(round % 5 == 0 ? (1 << 20) - 1 : 1 + pick(6));
    std::string text;
    std::vector<uint32_t> want;
    const auto value = [&](uint32_t x) {  // of %r9
      text += "st.global.u32 [%rd1+" + std::to_string(4 * want.size()) + "], %r9;\n";
      want.push_back(x);
    };
    // One of three ways to name the object.
    const auto spaced = [&](const std::string& what, const std::string& result, const std::string& rest) {
      static const char* const kSpaces[] = {".shared", ".shared::cta", ""};
      const int space = pick(3);
      text += "mbarrier." + what + kSpaces[space] + ".b64 " + result +
              (space == 2 ? "[%rd2+64]" : "[%r2+64]") + rest + ";\n";
    };
    spaced("init", "", ", " + std::to_string(m.expected));
    int token_phase = -1;  // of %rd5
    for (int step = 0; step < 40; ++step) {
      const int before = m.pending, phase = m.phase;
      bool state = false;
      if (const int kind = pick(7); kind == 0 && m.pending > 1) {
        const int n = 1 + pick(std::min(m.pending - 1, 1 << 18));
        spaced("arrive.noComplete.release.cta", "%rd5, ", ", " + std::to_string(n));
        m.pending -= n, state = true;
      } else if (kind == 1 && m.pending > 0) {
        spaced("arrive", "%rd5, ", "");
        m.pending--, state = true;
      } else if (kind == 2 && m.pending > 0) {
        const int n = 1 + pick(m.pending);
        spaced("arrive.release.cta", "%rd5, ", ", " + std::to_string(n));
        m.pending -= n, state = true;
      } else if (kind == 3 && m.pending > 0 && m.expected > 2) {
        spaced("arrive_drop", "%rd5, ", "");
        m.pending--, m.expected--, state = true;
      } else if (kind == 4 && m.pending > 0) {
        const int n = pick(3) ? 16 * (1 + pick(8)) : 0;
        spaced("arrive.expect_tx", "%rd5, ", ", " + std::to_string(n));
        m.bytes += n, m.pending--, state = true;
      } else if (kind == 5) {
        const int n = 8 * (1 + pick(4));
        spaced("expect_tx.relaxed.cta", "", ", " + std::to_string(n));
        m.bytes += n;
      } else if (m.bytes > 0) {
        const int n = std::min(m.bytes, 8 * (1 + pick(20)));
        spaced("complete_tx.relaxed.cta", "", ", " + std::to_string(n));
        m.bytes -= n;
      }
      m.settle();
      if (state) {
        token_phase = phase;
        text += "mbarrier.pending_count.b64 %r9, %rd5;\n";
        value(static_cast<uint32_t>(before));
      }
      for (int parity : {0, 1}) {
        spaced(pick(2) ? "test_wait.parity" : "try_wait.parity", "%p1, ", ", " + std::to_string(parity));
        text += "selp.u32 %r9, 1, 0, %p1;\n";
        value((m.phase & 1) != parity);
      }
      if (token_phase >= 0 && m.phase - token_phase <= 1) {
        spaced(pick(2) ? "test_wait" : "try_wait.acquire.cta", "%p1, ", ", %rd5");
        text += "selp.u32 %r9, 1, 0, %p1;\n";
        value(m.phase != token_phase);
      }
    }
    spaced("inval", "", "");
    DeviceArray<uint32_t> out(want.size(), 99u);
    const Fault f = run(kernel(text), out.address());
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text << "\n" << text;
    ASSERT_EQ(out.values(), want) << text;
  }
}

TEST(Mbarrier, MisuseIsReported) {
  const auto text_of = [](const std::string& body) {
    const Fault f = run(kernel(body), 0);
    return (f.kind == FaultKind::kIllegalInstruction  ? "illegal: "
            : f.kind == FaultKind::kIllegalAddress    ? "address: "
            : f.kind == FaultKind::kMisalignedAddress ? "misaligned: "
                                                      : "none: ") +
           f.text;
  };
  const std::string init = "mbarrier.init.shared.b64 [%r2], 1; ";
  EXPECT_EQ(text_of(init).find("none"), 0u);
  EXPECT_NE(text_of("st.shared.u64 [%r2], 0; mbarrier.arrive.shared.b64 _, [%r2];").find("not initialised"),
            std::string::npos);
  EXPECT_NE(text_of(init + "mbarrier.inval.shared.b64 [%r2]; mbarrier.arrive.shared.b64 _, [%r2];")
                .find("not initialised"),
            std::string::npos);
  EXPECT_NE(text_of("mbarrier.init.shared.b64 [%r2], 0;").find("between 1 and 1048575"), std::string::npos);
  EXPECT_NE(text_of(init + "mbarrier.arrive.noComplete.shared.b64 %rd5, [%r2], 1;").find("noComplete"),
            std::string::npos);
  EXPECT_NE(text_of(init + "mbarrier.arrive.shared.b64 %rd5, [%r2], 2;").find("more arrivals"),
            std::string::npos);
  EXPECT_EQ(text_of("mbarrier.init.shared.b64 [%r2+4], 1;").find("misaligned"), 0u);
  EXPECT_EQ(text_of("mbarrier.init.shared.b64 [%r2+4096], 1;").find("address"), 0u);
  EXPECT_EQ(text_of("mbarrier.init.b64 [%rd1], 1;").find("address"), 0u);  // no shared memory
}

// A warp fills memory with bulk copies, another waits for the bytes; the way back is a bulk group.
TEST(Bulk, CopiesThereAndBack) {
  DeviceArray<uint32_t> data(512);
  for (uint32_t i = 0; i < 256; ++i) data[i] = i * i + 7;
  const Fault f = run(
      kernel(
          "setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r2], 1;"
          "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; READY: bar.sync 0;"
          "setp.ge.u32 %p2, %r1, 32; setp.ne.u32 %p3, %r1, 32; @%p2 bra PRODUCE;"
          // 32 consumers: each takes 8 words, adds its number, and puts them back
          "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r2], 0; @!%p4 bra WAIT;"
          "shl.b32 %r3, %r1, 5; add.u32 %r3, %r3, %r2; mov.u32 %r5, 0;"
          "LOOP: ld.shared.u32 %r4, [%r3+1024]; add.u32 %r4, %r4, %r1; st.shared.u32 [%r3+1024], %r4;"
          "add.u32 %r3, %r3, 4; add.u32 %r5, %r5, 1; setp.lt.u32 %p5, %r5, 8; @%p5 bra LOOP;"
          "fence.proxy.async.shared::cta; bar.warp.sync -1; setp.ne.u32 %p6, %r1, 5; @%p6 bra DONE;"
          "cp.async.bulk.global.shared::cta.bulk_group [%rd1+1024], [%r2+1024], 1024;"
          "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0; bra DONE;"
          "PRODUCE: @%p3 bra DONE; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;"
          "cp.async.bulk.prefetch.L2.global [%rd1], 1024; mov.u32 %r6, 256;"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd1], 768, [%r2];"
          "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2+1792], [%rd1+768], %r6, [%r2];"
          "DONE:"),
      data.address(), 64);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t i = 0; i < 256; ++i) EXPECT_EQ(data[256 + i], i * i + 7 + i / 8) << i;
}

TEST(Bulk, SmallCopiesArriveAtABarrier) {
  DeviceArray<uint32_t> data(64);
  for (uint32_t i = 0; i < 32; ++i) data[i] = 3 * i + 1;
  for (const std::string how : {".noinc", ""}) {
    // Without .noinc the copies leave what the threads themselves owe.
    const Fault f = run(
        kernel(
            "setp.ne.u32 %p1, %r1, 0; @%p1 bra READY; mbarrier.init.shared.b64 [%r2], 32; READY:"
            "bar.warp.sync -1; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; shl.b32 %r3, %r1, 2;"
            "add.u32 %r3, %r3, %r2; cp.async.ca.shared.global [%r3+128], [%rd4], 4;"
            "cp.async.mbarrier.arrive" +
            how + ".shared.b64 [%r2];" +
            (how.empty() ? "mbarrier.test_wait.parity.shared.b64 %p3, [%r2], 0; @%p3 trap;"
                           "bar.warp.sync -1; mbarrier.arrive.shared.b64 _, [%r2];"
                         : "") +
            "W: mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra W;"
            "xor.b32 %r4, %r1, 31; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r2; ld.shared.u32 %r5, [%r4+128];"
            "st.global.u32 [%rd4+128], %r5;"),
        data.address(), 32);
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(data[32 + i], 3 * (31 - i) + 1) << i;
  }
}

TEST(Bulk, ReductionsInMemory) {
  struct Row {
    const char* form;
    unsigned bits;
    U (*want)(U memory, U x);
    bool floats = false;
  };
  for (const Row& row : {
           Row{"add.u32", 32, [](U m, U x) { return m + x; }},
           Row{"add.s32", 32, [](U m, U x) { return m + x; }},
           Row{"add.u64", 64, [](U m, U x) { return m + x; }},
           Row{"min.s32", 32, [](U m, U x) { return S(m) < S(x) ? m : x; }},
           Row{"max.u32", 32, [](U m, U x) { return std::max(m, x); }},
           Row{"min.u64", 64, [](U m, U x) { return std::min(m, x); }},
           Row{"max.s64", 64, [](U m, U x) { return L(m) > L(x) ? m : x; }},
           Row{"and.b32", 32, [](U m, U x) { return m & x; }},
           Row{"or.b64", 64, [](U m, U x) { return m | x; }},
           Row{"xor.b32", 32, [](U m, U x) { return m ^ x; }},
           Row{"inc.u32", 32, [](U m, U x) { return m >= x ? 0 : m + 1; }},
           Row{"dec.u32", 32, [](U m, U x) { return m == 0 || m > x ? x : m - 1; }},
           Row{"add.f32", 32, [](U m, U x) { return f32(ftz(ftz(F(m)) + ftz(F(x)))); }, true},
           Row{"add.f64", 64, [](U m, U x) { return f64(D(m) + D(x)); }, true},
           Row{"add.noftz.f16", 16, [](U m, U x) { return to_half(from_half(m) + from_half(x)); }, true},
           Row{"min.f16", 16,
               [](U m, U x) {
                 const double a = from_half(m), b = from_half(x);
                 return a != a && b != b ? 0x7fff : a != a ? x : b != b ? m : a == b ? m | x : a < b ? m : x;
               },
               true},
       }) {
    SCOPED_TRACE(row.form);
    // Pairs of edge values; 16 bytes are the least that a copy takes.
    std::vector<U> values = {0, 1, 2, 7, 0x7fffffff, 0x80000000, 0xffffffff, ~U{0}, U{1} << 63, 12345};
    if (row.floats && row.bits == 32) {
      values.clear();
      for (float x : {0.0f, -0.0f, 1.0f, -1.5f, 1e-40f, -1e-45f, 3e38f, HUGE_VALF, -HUGE_VALF, 0.1f, NAN})
        values.push_back(std::bit_cast<uint32_t>(x));
    }
    if (row.floats && row.bits == 64) {
      values.clear();
      for (double x : {0.0, -0.0, 1.0, -1.5, 5e-324, 1e308, HUGE_VAL, 0.1}) values.push_back(f64(x));
    }
    if (row.bits == 16)
      values = {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x4248};
    const U mask = row.bits == 64 ? ~U{0} : (U{1} << row.bits) - 1;
    const unsigned bytes = row.bits / 8;
    std::vector<U> memory, source;
    for (U m : values)
      for (U x : values) memory.push_back(m & mask), source.push_back(x & mask);
    while (memory.size() * bytes % 16) memory.push_back(0), source.push_back(0);
    const size_t n = memory.size() * bytes;
    DeviceArray<char> data(2 * n);
    for (size_t i = 0; i < memory.size(); ++i) {
      std::memcpy(data.data() + i * bytes, &memory[i], bytes);
      std::memcpy(data.data() + n + i * bytes, &source[i], bytes);
    }
    const std::string size = std::to_string(n);
    const Fault f = run(
        kernel("mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], " + size +
               "; cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd1+" +
               size + "], " + size + ", [%r2];\n" +
               "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra W;"
               "cp.reduce.async.bulk.global.shared::cta.bulk_group." +
               row.form + " [%rd1], [%r2+1024], " + size +
               "; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"),
        data.address());
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    for (size_t i = 0; i < memory.size(); ++i) {
      U got = 0;
      std::memcpy(&got, data.data() + i * bytes, bytes);
      const U want = row.want(memory[i], source[i]) & mask;
      const bool nan = row.floats && row.bits == 64 && D(want) != D(want);
      EXPECT_TRUE(got == want || (nan && D(got) != D(got)))
          << std::hex << memory[i] << " with " << source[i] << " gives " << got << ", not " << want;
    }
  }
}

TEST(Bulk, FaultsOfCopies) {
  DeviceArray<uint32_t> data(64);
  const auto copy = [&](const std::string& to, const std::string& from, int size) {
    return run(kernel("mbarrier.init.shared.b64 [%r2], 1;"
                      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [" +
                      to + "], [" + from + "], " + std::to_string(size) + ", [%r2];"),
               data.address())
        .kind;
  };
  EXPECT_EQ(copy("%r2+1024", "%rd1", 256), FaultKind::kNone);
  EXPECT_EQ(copy("%r2+1024", "%rd1", 24), FaultKind::kMisalignedAddress);
  EXPECT_EQ(copy("%r2+1024", "%rd1+8", 16), FaultKind::kMisalignedAddress);
  EXPECT_EQ(copy("%r2+1032", "%rd1", 16), FaultKind::kMisalignedAddress);
  EXPECT_EQ(copy("%r2+1024", "%rd1+16", 256), FaultKind::kIllegalAddress);
  EXPECT_EQ(copy("%r2+4080", "%rd1", 32), FaultKind::kIllegalAddress);
}

// --- clusters

TEST(Clusters, SpecialRegistersAndBlockOrder) {
  // A grid of 4 x 4 x 2 in clusters of 2 x 2 x 1.
  TestModule m(
      ptx_header() +
      ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<24>;\n.reg .b64 %rd<4>;\n"
      "ld.param.u64 %rd1, [p];\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ctaid.y;\nmov.u32 %r3, %ctaid.z;\n"
      "mad.lo.u32 %r4, %r3, 4, %r2;\nmad.lo.u32 %r4, %r4, 4, %r1;\nmul.wide.u32 %rd2, %r4, 32;\n"
      "add.s64 %rd1, %rd1, %rd2;\nmov.u32 %r5, %cluster_ctarank;\nmov.u32 %r6, %cluster_nctarank;\n"
      "mov.u32 %r7, %cluster_ctaid.x;\nmov.u32 %r8, %cluster_ctaid.y;\nmov.u32 %r9, %clusterid.x;\n"
      "mov.u32 %r10, %clusterid.y;\nmov.u32 %r11, %clusterid.z;\nmov.u32 %r12, %nclusterid.y;\n"
      "mov.pred %p1, %is_explicit_cluster;\n@!%p1 add.u32 %r12, %r12, 100;\n"
      "st.global.v4.u32 [%rd1], {%r5, %r6, %r7, %r8};\nst.global.v4.u32 [%rd1+16], {%r9, %r10, %r11, %r12};\n"
      "ret;\n}\n");
  ASSERT_TRUE(m.ok()) << m.error;
  for (uint64_t seed : {0, 1, 5})
    for (unsigned threads : {1u, 3u}) {
      DeviceArray<uint32_t> out(32 * 8, 77u);
      const Fault f = m.run("k", {4, 4, 2}, {1, 1, 1}, Params().add(out.address()), 0, nullptr, seed, threads,
                            false, {2, 2, 1});
      ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
      for (uint32_t b = 0; b < 32; ++b) {
        const uint32_t x = b % 4, y = b / 4 % 4, z = b / 16;
        const std::vector<uint32_t> want = {x % 2 + 2 * (y % 2), 4, x % 2, y % 2, x / 2, y / 2, z, 2};
        EXPECT_EQ(std::vector<uint32_t>(&out[b * 8], &out[b * 8] + 8), want) << b;
      }
    }
  DeviceArray<uint32_t> out(32 * 8);
  ASSERT_EQ(m.run("k", {4, 4, 2}, {1, 1, 1}, Params().add(out.address())).kind, FaultKind::kNone);
  EXPECT_EQ(out[15], 104u);  // no cluster asked for: clusters of one
  EXPECT_EQ(
      m.run("k", {4, 3, 2}, {1, 1, 1}, Params().add(out.address()), 0, nullptr, 0, 1, false, {2, 2, 1}).kind,
      FaultKind::kIllegalInstruction);
}

// Each block reads its right neighbour's memory by shared address and by generic address, and adds to it.
TEST(Clusters, DistributedSharedMemory) {
  DeviceArray<uint32_t> out(8 * 4);
  const std::string text = kernel(
      "mov.u32 %r3, %cluster_ctarank; mov.u32 %r10, %ctaid.x; mad.lo.u32 %r4, %r10, 10, 3; st.shared.u32 "
      "[%r2], %r4;"
      "st.shared.u32 [%r2+4], 0; barrier.cluster.arrive.release.aligned; "
      "barrier.cluster.wait.acquire.aligned;"
      "add.u32 %r5, %r3, 1; and.b32 %r5, %r5, 3; mapa.shared::cluster.u32 %r6, %r2, %r5;"
      "ld.shared::cluster.u32 %r7, [%r6]; mapa.u64 %rd3, %rd2, %r5; ld.u32 %r8, [%rd3];"
      "getctarank.shared::cluster.u32 %r9, %r6; getctarank.u64 %r11, %rd3; setp.ne.u32 %p1, %r9, %r5; @%p1 "
      "trap;"
      "setp.ne.u32 %p1, %r11, %r5; @%p1 trap; isspacep.shared::cluster %p1, %rd3; @!%p1 trap;"
      "isspacep.shared::cta %p1, %rd3; @%p1 trap; isspacep.global %p1, %rd3; @%p1 trap;"
      "red.shared::cluster.add.u32 [%r6+4], %r3; atom.add.u32 %r12, [%rd3+4], 100;"
      "st.shared::cluster.u32 [%r6+8], %r10; barrier.cluster.arrive; barrier.cluster.wait;"
      "ld.shared.u32 %r12, [%r2+4]; ld.shared.u32 %r13, [%r2+8]; mul.wide.u32 %rd4, %r10, 16; add.s64 %rd1, "
      "%rd1, %rd4;"
      "st.global.v4.u32 [%rd1], {%r7, %r8, %r12, %r13};",
      ".reqnctapercluster 4, 1, 1");
  const Fault f = run(text, out.address(), 1, 8);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t b = 0; b < 8; ++b) {
    const uint32_t right = b / 4 * 4 + (b + 1) % 4, left = b / 4 * 4 + (b + 3) % 4;
    EXPECT_EQ(out[b * 4], right * 10 + 3);
    EXPECT_EQ(out[b * 4 + 1], right * 10 + 3);
    EXPECT_EQ(out[b * 4 + 2], left % 4 + 100);
    EXPECT_EQ(out[b * 4 + 3], left);
  }
}

// Stores, additions and a multicast that arrive at barriers of other blocks.
TEST(Clusters, RemoteBarriers) {
  DeviceArray<uint32_t> out(64);
  for (uint32_t i = 0; i < 16; ++i) out[i] = 1000 + i;
  const std::string text = kernel(
      "mov.u32 %r3, %cluster_ctarank; setp.ne.u32 %p1, %r3, 0; mbarrier.init.shared::cta.b64 [%r2], 2;"
      "st.shared.u32 [%r2+32], 5; fence.mbarrier_init.release.cluster; barrier.cluster.arrive; "
      "barrier.cluster.wait;"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 84;"
      "xor.b32 %r4, %r3, 1; mapa.shared::cluster.u32 %r5, %r2, %r4; add.u32 %r6, %r3, 40; add.u32 %r7, %r3, "
      "50;"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5+16], {%r6, %r7}, [%r5];"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u64 [%r5+24], %rd2, [%r5];"
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r5+32], %r6, [%r5];"
      "mov.b16 %h1, 3; @!%p1 "
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%r2+64], [%rd1], 64, [%r2], %h1;"
      "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra W;"
      "ld.shared.v2.u32 {%r10, %r11}, [%r2+16]; ld.shared.u32 %r12, [%r2+32]; ld.shared.u32 %r13, [%r2+124];"
      "mul.wide.u32 %rd4, %r3, 16; add.s64 %rd1, %rd1, %rd4; st.global.v4.u32 [%rd1+64], {%r10, %r11, %r12, "
      "%r13};"
      "barrier.cluster.arrive; barrier.cluster.wait;");
  const Fault f = run(text, out.address(), 1, 2, {2, 1, 1});
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  for (uint32_t b = 0; b < 2; ++b) {
    const uint32_t other = 1 - b;
    EXPECT_EQ(out[16 + b * 4], other + 40);
    EXPECT_EQ(out[17 + b * 4], other + 50);
    EXPECT_EQ(out[18 + b * 4], 5 + other + 40);
    EXPECT_EQ(out[19 + b * 4], 1015u);
  }
}

TEST(Clusters, BarrierAfterExitsAndItsDeadlock) {
  // Blocks of rank 1 leave at once: the rest must not wait for them.
  const std::string leave =
      "mov.u32 %r3, %cluster_ctarank; setp.eq.u32 %p1, %r3, 1; @%p1 exit; barrier.cluster.arrive;"
      "setp.lt.u32 %p2, %r1, 40; @%p2 bra A; bra B; A: add.u32 %r3, %r3, 1; B: barrier.cluster.wait;";
  EXPECT_EQ(run(kernel(leave), 0, 64, 4, {2, 1, 1}).kind, FaultKind::kNone);
  const Fault f =
      run(kernel("mov.u32 %r3, %cluster_ctarank; setp.eq.u32 %p1, %r3, 1; @%p1 bra OTHER;"
                 "barrier.cluster.arrive; barrier.cluster.wait; bra END; OTHER: bar.sync 1, 128; END:"),
          0, 64, 2, {2, 1, 1});
  EXPECT_EQ(f.kind, FaultKind::kDeadlock);
  EXPECT_NE(f.text.find("the cluster's barrier"), std::string::npos) << f.text;
  EXPECT_NE(f.text.find("barrier 1"), std::string::npos) << f.text;
  const Fault twice = run(kernel("barrier.cluster.arrive; barrier.cluster.arrive;"), 0, 32, 2, {2, 1, 1});
  EXPECT_EQ(twice.kind, FaultKind::kIllegalInstruction) << twice.text;
}

TEST(Clusters, RanksBeyondTheCluster) {
  EXPECT_EQ(run(kernel("mapa.shared::cluster.u32 %r3, %r2, 2;"), 0, 1, 2, {2, 1, 1}).kind,
            FaultKind::kIllegalAddress);
  EXPECT_EQ(run(kernel("mapa.shared::cluster.u32 %r3, %r2, 1; ld.shared::cluster.u32 %r4, [%r3+4096];"), 0, 1,
                2, {2, 1, 1})
                .kind,
            FaultKind::kIllegalAddress);
}

TEST(Fences, EveryFormIsAccepted) {
  EXPECT_EQ(
      run(kernel("fence.proxy.alias; fence.proxy.async; fence.proxy.async.global;"
                 "fence.proxy.async.shared::cta; fence.proxy.async.shared::cluster;"
                 "fence.mbarrier_init.release.cluster; fence.sc.cta; fence.acq_rel.gpu; fence.acq_rel.sys;"
                 "fence.acquire.cta; fence.release.cluster; membar.cta; membar.gl; membar.sys;"
                 "griddepcontrol.launch_dependents; griddepcontrol.wait;"),
          0)
          .kind,
      FaultKind::kNone);
}

}  // namespace
}  // namespace tessera::softgpu::exec
