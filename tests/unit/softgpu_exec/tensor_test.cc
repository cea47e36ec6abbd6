// Copies of boxes between tensors and shared memory against a scalar model that asks for each element whether
// it exists and where it lies.
#include <algorithm>
#include <map>
#include <random>

#include "softgpu/exec/tensor_map.h"
#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

constexpr unsigned kTile = 1024, kMost = 32 * 1024;  // where boxes lie in shared memory; their size at most
constexpr unsigned kData = 256;  // the page: map, coordinates, then what is copied to or from shared memory

// Shared memory: a barrier at 0, boxes at kTile. %rd1: the page, %r2: the barrier, %r3: the box, %r10..:
// coordinates.
std::string tensor_kernel(const std::string& body, const std::string& head = "") {
  std::string t =
      ptx_header() + ".visible .entry k(.param .u64 p) " + head +
      "\n{\n.reg .pred %p<8>;\n.reg .b16 %h<4>;\n.reg .b32 %r<32>;\n.reg .b64 %rd<16>;\n"
      ".shared .align 1024 .b8 s[" +
      std::to_string(kTile + kMost) +
      "];\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, s;\nadd.u32 %r3, %r2, 1024;\n"
      "setp.ne.u32 %p1, %r1, 0;\n";
  for (unsigned d = 0; d < 5; ++d)
    t += "ld.global.u32 %r" + std::to_string(10 + d) + ", [%rd1+" + std::to_string(128 + 4 * d) + "];\n";
  return t + body + "\nret;\n}\n";
}
std::string coordinates(unsigned rank) {
  std::string t = "[%rd1, {%r10";
  for (unsigned d = 1; d < rank; ++d) t += ", %r" + std::to_string(10 + d);
  return t + "}]";
}
// Words of shared memory to the page, or back, by 32 threads.
std::string words(unsigned bytes, bool out) {
  const std::string name = out ? "OUT" : "IN", shared = "[%r6]", global = "[%rd6]";
  return "shl.b32 %r5, %r1, 2; " + name + ": setp.ge.u32 %p7, %r5, " + std::to_string(bytes) + "; @%p7 bra " +
         name +
         "END; cvt.u64.u32 %rd5, %r5; add.u64 %rd6, %rd1, %rd5; add.u64 %rd6, %rd6, 256; add.u32 %r6, %r3, "
         "%r5; " +
         (out ? "ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd6], %r7; "
              : "ld.global.u32 %r7, [%rd6]; st.shared.u32 [%r6], %r7; ") +
         "add.u32 %r5, %r5, 128; bra " + name + "; " + name + "END:\n";
}
std::string load(unsigned rank, unsigned bytes, const std::string& form = "shared::cluster.global.tile",
                 const std::string& more = "") {
  return "@%p1 bra READY; mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;"
         "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], " +
         std::to_string(bytes) + ";\nprefetch.tensormap [%rd1];\ncp.async.bulk.prefetch.tensor." +
         std::to_string(rank) + "d.L2.global.tile " + coordinates(rank) + ";\ncp.async.bulk.tensor." +
         std::to_string(rank) + "d." + form + ".mbarrier::complete_tx::bytes" + more + " [%r3], " +
         coordinates(rank) +
         ", [%r2];\nREADY: bar.sync 0;\n"
         "WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra WAIT;\n";
}
std::string store(unsigned rank, const std::string& form = "cp.async.bulk.tensor",
                  const std::string& how = "") {
  return "fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra DONE; " + form + "." + std::to_string(rank) +
         "d.global.shared::cta" + how + ".tile.bulk_group " + coordinates(rank) +
         ", [%r3]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; DONE:\n";
}

// A tensor in memory, a map of it, and a box.
struct Tensor {
  TensorMap map = {};
  int at[5] = {};
  unsigned taken[5] = {1, 1, 1, 1, 1};  // elements of the box along each dimension
  unsigned each = 1, row = 0, bytes = 0;
  std::unique_ptr<DeviceArray<uint8_t>> memory;

