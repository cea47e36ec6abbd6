// Textures and surfaces against the formulas of the programming guide, written out in double.
#include <cmath>

#include "softgpu/exec/texture.h"
#include "tests/unit/softgpu_exec/harness.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

// An image in host memory with its page.
struct Image {
  DeviceArray<TextureView> page{1};
  std::vector<char> elements;
  TextureView& view = page[0];

  Image(TextureShape shape, TextureElement element, unsigned channels, uint32_t width, uint32_t height = 1,
        uint32_t depth = 1, uint32_t magic = kTextureMagic) {
    static constexpr unsigned kBytes[] = {1, 2, 4, 1, 2, 4, 2, 4};
    view = TextureView{};
    view.magic = magic;
    view.shape = shape;
    view.element = element;
    view.channels = static_cast<uint8_t>(channels);
    view.element_bytes = static_cast<uint8_t>(kBytes[static_cast<int>(element)] * channels);
    view.n_levels = 1;
    view.max_level = 99;
    for (TextureAddress& a : view.address) a = TextureAddress::kClamp;
    const uint64_t pitch = uint64_t{width} * view.element_bytes + 16;  // rows have gaps
    elements.resize(pitch * height * depth + 64);
    view.levels[0] = {
        reinterpret_cast<uint64_t>(elements.data()), pitch, pitch * height, width, height, depth, 0};
  }
  char* at(uint32_t x, uint32_t y = 0, uint32_t z = 0) {
    const TextureLevel& l = view.levels[0];
    return elements.data() + z * l.slice_pitch + y * l.row_pitch + x * view.element_bytes;
  }
  template <class T>
  void set(T value, uint32_t x, uint32_t y = 0, uint32_t z = 0, unsigned channel = 0) {
    std::memcpy(at(x, y, z) + channel * sizeof(T), &value, sizeof value);
  }
};

struct Point {
  float x, y = 0, z = 0;
  int layer = 0;
};
struct Four {
  uint32_t bits[4];
  float f(int k) const { return std::bit_cast<float>(bits[k]); }
};

// Runs one access per thread; %f1..%f3 are the coordinates, %r9 the layer, results in %r1..%r4.
std::vector<Four> run(const std::string& access, Image& image, const std::vector<Point>& points,
                      Fault* fault = nullptr) {
  TestModule m(
      ptx_header() +
      ".visible .entry k(.param .u64 h, .param .u64 in, .param .u64 out, .param .u32 n)\n{\n.reg .pred "
      "%p<4>;\n"
      ".reg .b16 %h<6>;\n.reg .b32 %r<20>;\n.reg .f32 %f<8>;\n.reg .b64 %rd<12>;\nld.param.u64 %rd1, [h];\n"
      "ld.param.u64 %rd2, [in];\nld.param.u64 %rd3, [out];\nld.param.u32 %r10, [n];\nmov.u32 %r11, %tid.x;\n"
      "setp.ge.u32 %p1, %r11, %r10;\n@%p1 bra DONE;\nmul.wide.u32 %rd4, %r11, 16;\nadd.s64 %rd2, %rd2, "
      "%rd4;\n"
      "add.s64 %rd3, %rd3, %rd4;\nld.global.v4.u32 {%r5, %r6, %r7, %r9}, [%rd2];\nmov.b32 %f1, %r5;\n"
      "mov.b32 %f2, %r6;\nmov.b32 %f3, %r7;\nmov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, "
      "0;\n" +
      access + "\nst.global.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};\nDONE:\nret;\n}\n");
  EXPECT_TRUE(m.ok()) << m.error;
  DeviceArray<Point> in(points);
  DeviceArray<Four> out(points.size());
  const Fault f = m.run("k", {1, 1, 1}, {static_cast<uint32_t>((points.size() + 31) / 32 * 32), 1, 1},
                        Params()
                            .add(image.page.address())
                            .add(in.address())
                            .add(out.address())
                            .add(static_cast<uint32_t>(points.size())));
  if (fault)
    *fault = f;
  else
    EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  return out.values();
}

