// Surfaces: loads, stores, bounds, and handles that name none.
#include "softgpu/exec/surface_view.h"
#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

// An image in host memory with its page.
struct Image {
  DeviceArray<SurfaceView> page{1};
  std::vector<char> elements;
  SurfaceView& view = page[0];

  Image(SurfaceShape shape, unsigned element_bytes, uint32_t width, uint32_t height = 1, uint32_t depth = 1) {
    const uint64_t pitch = uint64_t{width} * element_bytes + 16;  // rows have gaps
    elements.resize(pitch * height * depth + 64);
    view = {kSurfaceMagic,
            width,
            height,
            depth,
            reinterpret_cast<uint64_t>(elements.data()),
            pitch,
            pitch * height,
            shape,
            static_cast<uint8_t>(element_bytes),
            {}};
  }
  char* at(uint32_t x, uint32_t y = 0, uint32_t z = 0) {
    return elements.data() + z * view.slice_pitch + y * view.row_pitch + x * view.element_bytes;
  }
  void set(uint32_t value, uint32_t x) { std::memcpy(at(x), &value, sizeof value); }
};

struct Four {
  uint32_t bits[4];
};

// Runs one access per thread, which has its element of `places` in %r9; results in %r1..%r4.
std::vector<Four> run(const std::string& access, Image& image, const std::vector<int>& places,
                      Fault* fault = nullptr) {
  TestModule m(
      ptx_header() +
      ".visible .entry k(.param .u64 h, .param .u64 in, .param .u64 out, .param .u32 n)\n{\n.reg .pred "
      "%p<4>;\n"
      ".reg .b16 %h<6>;\n.reg .b32 %r<20>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<12>;\nld.param.u64 %rd1, [h];\n"
      "ld.param.u64 %rd2, [in];\nld.param.u64 %rd3, [out];\nld.param.u32 %r10, [n];\nmov.u32 %r11, %tid.x;\n"
      "setp.ge.u32 %p1, %r11, %r10;\n@%p1 bra DONE;\nmad.wide.u32 %rd2, %r11, 4, %rd2;\n"
      "mad.wide.u32 %rd3, %r11, 16, %rd3;\nld.global.u32 %r9, [%rd2];\n"
      "mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0;\n" +
      access + "\nst.global.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};\nDONE:\nret;\n}\n");
  EXPECT_TRUE(m.ok()) << m.error;
  DeviceArray<int> in(places);
  DeviceArray<Four> out(places.size());
  const Fault f = m.run("k", {1, 1, 1}, {static_cast<uint32_t>((places.size() + 31) / 32 * 32), 1, 1},
                        Params()
                            .add(image.page.address())
                            .add(in.address())
                            .add(out.address())
                            .add(static_cast<uint32_t>(places.size())));
  if (fault)
    *fault = f;
  else
    EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  return out.values();
}

// A whole vector register takes the result; the handle and one coordinate stand without braces. A
// two-dimensional image of one row is a line.
TEST(Surfaces, LineIntoAVectorRegister) {
  for (const SurfaceShape shape : {SurfaceShape::k1D, SurfaceShape::k2D}) {
    Image image(shape, 8, 4);
    for (uint32_t x = 0; x < 4; ++x) {
      const uint32_t pair[2] = {x + 1, x * 10};
      std::memcpy(image.at(x), pair, sizeof pair);
    }
    const std::vector<Four> got =
        run("{ .reg .v2 .b32 t; suld.b.1d.v2.b32.clamp t, [%rd1, %r9]; mov.b32 %r1, t.x; mov.b32 %r2, t.y; }",
            image, {0, 16, 72});
    EXPECT_EQ(got[0].bits[0], 1u);
    EXPECT_EQ(got[1].bits[0], 3u);
    EXPECT_EQ(got[1].bits[1], 20u);
    EXPECT_EQ(got[2].bits[1], 30u);
  }
}