  void make(TensorElement type, const std::vector<unsigned>& sizes, const std::vector<unsigned>& box,
            const std::vector<unsigned>& steps, unsigned swizzle, bool nan = false) {
    map = {};
    map.magic = kTensorMapMagic;
    map.element = type;
    map.last_dimension = static_cast<uint8_t>(sizes.size() - 1);
    map.swizzle = static_cast<uint8_t>(swizzle);
    map.fill_nan = nan;
    const std::map<TensorElement, unsigned> kWidths = {{TensorElement::kU8, 1},  {TensorElement::kU16, 2},
                                                       {TensorElement::kF16, 2}, {TensorElement::kBf16, 2},
                                                       {TensorElement::kU64, 8}, {TensorElement::kF64, 8},
                                                       {TensorElement::kS64, 8}};
    each = kWidths.count(type) ? kWidths.at(type) : 4;
    uint64_t stride = (sizes[0] * each + 15) / 16 * 16 + 16;  // rows are apart
    for (size_t d = 0; d < sizes.size(); ++d) {
      map.most[d] = sizes[d] - 1;
      map.box[d] = box[d];
      map.element_stride[d] = static_cast<uint8_t>(steps[d]);
      taken[d] = d ? (box[d] + steps[d] - 1) / steps[d] : box[d];
      if (d) map.stride_bytes[d - 1] = stride, stride *= sizes[d];
    }
    row = taken[0] * each;
    bytes = row * taken[1] * taken[2] * taken[3] * taken[4];
    memory = std::make_unique<DeviceArray<uint8_t>>(stride);
    unsigned x = 12345;
    for (size_t i = 0; i < stride; ++i)
      (*memory)[i] = static_cast<uint8_t>((x = x * 1664525 + 1013904223) >> 24);
    map.address = memory->address();
  }
  // f(byte in shared memory of an element, its index into `memory` or -1)
  template <class F>
  void each_element(F f) const {
    const unsigned width = map.swizzle ? 16u << map.swizzle : 0;
    for (unsigned e = 0; e < bytes / each; ++e) {
      unsigned rest = e;
      int64_t offset = 0;
      bool exists = true;
      for (unsigned d = 0; d <= map.last_dimension; ++d) {
        const int64_t x = at[d] + int64_t{rest % taken[d]} * (d ? map.element_stride[d] : 1);
        rest /= taken[d];
        exists = exists && x >= 0 && x <= int64_t{map.most[d]};
        offset += x * (d ? static_cast<int64_t>(map.stride_bytes[d - 1]) : each);
      }
      unsigned place = e * each;
      if (width) {
        const unsigned line = place / width, piece = place % width / 16;
        place = line * width + (piece ^ (line * width / 128 % (width / 16))) * 16 + place % 16;
      }
      f(place, exists ? offset : -1);
    }
  }
  // The page of a launch.
  void fill(DeviceArray<uint8_t>& page) const {
    std::memcpy(page.data(), &map, sizeof map);
    std::memcpy(page.data() + 128, at, sizeof at);
  }
};

class Random {
 public:
  unsigned below(unsigned n) { return static_cast<unsigned>(engine_() % n); }
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<unsigned>(high - low + 1)));
  }

 private:
  std::mt19937 engine_{7};
};
// Any rank, type, size, step and swizzle; boxes that stick out on either side.
Tensor any(Random& random, unsigned turn, bool steps) {
  const TensorElement kTypes_[] = {TensorElement::kU8, TensorElement::kF16, TensorElement::kF32,
                                   TensorElement::kU64};
  const unsigned kEach[] = {1, 2, 4, 8};
  const unsigned rank = 1 + turn % 5, type = turn / 5 % 4, swizzle = random.below(4);
  std::vector<unsigned> sizes, box, by;
  for (unsigned d = 0; d < rank; ++d) {
    sizes.push_back(1 + random.below(d ? 9 : 70));
    by.push_back(steps ? 1 + random.below(3) : 1);
    box.push_back(1 + random.below(6));
  }
  box[0] = (swizzle ? 16u << swizzle : 16u * (1 + random.below(4))) / kEach[type];
  Tensor t;
  t.make(kTypes_[type], sizes, box, by, swizzle, type == 1 || type == 2 ? random.below(2) != 0 : false);
  for (unsigned d = 0; d < rank; ++d) t.at[d] = random.between(-3, static_cast<int>(sizes[d]));
  return t;
}