// A whole vector register takes the result; the handle and one coordinate stand without braces. A
// two-dimensional image of one row is a line.
TEST(Images, LineIntoAVectorRegister) {
  for (const TextureShape shape : {TextureShape::k1D, TextureShape::k2D}) {
    Image image(shape, TextureElement::kF32, 2, 4);
    for (uint32_t x = 0; x < 4; ++x) {
      image.set<float>(float(x) + 1, x, 0, 0, 0);
      image.set<float>(float(x) * 10, x, 0, 0, 1);
    }
    const std::vector<Four> got =
        run("{ .reg .v4 .f32 t; tex.1d.v4.f32.f32 t, [%rd1, %f1]; mov.b32 %r1, t.r; mov.b32 %r2, t.g; }",
            image, {{0.5f}, {2.5f}, {9.0f}});
    EXPECT_EQ(got[0].f(0), 1);
    EXPECT_EQ(got[1].f(0), 3);
    EXPECT_EQ(got[1].f(1), 20);
    EXPECT_EQ(got[2].f(1), 30);
  }
}

// The cost of a read: neighbouring lanes in one sector of 32 bytes count once.
TEST(Textures, NeighboursInOneSectorCountOnce) {
  Image image(TextureShape::k1D, TextureElement::kF32, 1, 32);
  image.view.normalized_coordinates = 0;
  TestModule m(ptx_header() +
               ".visible .entry k(.param .u64 h)\n{\n.reg .b32 %r<2>;\n.reg .f32 %f<5>;\n.reg .b64 %rd<2>;\n"
               "ld.param.u64 %rd1, [h];\nmov.u32 %r1, %tid.x;\ncvt.rn.f32.u32 %f1, %r1;\n"
               "tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1}];\nret;\n}\n");
  ASSERT_TRUE(m.ok()) << m.error;
  Work work;
  const Fault f = m.run("k", {1, 1, 1}, {32, 1, 1}, Params().add(image.page.address()), 0, &work);
  EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  const uint64_t begin = image.view.levels[0].base;
  EXPECT_EQ(work.global_bytes, (((begin + 127) >> 5) - (begin >> 5) + 1) * 32);
}

// --- the formulas

double wrapped(double x, TextureAddress mode) {  // a normalised coordinate
  if (mode == TextureAddress::kWrap) return x - std::floor(x);
  if (mode == TextureAddress::kMirror)
    return std::fmod(std::floor(x), 2) == 0 ? x - std::floor(x) : 1 - (x - std::floor(x));
  return x;
}
int neighbour(int i, int n, TextureAddress mode, bool* border) {
  *border = mode == TextureAddress::kBorder && (i < 0 || i >= n);
  if (mode == TextureAddress::kWrap) return (i + 4 * n) % n;
  return i < 0 ? 0 : i >= n ? n - 1 : i;  // a mirrored image repeats its edge
}

double expected(Image& image, unsigned axes, const Point& p) {
  const TextureView& v = image.view;
  const TextureLevel& l = v.levels[0];
  const uint32_t sizes[] = {l.width, l.height, l.depth};
  const float coordinates[] = {p.x, p.y, p.z};
  int index[3] = {};
  double part[3] = {};
  for (unsigned k = 0; k < axes; ++k) {
    // The coordinate itself is f32, as the hardware has it.
    float u = coordinates[k];
    if (v.normalized_coordinates)
      u = static_cast<float>(wrapped(u, v.address[k])) * static_cast<float>(sizes[k]);
    if (!v.linear_filter) {
      index[k] = static_cast<int>(std::floor(u));
      continue;
    }
    const double b = static_cast<double>(u) - 0.5;
    index[k] = static_cast<int>(std::floor(b));
    part[k] = std::round((b - std::floor(b)) * 256) / 256;
  }
  double sum = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1, value = 0;
    bool outside = false;
    int at[3];
    for (int k = 0; k < 3; ++k) {
      const bool second = corner >> k & 1;
      weight *= second ? part[k] : 1 - part[k];
      const bool plain = !v.normalized_coordinates && v.address[k] != TextureAddress::kBorder;
      bool border;
      at[k] = neighbour(index[k] + second, static_cast<int>(sizes[k]),
                        plain ? TextureAddress::kClamp : v.address[k], &border);
      outside |= border;
    }
    if (weight == 0) continue;
    float x;
    std::memcpy(
        &x,
        image.at(static_cast<uint32_t>(at[0]), static_cast<uint32_t>(at[1]), static_cast<uint32_t>(at[2])),
        4);
    value = outside ? v.border[0] : x;
    sum += weight * value;
  }
  return sum;
}

