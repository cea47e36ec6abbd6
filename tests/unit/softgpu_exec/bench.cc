// ns per warp instruction and per launch of the interpreter on one core. Not a test: prints a table.
//   build/<name>/bin/softgpu_exec_bench [kernel]
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include "tests/unit/softgpu_exec/harness.h"

using namespace tessera::softgpu::exec;  // a program, not a header

namespace {

double now_ns() {
  return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void measure(TestModule& m, const char* name, std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
             const Params& params, uint32_t shared = 0) {
  double best = 1e30;
  Work work;
  for (int i = 0; i < 5; ++i) {
    work = Work{};
    const double begin = now_ns();
    const Fault f = m.run(name, grid, block, params, shared, &work);
    const double t = now_ns() - begin;
    if (f.kind != FaultKind::kNone) {
      std::printf("%s: %s\n", name, f.text.c_str());
      return;
    }
    if (t < best) best = t;
  }
  std::printf("%-14s %10.3f ms %12llu warp instructions %7.2f ns each\n", name, best / 1e6,
              static_cast<unsigned long long>(work.warp_instructions),
              best / static_cast<double>(work.warp_instructions));
}

std::string read(const char* path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// 2000 products of 64 x 256 x 16 by one warpgroup.
std::string warpgroup_kernel() {
  std::string sums = "{%s0";
  for (int i = 1; i < 128; ++i) sums += ", %s" + std::to_string(i);
  return ptx_header() +
         ".visible .entry warpgroup()\n{\n.reg .pred %p<3>;\n.reg .b32 %r<2>, %s<128>;\n.reg .b64 %rd<2>;\n"
         ".shared .align 1024 .b8 s[65536];\nmov.u64 %rd1, 0x4000004000000000;\nsetp.eq.u32 %p2, 0, 0;\n"
         "mov.u32 %r1, 0;\nagain: wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " +
         sums +
         "}, %rd1, %rd1, %p2, 1, 1, 0, 0;\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 2000;\n@%p1 bra "
         "again;\n"
         "ret;\n}\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string text = read(TESSERA_TEST_PTX);
  const double begin = now_ns();
  TestModule m(text);
  std::printf("module load %.3f ms\n", (now_ns() - begin) / 1e6);
  if (!m.ok()) {
    std::printf("%s\n", m.error.c_str());
    return 1;
  }
  const auto wanted = [&](const char* name) { return argc < 2 || std::string(argv[1]) == name; };
  const int n = 1 << 20, edge = 256;
  DeviceArray<float> x(n, 1.5f), y(n, 0.5f), z(n);
  if (wanted("saxpy"))
    measure(m, "saxpy", {n / 256u, 1, 1}, {256, 1, 1},
            Params().add(2.0f).add(x.address()).add(y.address()).add(n));
  if (wanted("matmul16"))
    measure(m, "matmul16", {16, 16, 1}, {16, 16, 1},
            Params().add(x.address()).add(y.address()).add(z.address()).add(edge));
  if (wanted("matmul32"))
    measure(m, "matmul32", {8, 8, 1}, {32, 32, 1},
            Params().add(x.address()).add(y.address()).add(z.address()).add(edge));
  if (wanted("gemm")) {  // of the sample programs, k = 256 in panels of 64
    TestModule samples(read(TESSERA_GEMM_PTX));
    if (samples.ok())
      measure(samples, samples.program->kernel_names().at(0).c_str(), {edge / 16u, edge / 32u, 1}, {64, 1, 1},
              Params().add(x.address()).add(y.address()).add(z.address()).add(edge).add(edge).add(64),
              64 * (34 + 16) * 4);
  }
  if (wanted("block_sum"))
    measure(m, "block_sum", {64, 1, 1}, {256, 1, 1}, Params().add(x.address()).add(z.address()).add(n));
  if (wanted("softmax_rows"))
    measure(m, "softmax_rows", {256, 1, 1}, {128, 1, 1}, Params().add(x.address()).add(z.address()).add(1024),
            512);
  if (wanted("mandelbrot"))
    measure(m, "mandelbrot", {32, 32, 1}, {16, 16, 1}, Params().add(z.address()).add(512).add(512).add(256));
  if (wanted("byte_histogram")) {
    DeviceArray<uint32_t> words(n), counts(256);
    for (uint32_t i = 0, r = 1; i < uint32_t{n}; ++i) words[i] = r = r * 1664525 + 1013904223;
    measure(m, "byte_histogram", {60, 1, 1}, {192, 1, 1},
            Params().add(words.address()).add(counts.address()).add(n));
  }
  if (wanted("warpgroup")) {
    TestModule products(warpgroup_kernel());
    const double t0 = now_ns();
    measure(products, "warpgroup", {1, 1, 1}, {128, 1, 1}, Params());
    std::printf("warpgroup: %.1f us per m64n256k16\n", (now_ns() - t0) / 1e3 / 5 / 2000);
  }
  if (wanted("launch")) {
    double best = 1e30;
    for (int i = 0; i < 20; ++i) {
      const double t0 = now_ns();
      for (int k = 0; k < 50; ++k)
        m.run("saxpy", {64, 1, 1}, {128, 1, 1},
              Params().add(2.0f).add(x.address()).add(y.address()).add(8192));
      best = std::min(best, (now_ns() - t0) / 50);
    }
    std::printf("launch of 64 blocks x 128 threads: %.1f us\n", best / 1e3);
  }
}
