// Accesses whose address the decoder folds into them (softgpu/exec/fuse.cc): every element type, index
// patterns, partial warps, the program shapes that must not be folded, and the same reports and counts as
// without.
#include <algorithm>

#include "tests/unit/softgpu_exec/harness.h"

namespace tessera::softgpu::exec {
namespace {

constexpr uint32_t kThreads = 77;  // two full warps and a part of one
constexpr int kElements = 400;

std::string kernel(const std::string& body) {
  return ptx_header() +
         ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c)\n{\n.reg .pred %p<4>;\n.reg .b16 "
         "%h<9>;\n"
         ".reg .b32 %r<9>;\n.reg .b64 %rd<20>;\nld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\n"
         "ld.param.u64 %rd3, [c];\nmov.u32 %r1, %tid.x;\n" +
         body + "\nret;\n}\n";
}
// %r2 = index of the thread
const char* const kIndex =
    "mul.wide.u32 %rd4, %r1, 4;\nadd.s64 %rd4, %rd3, %rd4;\nld.global.u32 %r2, [%rd4];\n";

std::vector<std::vector<int32_t>> patterns() {
  std::vector<std::vector<int32_t>> all(10, std::vector<int32_t>(kThreads));
  for (uint32_t i = 0; i < kThreads; ++i) {
    const int32_t t = static_cast<int32_t>(i);
    all[0][i] = t;                                               // consecutive
    all[1][i] = 13;                                              // uniform
    all[2][i] = 99 - t;                                          // reversed
    all[3][i] = t * 37 % 101;                                    // scattered
    all[4][i] = t - 40;                                          // consecutive through zero, negative first
    all[5][i] = i == 31 ? 90 : i == 32 ? 5 : i == 70 ? 120 : t;  // one lane of a warp astray
    // blocks 16 threads wide: runs or one element per half, far apart, near, the same
    all[6][i] = t % 16 + t / 16 * 40;
    all[7][i] = t / 16 * 33;
    all[8][i] = t % 16 + 3;
    all[9][i] = t / 16 % 2 ? 7 : t % 16;
  }
  return all;
}

// 32-byte sectors of a warp's access, neighbours in one counted once.
uint64_t bytes_of(const std::vector<int32_t>& index, size_t element) {
  uint64_t bytes = 0;
  int64_t last = -1;
  for (uint32_t i = 0; i < kThreads; ++i) {
    const int64_t sector = index[i] * static_cast<int64_t>(element) / 32;
    bytes += i % 32 == 0 || sector != last ? 32 : 0;
    last = sector;
  }
  return bytes;
}

template <class T>
void check_type(const char* type, const char* data, bool is_store) {
  const std::string shift = std::to_string(sizeof(T));
  // base + index x size, in the ways that compilers write it
  const std::string scaled[] = {"mul.wide.s32 %rd5, %r2, " + shift + ";\nadd.s64 %rd6, %rd1, %rd5;\n",
                                "mul.wide.s32 %rd5, %r2, " + shift + ";\nadd.s64 %rd6, %rd5, %rd1;\n",
                                "mad.wide.s32 %rd6, %r2, " + shift + ", %rd1;\n",
                                "cvt.s64.s32 %rd7, %r2;\nshl.b64 %rd5, %rd7, " +
                                    std::to_string(__builtin_ctz(sizeof(T))) +
                                    ";\nadd.s64 %rd6, %rd1, %rd5;\n"};
  for (const std::string& address : scaled)
    for (const std::vector<int32_t>& index : patterns()) {
      const std::string plain =
          "mad.wide.u32 %rd9, %r1, " + shift +
          ", %rd2;\nmov.b64 %rd8, %rd9;\n"
          "@%p1 bra SKIP;\nSKIP:\n";  // the thread's own element, by an address kept apart
      const std::string t(type), d(data);
      const std::string body = std::string(kIndex) + "setp.ne.u32 %p1, %r1, %r1;\n" + plain +
                               (is_store ? "ld.global." + t + " " + d + ", [%rd8];\n" + address +
                                               "st.global." + t + " [%rd6+" + shift + "], " + d + ";"
                                         : address + "ld.global." + t + " " + d + ", [%rd6+" + shift +
                                               "];\nst.global." + t + " [%rd8], " + d + ";");
      TestModule m(kernel(body));
      ASSERT_TRUE(m.ok()) << m.error;
      DeviceArray<T> memory(kElements), own(kThreads);
      DeviceArray<int32_t> indices(index);
      std::vector<T> expected(kElements);
      for (int i = 0; i < kElements; ++i)
        expected[i] = memory[i] = static_cast<T>(i * 0x9e3779b97f4a7c15u + 7);
      for (uint32_t i = 0; i < kThreads; ++i) own[i] = static_cast<T>(i * 0x51ed2701u + 3);
      const uint64_t base = memory.address() + 100 * sizeof(T);
      Work work;
      const Fault f = m.run("k", {1, 1, 1}, {kThreads, 1, 1},
                            Params().add(base).add(own.address()).add(indices.address()), 0, &work);
      ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
      if (is_store) {
        // Lanes of one address: any of them; only the pattern with equal ones is affected.
        for (uint32_t i = 0; i < kThreads; ++i) expected[101 + index[i]] = own[i];
        if (index[0] == index[1]) expected[114] = memory[114];
        EXPECT_NE(std::count(own.data(), own.data() + kThreads, memory[101 + index[0]]), 0);
        for (int i = 0; i < kElements; ++i) EXPECT_EQ(memory[i], expected[i]) << type << " " << i;
      } else {
        for (uint32_t i = 0; i < kThreads; ++i)
          EXPECT_EQ(own[i], expected[101 + index[i]]) << type << " " << i;
      }
      // Instructions of the program, whatever became of them.
      const auto lines = std::count(body.begin(), body.end(), ';');
      EXPECT_EQ(work.warp_instructions, 3u * (4u + static_cast<uint64_t>(lines) + 1)) << body;
      std::vector<int32_t> place = index;
      for (int32_t& x : place) x += 101;
      const std::vector<int32_t> threads = patterns()[0];
      EXPECT_EQ(work.global_bytes,
                bytes_of(place, sizeof(T)) + bytes_of(threads, sizeof(T)) + bytes_of(threads, 4));
    }
}

TEST(Indexed, EveryTypeAndPattern) {
  for (bool is_store : {false, true}) {
    check_type<uint8_t>("u8", "%h1", is_store);
    check_type<int8_t>("s8", "%h1", is_store);
    check_type<uint16_t>("u16", "%h1", is_store);
    check_type<int16_t>("s16", "%h1", is_store);
    check_type<uint32_t>("u32", "%r3", is_store);
    check_type<uint64_t>("u64", "%rd10", is_store);
    check_type<uint64_t>("v2.u32", "{%r3, %r4}", is_store);
  }
}

// These must read the address that the program made, not one made later.
TEST(Indexed, ProgramsThatChangeTheirIndex) {
  struct Row {
    const char* body;
    uint32_t (*expected)(uint32_t thread);  // c[thread], of a[i] = 3 i
  };
  const Row rows[] = {
      // the index changes between address and access
      {"mul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;\nmov.u32 %r5, %r1;\nadd.u32 %r1, %r1, 9;\n"
       "ld.global.u32 %r3, [%rd6];\nmul.wide.u32 %rd7, %r5, 4;\nadd.s64 %rd8, %rd3, %rd7;\nst.global.u32 "
       "[%rd8], %r3;",
       [](uint32_t t) { return 3 * t; }},
      // the product changes before the sum is made, the sum after
      {"mul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;\nadd.s64 %rd8, %rd3, %rd5;\nadd.s64 %rd5, "
       "%rd5, 4;\n"
       "add.s64 %rd7, %rd1, %rd5;\nld.global.u32 %r3, [%rd6];\nld.global.u32 %r4, [%rd7];\nadd.u32 %r3, %r3, "
       "%r4;\n"
       "st.global.u32 [%rd8], %r3;",
       [](uint32_t t) { return 6 * t + 3; }},
      // the address is wanted elsewhere too
      {"mul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;\nld.global.u32 %r3, [%rd6];\nsub.s64 %rd7, "
       "%rd6, %rd1;\n"
       "add.s64 %rd8, %rd3, %rd7;\nst.global.u32 [%rd8], %r3;",
       [](uint32_t t) { return 3 * t; }},
      // a guarded address: the others keep the old one
      {"setp.lt.u32 %p1, %r1, 20;\nmov.b64 %rd6, %rd1;\nmul.wide.u32 %rd5, %r1, 4;\n@%p1 add.s64 %rd6, %rd1, "
       "%rd5;\n"
       "ld.global.u32 %r3, [%rd6];\nadd.s64 %rd8, %rd3, %rd5;\nst.global.u32 [%rd8], %r3;",
       [](uint32_t t) { return t < 20 ? 3 * t : 0; }},
      // a guarded access: the others keep the old value
      {"setp.lt.u32 %p1, %r1, 40;\nmov.u32 %r3, 5;\nmul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;\n"
       "@%p1 ld.global.u32 %r3, [%rd6];\nadd.s64 %rd8, %rd3, %rd5;\nst.global.u32 [%rd8], %r3;",
       [](uint32_t t) { return t < 40 ? 3 * t : 5; }},
      // the loaded value takes the address' register; a loop that moves the index before it uses the old
      // address
      {"mov.u32 %r4, 0;\nmov.u32 %r5, %r1;\nmul.wide.u32 %rd5, %r5, 4;\nadd.s64 %rd6, %rd1, %rd5;\nmov.u32 "
       "%r3, 0;\n"
       "L:\nadd.u32 %r5, %r5, 1;\nld.global.u32 %r6, [%rd6];\nadd.u32 %r3, %r3, %r6;\nmul.wide.u32 %rd5, "
       "%r5, 4;\n"
       "add.s64 %rd6, %rd1, %rd5;\nadd.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, %r4, 3;\n@%p1 bra L;\n"
       "mul.wide.u32 %rd7, %r1, 4;\nadd.s64 %rd8, %rd3, %rd7;\nst.global.u32 [%rd8], %r3;",
       [](uint32_t t) { return 9 * t + 9; }},
      // the base of a copy, at the start of a segment, in divergent code
      {"mov.u32 %r3, 7;\nmul.wide.u32 %rd7, %r1, 4;\nadd.s64 %rd8, %rd3, %rd7;\nsetp.ge.u32 %p1, %r1, "
       "50;\n@%p1 bra OUT;\n"
       "cvta.to.global.u64 %rd9, %rd1;\nmul.wide.s32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd9, %rd5;\n"
       "ld.global.u32 %r3, [%rd6];\nOUT:\nst.global.u32 [%rd8], %r3;",
       [](uint32_t t) { return t < 50 ? 3 * t : 7; }},
  };
  for (const Row& row : rows) {
    TestModule m(kernel(row.body));
    ASSERT_TRUE(m.ok()) << m.error;
    DeviceArray<uint32_t> a(kElements), c(kThreads);
    for (int i = 0; i < kElements; ++i) a[i] = 3u * static_cast<uint32_t>(i);
    const Fault f =
        m.run("k", {1, 1, 1}, {kThreads, 1, 1}, Params().add(a.address()).add(a.address()).add(c.address()));
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    for (uint32_t i = 0; i < kThreads; ++i) EXPECT_EQ(c[i], row.expected(i)) << i << "\n" << row.body;
  }
}

// Slots count whether or not an op is left of them, in divergent code too.
TEST(Indexed, CountsEveryInstruction) {
  TestModule m(
      kernel("setp.ge.u32 %p1, %r1, 16;\n@%p1 bra OUT;\ncvta.to.global.u64 %rd9, %rd1;\n"
             "mul.wide.s32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd9, %rd5;\nld.global.u32 %r3, [%rd6];\nOUT:"));
  ASSERT_TRUE(m.ok()) << m.error;
  DeviceArray<uint32_t> a(kElements);
  Work work;
  const Fault f = m.run("k", {1, 1, 1}, {64, 1, 1},
                        Params().add(a.address()).add(a.address()).add(a.address()), 0, &work);
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  // First warp: six in front, four by half of the lanes, the return; second: six and the return.
  EXPECT_EQ(work.warp_instructions, 6u + 4 + 1 + 6 + 1);
  EXPECT_EQ(work.global_bytes, 64u);
}

struct Reported {
  const char* address;
  FaultKind kind;
  uint32_t thread;
  uint64_t offset;  // of the address, from `a`
};
TEST(Indexed, ReportsAreThoseOfThePlainAccess) {
  const Reported rows[] = {
      // 64 elements
      {"mul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;", FaultKind::kIllegalAddress, 64, 256},
      {"add.s32 %r1, %r1, -1;\nmul.wide.s32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;",
       FaultKind::kIllegalAddress, 0, ~uint64_t{3}},
      {"add.s64 %rd1, %rd1, 2;\nmul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;",
       FaultKind::kMisalignedAddress, 0, 2},
      // indices that wrap are not consecutive addresses: lanes 0 .. 15 reach far, as unsigned and as signed
      {"add.u32 %r1, %r1, -16;\nmul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;",
       FaultKind::kIllegalAddress, 0, uint64_t{0xfffffff0} * 4},
      {"add.u32 %r1, %r1, 0x7ffffff0;\nmul.wide.s32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;",
       FaultKind::kIllegalAddress, 0, uint64_t{0x7ffffff0} * 4},
  };
  for (const Reported& row : rows)
    for (const char* access : {"\nld.global.u32 %r3, [%rd6];", "\nst.global.u32 [%rd6], %r1;"}) {
      TestModule m(kernel(std::string(row.address) + access));
      ASSERT_TRUE(m.ok()) << m.error;
      DeviceArray<uint32_t> a(64);
      const Fault f =
          m.run("k", {1, 1, 1}, {96, 1, 1}, Params().add(a.address()).add(a.address()).add(a.address()));
      EXPECT_EQ(f.kind, row.kind) << row.address;
      EXPECT_EQ(f.thread[0], row.thread) << row.address;
      EXPECT_EQ(f.address, a.address() + row.offset) << row.address;
      EXPECT_EQ(f.line, 14u + static_cast<unsigned>(
                                  std::count(row.address, row.address + strlen(row.address), '\n') + 1))
          << row.address;
    }
}
TEST(Indexed, MemoryThatWasFreedSinceTheLastLaunch) {
  TestModule m(kernel("mul.wide.u32 %rd5, %r1, 4;\nadd.s64 %rd6, %rd1, %rd5;\nld.global.u32 %r3, [%rd6];"));
  ASSERT_TRUE(m.ok()) << m.error;
  DeviceArray<uint32_t> a(64);
  const Params params = Params().add(a.address()).add(a.address()).add(a.address());
  EXPECT_EQ(m.run("k", {1, 1, 1}, {64, 1, 1}, params).kind, FaultKind::kNone);
  a.release();
  EXPECT_EQ(m.run("k", {1, 1, 1}, {64, 1, 1}, params).kind, FaultKind::kIllegalAddress);
}

}  // namespace
}  // namespace tessera::softgpu::exec