TEST(Textures, FiltersAndAddressModes) {
  struct Row {
    TextureShape shape;
    unsigned axes;
    uint32_t width, height, depth;
    const char* text;
  };
  for (const Row& row :
       {Row{TextureShape::k1D, 1, 13, 1, 1, "tex.1d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1}];"},
        Row{TextureShape::k2D, 2, 7, 5, 1, "tex.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f2}];"},
        Row{TextureShape::k3D, 3, 4, 3, 5,
            "tex.base.3d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f2, %f3, %f3}];"}})
    for (const TextureAddress mode :
         {TextureAddress::kWrap, TextureAddress::kClamp, TextureAddress::kMirror, TextureAddress::kBorder})
      for (const bool linear : {false, true})
        for (const bool normalized : {false, true}) {
          SCOPED_TRACE(std::string(row.text) + " mode " + std::to_string(static_cast<int>(mode)) +
                       (linear ? " linear" : "") + (normalized ? " normalised" : ""));
          Image image(row.shape, TextureElement::kF32, 1, row.width, row.height, row.depth);
          for (TextureAddress& a : image.view.address) a = mode;
          image.view.linear_filter = linear;
          image.view.normalized_coordinates = normalized;
          image.view.border[0] = 100;
          for (uint32_t z = 0; z < row.depth; ++z)
            for (uint32_t y = 0; y < row.height; ++y)
              for (uint32_t x = 0; x < row.width; ++x)
                image.set(static_cast<float>(x * x + 10 * y * y * y + 0.5 * z * z), x, y, z);
          std::vector<Point> points;
          for (int i = 0; i < 90; ++i) {
            const auto spread = [&](int a, int b) {
              return static_cast<float>((i * a) % b) / static_cast<float>(b) * 3 - 1;
            };
            Point p{spread(37, 101), spread(53, 97), spread(29, 89)};
            if (!normalized)
              p.x *= static_cast<float>(row.width), p.y *= static_cast<float>(row.height),
                  p.z *= static_cast<float>(row.depth);
            points.push_back(p);
          }
          points.push_back({0, 0, 0});
          points.push_back({1, 1, 1});
          points.push_back({0.5f, 0.5f, 0.5f});
          const auto got = run(row.text, image, points);
          for (size_t i = 0; i < points.size(); ++i) {
            const double want = expected(image, row.axes, points[i]);
            EXPECT_NEAR(got[i].f(0), want, 1e-5 * (1 + std::fabs(want)))
                << points[i].x << " " << points[i].y << " " << points[i].z;
            EXPECT_TRUE(got[i].f(1) == 0 || mode == TextureAddress::kBorder);
          }
        }
}

TEST(Textures, WeightsHaveEightBits) {
  Image image(TextureShape::k1D, TextureElement::kF32, 1, 2);
  image.view.linear_filter = 1;
  image.set(0.0f, 0);
  image.set(256.0f, 1);
  std::vector<Point> points;
  for (int i = 0; i <= 40; ++i) points.push_back({0.5f + static_cast<float>(i) / 40});
  const auto got =
      run("tex.1d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [%rd1, {%f1}]; mov.b32 %r1, %f4;", image, points);
  for (size_t i = 0; i < points.size(); ++i)
    EXPECT_EQ(got[i].f(0), std::round((static_cast<double>(points[i].x) - 0.5) * 256)) << i;
}