TEST(Surfaces, LoadsAndStoresOfEverySize) {
  struct Row {
    const char* form;
    unsigned element_bytes;
    std::string registers;
  };
  for (const Row& row :
       {Row{"b8", 1, "%h1"}, Row{"v2.b8", 2, "{%h1, %h2}"}, Row{"v4.b8", 4, "{%h1, %h2, %h3, %h4}"},
        Row{"b16", 2, "%h1"}, Row{"v2.b16", 4, "{%h1, %h2}"}, Row{"b32", 4, "%r1"},
        Row{"v4.b32", 16, "{%r1, %r2, %r3, %r4}"}, Row{"b64", 8, "%rd5"},
        Row{"v2.b64", 16, "{%rd5, %rd6}"}}) {
    SCOPED_TRACE(row.form);
    Image image(SurfaceShape::k2DLayered, row.element_bytes, 5, 4, 3);
    for (size_t i = 0; i < image.elements.size(); ++i) image.elements[i] = static_cast<char>(i * 7);
    const std::vector<char> before = image.elements;
    // Copies the element (1, 2) of layer 2 to (4, 3) of layer 0.
    const std::string bytes = std::to_string(image.view.element_bytes);
    run("mul.lo.u32 %r5, 4, " + bytes + "; mov.u32 %r6, " + bytes +
            "; mov.u32 %r7, 2; mov.u32 %r8, 3; mov.u32 %r9, 0;\n" + std::string("suld.b.a2d.") + row.form +
            ".trap " + row.registers + ", [%rd1, {%r7, %r6, %r7, %r7}];\n" + "sust.b.a2d." + row.form +
            ".trap [%rd1, {%r9, %r5, %r8, %r8}], " + row.registers + ";",
        image, {0});
    std::vector<char> want = before;
    std::memcpy(want.data() + (image.at(4, 3, 0) - image.elements.data()),
                before.data() + (image.at(1, 2, 2) - image.elements.data()), image.view.element_bytes);
    EXPECT_EQ(image.elements, want);
  }
}

TEST(Surfaces, Bounds) {
  Image image(SurfaceShape::k1D, 4, 4);
  for (uint32_t x = 0; x < 4; ++x) image.set(x + 10, x);
  const std::vector<int> places = {0, 12, 16, -4};
  auto got = run("suld.b.1d.b32.zero %r1, [%rd1, {%r9}];", image, places);
  EXPECT_EQ(got[1].bits[0], 13u);
  EXPECT_EQ(got[2].bits[0], 0u);
  EXPECT_EQ(got[3].bits[0], 0u);
  got = run("suld.b.1d.b32.clamp %r1, [%rd1, {%r9}];", image, places);
  EXPECT_EQ(got[2].bits[0], 13u);
  EXPECT_EQ(got[3].bits[0], 10u);
  run("mov.u32 %r1, 99; sust.b.1d.b32.zero [%rd1, {%r9}], %r1;", image, {16});
  run("mov.u32 %r1, 98; sust.b.1d.b32.clamp [%rd1, {%r9}], %r1;", image, {-8});
  EXPECT_EQ(run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, {0})[0].bits[0], 98u);
  Fault f;
  run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, places, &f);
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  EXPECT_EQ(f.thread[0], 2u);
  run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, {6}, &f);
  EXPECT_EQ(f.kind, FaultKind::kMisalignedAddress);
}

TEST(Surfaces, HandlesThatNameNothing) {
  Image image(SurfaceShape::k2D, 4, 4, 4);
  Fault f;
  run("suld.b.3d.b32.trap %r1, [%rd1, {%r9, %r9, %r9, %r9}];", image, {0}, &f);
  EXPECT_EQ(f.kind, FaultKind::kIllegalInstruction);
  EXPECT_NE(f.text.find("another shape"), std::string::npos);
  run("mov.u64 %rd1, 4096; suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, {0}, &f);
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  EXPECT_NE(f.text.find("no live object"), std::string::npos);
  image.view.magic = 0;
  run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, {0}, &f);
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
}

TEST(Surfaces, OtherFormsAndTexturesAreRefused) {
  Image image(SurfaceShape::k2D, 4, 4, 4);
  for (const std::string text :
       {"sust.p.1d.b32.trap [%rd1, {%r9}], %r1;", "suq.width.b32 %r1, [%rd1];", "txq.width.b32 %r1, [%rd1];",
        "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];",
        "tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];"}) {
    Fault f;
    run(text, image, {0}, &f);
    EXPECT_EQ(f.kind, FaultKind::kInvalidPc) << text;
  }
}

}  // namespace
}  // namespace tessera::softgpu::exec