TEST(Tensors, BoxesAreLoaded) {
  Random random;
  for (unsigned turn = 0; turn < 80; ++turn) {
    Tensor t = any(random, turn, true);
    const unsigned rank = t.map.last_dimension + 1u;
    DeviceArray<uint8_t> page(kData + kMost, 0xcd);
    t.fill(page);
    const char* form = turn % 2 ? "shared::cluster.global.tile" : "shared::cta.global";
    TestModule m(tensor_kernel(load(rank, t.bytes, form) + words(t.bytes, true)));
    ASSERT_TRUE(m.ok()) << m.error;
    const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(page.address()));
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    unsigned wrong = 0;
    t.each_element([&](unsigned place, int64_t from) {
      uint8_t want[8] = {};
      if (from >= 0)
        std::memcpy(want, t.memory->data() + from, t.each);
      else if (t.map.fill_nan)
        std::memcpy(want, t.each == 2 ? "\xff\x7f" : "\xff\xff\xff\x7f", t.each);
      wrong += std::memcmp(page.data() + kData + place, want, t.each) != 0;
    });
    EXPECT_EQ(wrong, 0u) << "turn " << turn << " rank " << rank << " swizzle " << int(t.map.swizzle);
  }
}
TEST(Tensors, BoxesAreStoredWhereElementsExist) {
  Random random;
  for (unsigned turn = 0; turn < 60; ++turn) {
    Tensor t = any(random, turn, turn % 2);
    const unsigned rank = t.map.last_dimension + 1u;
    DeviceArray<uint8_t> page(kData + kMost);
    for (unsigned i = 0; i < kMost; ++i) page[kData + i] = static_cast<uint8_t>(i * 7 + turn);
    t.fill(page);
    std::vector<uint8_t> want = t.memory->values();
    t.each_element([&](unsigned place, int64_t to) {
      if (to >= 0) std::memcpy(want.data() + to, page.data() + kData + place, t.each);
    });
    TestModule m(tensor_kernel(words(t.bytes, false) + store(rank)));
    ASSERT_TRUE(m.ok()) << m.error;
    const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(page.address()));
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    EXPECT_EQ(t.memory->values(), want) << "turn " << turn;
  }
}
TEST(Tensors, BoxesAreReducedIntoMemory) {
  struct Row {
    const char* how;
    TensorElement type;
    U (*want)(U memory, U x);
  };
  for (const Row& row : {
           Row{".add", TensorElement::kU32, [](U m, U x) { return m + x; }},
           Row{".min", TensorElement::kS32, [](U m, U x) { return S(m) < S(x) ? m : x; }},
           Row{".max", TensorElement::kU32, [](U m, U x) { return std::max(m, x); }},
           Row{".inc", TensorElement::kU32, [](U m, U x) { return m >= x ? 0 : m + 1; }},
           Row{".dec", TensorElement::kU32, [](U m, U x) { return m == 0 || m > x ? x : m - 1; }},
           Row{".and", TensorElement::kU32, [](U m, U x) { return m & x; }},
           Row{".or", TensorElement::kS64, [](U m, U x) { return m | x; }},
           Row{".xor", TensorElement::kU64, [](U m, U x) { return m ^ x; }},
           Row{".add", TensorElement::kF16, [](U m, U x) { return to_half(from_half(m) + from_half(x)); }},
           Row{".max", TensorElement::kF16, [](U m, U x) { return from_half(m) > from_half(x) ? m : x; }},
       }) {
    SCOPED_TRACE(row.how);
    Tensor t;
    t.make(row.type, {20, 6}, {16, 4}, {1, 1}, 0);
    const bool floats = row.type == TensorElement::kF16;
    if (floats)  // ordinary numbers
      for (size_t i = 0; i + 1 < t.memory->size(); i += 2)
        (*t.memory)[i + 1] = 0x30 | ((*t.memory)[i + 1] & 0x8f);
    t.at[0] = 8, t.at[1] = -1;
    DeviceArray<uint8_t> page(kData + kMost);
    for (unsigned i = 0; i < kMost; ++i)
      page[kData + i] = floats && i % 2 ? static_cast<uint8_t>(0x3c + i % 3) : static_cast<uint8_t>(i * 37);
    t.fill(page);
    std::vector<uint8_t> want = t.memory->values();
    t.each_element([&](unsigned place, int64_t to) {
      if (to < 0) return;
      U old = 0, x = 0;
      std::memcpy(&old, want.data() + to, t.each);
      std::memcpy(&x, page.data() + kData + place, t.each);
      const U fresh = row.want(old, x);
      std::memcpy(want.data() + to, &fresh, t.each);
    });
    TestModule m(tensor_kernel(words(t.bytes, false) + store(2, "cp.reduce.async.bulk.tensor", row.how)));
    ASSERT_TRUE(m.ok()) << m.error;
    const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(page.address()));
    ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
    EXPECT_EQ(t.memory->values(), want);
  }
}
// One block of a cluster loads for both; each hears of it at its own barrier.
TEST(Tensors, Multicast) {
  Tensor t;
  t.make(TensorElement::kF32, {32, 8}, {32, 8}, {1, 1}, 3);
  DeviceArray<uint8_t> page(kData + kMost);
  t.fill(page);
  const std::string text = tensor_kernel(
      "mov.u32 %r20, %cluster_ctarank; @%p1 bra READY; mbarrier.init.shared.b64 [%r2], 1;"
      "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 1024; READY: barrier.cluster.arrive.aligned;"
      "barrier.cluster.wait.aligned; setp.ne.u32 %p3, %r20, 0; or.pred %p3, %p3, %p1; @%p3 bra WAIT; mov.u16 "
      "%h1, 3;"
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%r3], " +
          coordinates(2) +
          ", [%r2], %h1, %rd9;\nWAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra WAIT;"
          "mul.wide.u32 %rd7, %r20, 1024; add.u64 %rd1, %rd1, %rd7;\n" +
          words(1024, true) + "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
      ".reqnctapercluster 2, 1, 1");
  TestModule m(text);
  ASSERT_TRUE(m.ok()) << m.error;
  const Fault f = m.run("k", {2, 1, 1}, {32, 1, 1}, Params().add(page.address()));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  t.each_element([&](unsigned place, int64_t from) {
    for (unsigned rank = 0; rank < 2; ++rank)
      EXPECT_EQ(std::memcmp(page.data() + kData + rank * 1024 + place, t.memory->data() + from, 4), 0)
          << place;
  });
}
// A map made on the device: every field of 128 zeros in shared memory is set, then the warp copies it to
// memory.
TEST(Tensors, MapsAreMadeOnTheDevice) {
  Tensor t;
  t.make(TensorElement::kBf16, {40, 9, 5}, {16, 4, 3}, {1, 2, 1}, 1);
  t.at[0] = 30, t.at[1] = 1, t.at[2] = 3;
  DeviceArray<uint8_t> page(kData + kMost);
  t.fill(page);
  std::memset(page.data(), 0, 128);
  std::string body =
      "mov.u32 %r8, s;\nadd.u32 %r8, %r8, 1024;\nshl.b32 %r9, %r1, 2;\nadd.u32 %r9, %r9, %r8;\n"
      "st.shared.u32 [%r9], 0;\nbar.warp.sync -1;\n@%p1 bra MADE;\n";
  const auto replace = [&](const std::string& field, const std::string& value, bool wide = false) {
    body += "tensormap.replace.tile." + field + ".shared::cta.b1024.b" + (wide ? "64" : "32") + " [%r8], " +
            value + ";\n";
  };
  replace("global_address", std::to_string(t.map.address), true);
  replace("rank", "2");
  for (unsigned d = 0; d < 3; ++d) {
    const std::string n = std::to_string(d) + ", ";
    replace("box_dim", n + std::to_string(t.map.box[d]));
    replace("global_dim", n + std::to_string(t.map.most[d] + 1));
    replace("element_stride", n + std::to_string(t.map.element_stride[d]));
    if (d)
      replace("global_stride", std::to_string(d - 1) + ", " + std::to_string(t.map.stride_bytes[d - 1]),
              true);
  }
  replace("elemtype", "10");
  replace("interleave_layout", "0");
  replace("swizzle_mode", "1");
  replace("swizzle_atomicity", "0");
  replace("fill_mode", "1");
  body +=
      "MADE: bar.warp.sync -1;\n"
      "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r8], "
      "128;\n"
      "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;\n";
  TestModule m(tensor_kernel(body + load(3, t.bytes) + words(t.bytes, true)));
  ASSERT_TRUE(m.ok()) << m.error;
  const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(page.address()));
  ASSERT_EQ(f.kind, FaultKind::kNone) << f.text;
  t.map.fill_nan = 1;
  EXPECT_EQ(std::memcmp(page.data(), &t.map, sizeof t.map), 0);
  t.each_element([&](unsigned place, int64_t from) {
    EXPECT_EQ(std::memcmp(page.data() + kData + place,
                          from < 0 ? "\xff\x7f" : (const char*)t.memory->data() + from, 2),
              0)
        << place;
  });
}
TEST(Tensors, MisuseIsReported) {
  const auto fault = [](const std::function<void(Tensor&)>& change, const std::string& text) {
    Tensor t;
    t.make(TensorElement::kF32, {32, 8}, {32, 8}, {1, 1}, 3);
    change(t);
    DeviceArray<uint8_t> page(kData + kMost);
    t.fill(page);
    TestModule m(tensor_kernel(text));
    EXPECT_TRUE(m.ok()) << m.error;
    const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(page.address()));
    return (f.kind == FaultKind::kNone                ? "none: "
            : f.kind == FaultKind::kIllegalAddress    ? "address: "
            : f.kind == FaultKind::kMisalignedAddress ? "misaligned: "
                                                      : "illegal: ") +
           f.text;
  };
  const auto expect = [&](const std::function<void(Tensor&)>& change, const char* kind, const char* what) {
    const std::string said = fault(change, load(2, 1024));
    EXPECT_EQ(said.find(kind), 0u) << said;
    EXPECT_NE(said.find(what), std::string::npos) << said;
  };
  expect([](Tensor&) {}, "none", "");
  expect([](Tensor& t) { t.map = {}; }, "illegal", "no tensor map");
  expect([](Tensor& t) { std::memset(static_cast<void*>(&t.map), 0x55, sizeof t.map); }, "illegal", "");
  expect([](Tensor& t) { t.map.last_dimension = 2, t.map.box[2] = 1, t.map.element_stride[2] = 1; },
         "illegal", "rank 3, the instruction 2");
  expect([](Tensor& t) { t.map.box[0] = 16; }, "illegal", "narrower than the swizzle are not supported");
  expect([](Tensor& t) { t.map.box[0] = 64; }, "illegal", "wider than the swizzle");
  expect([](Tensor& t) { t.map.box[1] = 257; }, "illegal", "1 to 256");
  expect([](Tensor& t) { t.map.stride_bytes[0] = 136; }, "illegal", "multiples of 16");
  expect([](Tensor& t) { t.map.element = TensorElement::kTf32; }, "illegal", "not supported");
  expect([](Tensor& t) { t.map.fill_nan = 1, t.map.element = TensorElement::kU32; }, "illegal",
         "only floats");
  expect([](Tensor& t) { t.map.most[1] = 1000, t.at[1] = 900, t.map.stride_bytes[0] = U{1} << 36; },
         "address", "allocation");
  EXPECT_EQ(fault([](Tensor&) {}, "add.u32 %r3, %r3, 64;" + load(2, 1024)).find("misaligned"), 0u);
  EXPECT_EQ(fault([](Tensor&) {}, "add.u32 %r3, %r3, 32768;" + load(2, 1024)).find("address"), 0u);
  EXPECT_NE(fault([](Tensor& t) { t.map.element = TensorElement::kF64, t.map.box[0] = 16; },
                  store(2, "cp.reduce.async.bulk.tensor", ".min"))
                .find("no such reduction"),
            std::string::npos);
  const auto refused = [](const std::string& text) {
    TestModule m(tensor_kernel(text));
    EXPECT_TRUE(m.ok()) << m.error;
    return m.ok() && m.program->refused().count("k") == 1;
  };
  EXPECT_TRUE(
      refused("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r3], " +
              coordinates(3) + ", [%r2], {%h1};"));
  EXPECT_TRUE(refused(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r3], " +
      coordinates(5) + ", [%r2];"));
  EXPECT_TRUE(refused("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r3], " +
                      coordinates(3) + ", [%r2];"));
  EXPECT_TRUE(refused("tensormap.replace.tile.global_stride.global.b1024.b64 [%rd1], 4, %rd2;"));
  EXPECT_TRUE(refused("tensormap.replace.tile.rank.global.b1024.b64 [%rd1], %rd2;"));
  EXPECT_TRUE(refused("tensormap.replace.tile.elemtype.global.b1024.b32 [%rd1], %r3;"));
}

}  // namespace
}  // namespace tessera::softgpu::exec