TEST(Textures, ElementsOfEveryKind) {
  const std::string text = "tex.2d.v4.s32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f2}];";
  const uint32_t one = std::bit_cast<uint32_t>(1.0f);
  struct Row {
    TextureElement element;
    bool integer;
    uint64_t stored;
    uint32_t want;
  };
  const auto bits = [](double x) { return std::bit_cast<uint32_t>(static_cast<float>(x)); };
  for (const Row& row :
       {Row{TextureElement::kU8, true, 200, 200}, Row{TextureElement::kU8, false, 51, bits(51 / 255.0)},
        Row{TextureElement::kS8, true, 0x85, static_cast<uint32_t>(-123)},
        Row{TextureElement::kS8, false, 0x80, bits(-1)}, Row{TextureElement::kS8, false, 127, one},
        Row{TextureElement::kU16, true, 65535, 65535}, Row{TextureElement::kU16, false, 65535, one},
        Row{TextureElement::kS16, true, 0x8000, static_cast<uint32_t>(-32768)},
        Row{TextureElement::kS16, false, 0x8000, bits(-1)},
        Row{TextureElement::kU32, true, 0xfedcba98, 0xfedcba98},
        Row{TextureElement::kS32, true, 0x80000001, 0x80000001},
        Row{TextureElement::kF16, false, 0xc500, bits(-5)},
        Row{TextureElement::kF32, false, 0x40490fdb, 0x40490fdb}})
    for (unsigned channels : {1u, 2u, 4u}) {
      SCOPED_TRACE(static_cast<int>(row.element));
      Image image(TextureShape::kPitch2D, row.element, channels, 3, 2);
      test_memory().add(image.view.levels[0].base, image.elements.size(), true);
      image.view.read_as_integer = row.integer;
      const unsigned each = image.view.element_bytes / channels;
      for (unsigned c = 0; c < channels; ++c) std::memcpy(image.at(2, 1) + c * each, &row.stored, each);
      const Four got = run(text, image, {{2.5f, 1.5f}})[0];
      for (unsigned c = 0; c < 4; ++c)
        EXPECT_EQ(got.bits[c], c < channels ? row.want : c == 3 ? (row.integer ? 1u : one) : 0u) << c;
      // The memory is freed, the texture is not.
      test_memory().remove(image.view.levels[0].base);
      Fault f;
      run(text, image, {{2.5f, 1.5f}}, &f);
      EXPECT_EQ(f.kind, FaultKind::kIllegalAddress) << f.text;
    }
}

TEST(Textures, NumbersOfElementsLayersCubesAndGathers) {
  Image line(TextureShape::kLinear, TextureElement::kF32, 1, 10);
  test_memory().add(line.view.levels[0].base, line.elements.size(), true);
  for (uint32_t x = 0; x < 10; ++x) line.set(static_cast<float>(x + 1), x);
  const std::string fetch = "tex.1d.v4.f32.s32 {%f4, %f5, %f6, %f7}, [%rd1, {%r9}]; mov.b32 %r1, %f4;";
  auto got = run(fetch, line, {{0, 0, 0, 0}, {0, 0, 0, 9}, {0, 0, 0, 10}, {0, 0, 0, -1}});
  EXPECT_EQ(got[0].f(0), 1);
  EXPECT_EQ(got[1].f(0), 10);
  EXPECT_EQ(got[2].f(0), 0);  // outside
  EXPECT_EQ(got[3].f(0), 0);
  test_memory().remove(line.view.levels[0].base);

  Image layers(TextureShape::k2DLayered, TextureElement::kS32, 1, 4, 3, 5);
  for (uint32_t z = 0; z < 5; ++z)
    for (uint32_t y = 0; y < 3; ++y)
      for (uint32_t x = 0; x < 4; ++x) layers.set(static_cast<int>(100 * z + 10 * y + x), x, y, z);
  got = run("tex.a2d.v4.s32.f32 {%r1, _, _, _}, [%rd1, {%r9, %f1, %f2, %f2}];", layers,
            {{1.5f, 2.5f, 0, 3}, {0, 0, 0, 4}, {9, 9, 0, 99}});
  EXPECT_EQ(got[0].bits[0], 321u);
  EXPECT_EQ(got[1].bits[0], 400u);
  EXPECT_EQ(got[2].bits[0], 423u);  // the last layer

  Image rows(TextureShape::k1DLayered, TextureElement::kF32, 2, 8, 1, 3);
  rows.set(5.0f, 6, 0, 2, 1);
  got = run("tex.a1d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%r9, %f1}];", rows, {{6.25f, 0, 0, 2}});
  EXPECT_EQ(got[0].f(1), 5);

  Image cube(TextureShape::kCube, TextureElement::kS32, 1, 2, 2, 6);
  cube.view.normalized_coordinates = 1;
  for (uint32_t z = 0; z < 6; ++z)
    for (uint32_t y = 0; y < 2; ++y)
      for (uint32_t x = 0; x < 2; ++x) cube.set(static_cast<int>(100 * z + 10 * y + x), x, y, z);
  got = run("tex.cube.v4.s32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f2, %f3, %f3}];", cube,
            {{2, 1, 0.5f}, {-2, 1, 0.5f}, {1, 2, 0.5f}, {1, -2, 0.5f}, {1, 0.5f, 2}, {1, 0.5f, -2}});
  const uint32_t faces[] = {0, 101, 211, 301, 401, 500};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(got[i].bits[0], faces[i]) << i;

  Image cubes(TextureShape::kCubeLayered, TextureElement::kS32, 1, 1, 1, 12);
  cubes.view.normalized_coordinates = 1;
  for (uint32_t z = 0; z < 12; ++z) cubes.set(static_cast<int>(z), 0, 0, z);
  got = run("tex.acube.v4.s32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%r9, %f1, %f2, %f3}];", cubes,
            {{0, -1, 0, 1}, {0, 0, 1, 0}, {1, 0, 0, 7}});
  EXPECT_EQ(got[0].bits[0], 9u);
  EXPECT_EQ(got[1].bits[0], 4u);
  EXPECT_EQ(got[2].bits[0], 6u);

  Image square(TextureShape::k2D, TextureElement::kF32, 2, 4, 4);
  for (uint32_t y = 0; y < 4; ++y)
    for (uint32_t x = 0; x < 4; ++x) square.set(static_cast<float>(10 * y + x), x, y, 0, 1);
  got = run("tld4.g.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f2}];", square, {{2.0f, 1.0f}});
  EXPECT_EQ(got[0].f(0), 11);  // below left, below right, above right, above left of the point
  EXPECT_EQ(got[0].f(1), 12);
  EXPECT_EQ(got[0].f(2), 2);
  EXPECT_EQ(got[0].f(3), 1);
}

TEST(Textures, Levels) {
  Image image(TextureShape::k2D, TextureElement::kF32, 1, 8, 8);
  Image second(TextureShape::k2D, TextureElement::kF32, 1, 4, 4),
      third(TextureShape::k2D, TextureElement::kF32, 1, 2, 2);
  for (uint32_t y = 0; y < 8; ++y)
    for (uint32_t x = 0; x < 8; ++x) {
      image.set(100.0f, x, y);
      if (x < 4 && y < 4) second.set(200.0f, x, y);
      if (x < 2 && y < 2) third.set(400.0f, x, y);
    }
  image.view.normalized_coordinates = 1;
  image.view.n_levels = 3;
  image.view.levels[1] = second.view.levels[0];
  image.view.levels[2] = third.view.levels[0];
  const std::string text = "tex.level.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f2}], %f3;";
  const std::vector<Point> points = {{.5f, .5f, 0},     {.5f, .5f, 0.75f}, {.5f, .5f, 1},
                                     {.5f, .5f, 1.25f}, {.5f, .5f, 9},     {.5f, .5f, -3}};
  const float nearest[] = {100, 200, 200, 200, 400, 100}, linear[] = {100, 175, 200, 250, 400, 100};
  auto got = run(text, image, points);
  for (size_t i = 0; i < points.size(); ++i) EXPECT_EQ(got[i].f(0), nearest[i]) << i;
  image.view.linear_filter = image.view.linear_mip_filter = 1;
  got = run(text, image, points);
  for (size_t i = 0; i < points.size(); ++i) EXPECT_EQ(got[i].f(0), linear[i]) << i;
  image.view.min_level = 1;
  image.view.level_bias = 0.5f;
  EXPECT_EQ(run(text, image, {{.5f, .5f, 0}})[0].f(0), 200);
  EXPECT_EQ(run(text, image, {{.5f, .5f, 1}})[0].f(0), 300);
}

TEST(Surfaces, LoadsAndStoresOfEverySize) {
  struct Row {
    const char* form;
    TextureElement element;
    unsigned channels;
    std::string registers;
  };
  for (const Row& row :
       {Row{"b8", TextureElement::kU8, 1, "%h1"}, Row{"v2.b8", TextureElement::kU8, 2, "{%h1, %h2}"},
        Row{"v4.b8", TextureElement::kU8, 4, "{%h1, %h2, %h3, %h4}"},
        Row{"b16", TextureElement::kU16, 1, "%h1"}, Row{"v2.b16", TextureElement::kS16, 2, "{%h1, %h2}"},
        Row{"b32", TextureElement::kF32, 1, "%r1"},
        Row{"v4.b32", TextureElement::kF32, 4, "{%r1, %r2, %r3, %r4}"},
        Row{"b64", TextureElement::kU32, 2, "%rd5"},
        Row{"v2.b64", TextureElement::kU32, 4, "{%rd5, %rd6}"}}) {
    SCOPED_TRACE(row.form);
    Image image(TextureShape::k2DLayered, row.element, row.channels, 5, 4, 3, kSurfaceMagic);
    for (size_t i = 0; i < image.elements.size(); ++i) image.elements[i] = static_cast<char>(i * 7);
    const std::vector<char> before = image.elements;
    // Copies the element (1, 2) of layer 2 to (4, 3) of layer 0.
    const std::string bytes = std::to_string(image.view.element_bytes);
    run("mul.lo.u32 %r5, 4, " + bytes + "; mov.u32 %r6, " + bytes +
            "; mov.u32 %r7, 2; mov.u32 %r8, 3; mov.u32 %r9, 0;\n" + std::string("suld.b.a2d.") + row.form +
            ".trap " + row.registers + ", [%rd1, {%r7, %r6, %r7, %r7}];\n" + "sust.b.a2d." + row.form +
            ".trap [%rd1, {%r9, %r5, %r8, %r8}], " + row.registers + ";",
        image, {{0}});
    std::vector<char> want = before;
    std::memcpy(want.data() + (image.at(4, 3, 0) - image.elements.data()),
                before.data() + (image.at(1, 2, 2) - image.elements.data()), image.view.element_bytes);
    EXPECT_EQ(image.elements, want);
  }
}

TEST(Surfaces, Bounds) {
  Image image(TextureShape::k1D, TextureElement::kU32, 1, 4, 1, 1, kSurfaceMagic);
  for (uint32_t x = 0; x < 4; ++x) image.set(x + 10, x);
  const std::vector<Point> points = {{0, 0, 0, 0}, {0, 0, 0, 12}, {0, 0, 0, 16}, {0, 0, 0, -4}};
  auto got = run("suld.b.1d.b32.zero %r1, [%rd1, {%r9}];", image, points);
  EXPECT_EQ(got[1].bits[0], 13u);
  EXPECT_EQ(got[2].bits[0], 0u);
  EXPECT_EQ(got[3].bits[0], 0u);
  got = run("suld.b.1d.b32.clamp %r1, [%rd1, {%r9}];", image, points);
  EXPECT_EQ(got[2].bits[0], 13u);
  EXPECT_EQ(got[3].bits[0], 10u);
  run("mov.u32 %r1, 99; sust.b.1d.b32.zero [%rd1, {%r9}], %r1;", image, {{0, 0, 0, 16}});
  run("mov.u32 %r1, 98; sust.b.1d.b32.clamp [%rd1, {%r9}], %r1;", image, {{0, 0, 0, -8}});
  EXPECT_EQ(run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, {points[0]})[0].bits[0], 98u);
  Fault f;
  run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, points, &f);
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  EXPECT_EQ(f.thread[0], 2u);
  run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, {{0, 0, 0, 6}}, &f);
  EXPECT_EQ(f.kind, FaultKind::kMisalignedAddress);
}

TEST(Images, HandlesThatNameNothing) {
  Image image(TextureShape::k2D, TextureElement::kF32, 1, 4, 4);
  Fault f;
  run("suld.b.1d.b32.trap %r1, [%rd1, {%r9}];", image, {{0}}, &f);  // a texture is no surface
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  run("tex.3d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f1, %f1, %f1}];", image, {{0}}, &f);
  EXPECT_EQ(f.kind, FaultKind::kIllegalInstruction);
  EXPECT_NE(f.text.find("another shape"), std::string::npos);
  run("mov.u64 %rd1, 4096; tex.2d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f1, %f1}];", image, {{0}}, &f);
  EXPECT_EQ(f.kind, FaultKind::kIllegalAddress);
  EXPECT_NE(f.text.find("no live object"), std::string::npos);
  for (const std::string text :
       {"tex.grad.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}], {%f1, %f2}, {%f1, %f2};",
        "sust.p.1d.b32.trap [%rd1, {%r9}], %r1;", "txq.width.b32 %r1, [%rd1];",
        "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, %rd2, {%f1, %f2}];"}) {
    run(text, image, {{0}}, &f);
    EXPECT_EQ(f.kind, FaultKind::kInvalidPc) << text;  // refused
  }
}

}  // namespace
}  // namespace tessera::softgpu::exec
