// Kernels as nvcc makes them against results computed on the host.
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include "tests/unit/softgpu_exec/harness.h"

namespace tessera::softgpu::exec {
namespace {

TestModule& kernels() {
  static TestModule* module = [] {
    std::ifstream file(TESSERA_TEST_PTX);
    std::stringstream text;
    text << file.rdbuf();
    return new TestModule(text.str());
  }();
  return *module;
}
#define ASSERT_NO_FAULT(call)                                                           \
  do {                                                                                  \
    const Fault fault_ = (call);                                                        \
    ASSERT_EQ(fault_.kind, FaultKind::kNone) << fault_.text << " line " << fault_.line; \
  } while (0)

TEST(Algorithms, ModuleLoads) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
}

TEST(Algorithms, Saxpy) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int n = 1000;
  DeviceArray<float> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = static_cast<float>(i), y[i] = 1;
  Work work;
  ASSERT_NO_FAULT(kernels().run("saxpy", {8, 1, 1}, {128, 1, 1},
                                Params().add(2.0f).add(x.address()).add(y.address()).add(n), 0, &work));
  for (int i = 0; i < n; ++i) EXPECT_EQ(y[i], 2.0f * static_cast<float>(i) + 1);
  EXPECT_EQ(work.global_bytes, 3u * 4000);
  EXPECT_GT(work.warp_instructions, 32u * 15);
}

void matmul(const char* kernel, uint32_t tile) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int n = 64;
  DeviceArray<float> a(n * n), b(n * n), c(n * n);
  for (int i = 0; i < n * n; ++i)
    a[i] = static_cast<float>(i % 7) - 3, b[i] = static_cast<float>(i % 5) * 0.5f;
  ASSERT_NO_FAULT(kernels().run(kernel, {n / tile, n / tile, 1}, {tile, tile, 1},
                                Params().add(a.address()).add(b.address()).add(c.address()).add(n)));
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int k = 0; k < n; ++k) sum = std::fma(a[i * n + k], b[k * n + j], sum);
      ASSERT_EQ(c[i * n + j], sum) << i << "," << j;
    }
}
TEST(Algorithms, MatmulTile16) {
  matmul("matmul16", 16);
}
TEST(Algorithms, MatmulTile32) {
  matmul("matmul32", 32);
}

TEST(Algorithms, BlockSum) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int n = 5000;
  for (unsigned threads : {1u, 2u})
    for (uint64_t seed : {0u, 1u, 77u}) {
      DeviceArray<float> x(n, 1.0f), out(1);
      ASSERT_NO_FAULT(kernels().run("block_sum", {7, 1, 1}, {256, 1, 1},
                                    Params().add(x.address()).add(out.address()).add(n), 0, nullptr, seed,
                                    threads));
      EXPECT_EQ(out[0], 5000.0f);
    }
}

TEST(Algorithms, HistogramOfBytes) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int n = 30'000;
  DeviceArray<uint32_t> words(n), counts(256);
  std::vector<uint32_t> want(256);
  for (uint32_t i = 0, r = 1; i < uint32_t{n}; ++i) {
    words[i] = r = i % 4 ? r * 1664525 + 1013904223 : 0;  // many of one byte, so that lanes meet
    for (int byte = 0; byte < 4; ++byte) ++want[words[i] >> 8 * byte & 255];
  }
  ASSERT_NO_FAULT(kernels().run("byte_histogram", {7, 1, 1}, {192, 1, 1},
                                Params().add(words.address()).add(counts.address()).add(n), 0, nullptr, 0,
                                2));
  EXPECT_EQ(counts.values(), want);
}

TEST(Algorithms, Softmax) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int rows = 5, columns = 300;
  DeviceArray<float> x(rows * columns), y(rows * columns);
  for (int i = 0; i < rows * columns; ++i) x[i] = std::sin(static_cast<float>(i)) * 5;
  ASSERT_NO_FAULT(kernels().run("softmax_rows", {rows, 1, 1}, {128, 1, 1},
                                Params().add(x.address()).add(y.address()).add(columns), 512));
  for (int r = 0; r < rows; ++r) {
    double top = -1e30, sum = 0;
    for (int i = 0; i < columns; ++i) top = std::max<double>(top, x[r * columns + i]);
    for (int i = 0; i < columns; ++i) sum += std::exp(x[r * columns + i] - top);
    for (int i = 0; i < columns; ++i) {
      const double want = std::exp(x[r * columns + i] - top) / sum;
      ASSERT_NEAR(y[r * columns + i], want, want * 2e-6);
    }
  }
}

TEST(Algorithms, Scan) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int n = 700;
  DeviceArray<int> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = i * 37 % 11;
  ASSERT_NO_FAULT(
      kernels().run("scan_block", {3, 1, 1}, {256, 1, 1}, Params().add(x.address()).add(y.address()).add(n)));
  for (int b = 0; b < 3; ++b) {
    int sum = 0;
    for (int i = b * 256; i < std::min(n, b * 256 + 256); ++i) {
      sum += x[i];
      ASSERT_EQ(y[i], sum) << i;
    }
  }
}

TEST(Algorithms, MandelbrotDiverges) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int width = 70, height = 40, limit = 100;
  DeviceArray<int> out(width * height, -1);
  ASSERT_NO_FAULT(kernels().run("mandelbrot", {5, 3, 1}, {16, 16, 1},
                                Params().add(out.address()).add(width).add(height).add(limit)));
  int inside = 0;
  for (int i = 0; i < width * height; ++i) {
    ASSERT_GE(out[i], 0);
    ASSERT_LE(out[i], limit);
    inside += out[i] == limit;
  }
  EXPECT_GT(inside, 300);
  EXPECT_LT(inside, 1200);
}

TEST(Algorithms, Recursion) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<int> out(64);
  ASSERT_NO_FAULT(kernels().run("recursive", {1, 1, 1}, {64, 1, 1}, Params().add(out.address())));
  const int want[] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], want[i % 12]) << i;
}

TEST(Algorithms, IndirectCalls) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<int> out(64);
  ASSERT_NO_FAULT(kernels().run("indirect", {1, 1, 1}, {64, 1, 1}, Params().add(out.address())));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], i % 2 ? i * i : 2 * i) << i;
}

TEST(Algorithms, ConstantsAndSymbols) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<float> out(40);
  Program::Symbol symbol;
  ASSERT_TRUE(kernels().program->symbol("counter", &symbol));
  ASSERT_EQ(symbol.size_bytes, 4u);
  int* counter = reinterpret_cast<int*>(symbol.address);
  const int before = *counter;
  ASSERT_NO_FAULT(kernels().run("constants", {1, 1, 1}, {40, 1, 1}, Params().add(out.address())));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(out[i], static_cast<float>(i % 4 + 1));
  EXPECT_EQ(*counter - before, 40);
}

TEST(Algorithms, AssertFaults) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  ASSERT_NO_FAULT(kernels().run("asserts", {1, 1, 1}, {32, 1, 1}, Params().add(3)));
  const Fault f = kernels().run("asserts", {1, 1, 1}, {32, 1, 1}, Params().add(7));
  EXPECT_EQ(f.kind, FaultKind::kAssert);
  EXPECT_NE(f.text.find("n < 5"), std::string::npos) << f.text;
}

TEST(Algorithms, LockWithinAWarp) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  for (unsigned threads : {1u, 2u}) {
    DeviceArray<int> total(1);
    ASSERT_NO_FAULT(kernels().run("locked", {3, 1, 1}, {64, 1, 1}, Params().add(total.address()), 0, nullptr,
                                  0, threads));
    EXPECT_EQ(total[0], 3 * 64);
  }
}

TEST(Algorithms, BlocksWaitForLaterBlocks) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  for (uint64_t seed : {0u, 1u, 5u})
    for (unsigned threads : {1u, 2u}) {
      DeviceArray<int> flags(16);
      ASSERT_NO_FAULT(kernels().run("chain", {16, 1, 1}, {32, 1, 1}, Params().add(flags.address()).add(16), 0,
                                    nullptr, seed, threads));
      for (int i = 0; i < 16; ++i) EXPECT_EQ(flags[i], 1);
    }
}

TEST(Algorithms, LocalArray) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<int> out(50);
  ASSERT_NO_FAULT(kernels().run("local_array", {1, 1, 1}, {50, 1, 1}, Params().add(out.address()).add(20)));
  for (int t = 0; t < 50; ++t) {
    int s = 0;
    for (int i = 0; i < 20; ++i) {
      const int k = (i * 7 + t) & 15;
      s += k * k + t;
    }
    EXPECT_EQ(out[t], s);
  }
}

TEST(Algorithms, EarlyReturnThenBarrier) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<int> out(128);
  ASSERT_NO_FAULT(
      kernels().run("early_return_barrier", {1, 1, 1}, {128, 1, 1}, Params().add(out.address()).add(75)));
  for (int i = 0; i < 128; ++i) EXPECT_EQ(out[i], i < 75 ? 75 : 0) << i;
}

TEST(Algorithms, Switch) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<int> out(64);
  ASSERT_NO_FAULT(kernels().run("dispatch", {1, 1, 1}, {64, 1, 1}, Params().add(out.address()).add(3)));
  for (int i = 0; i < 64; ++i) {
    int v = i;
    switch ((i + 3) % 8) {
      case 0:
        v += 1;
        break;
      case 1:
        v *= 3;
        break;
      case 2:
        v -= 7;
        break;
      case 3:
        v ^= 0x55;
        break;
      case 4:
        v = v << 3;
        break;
      case 5:
        v = ~v;
        break;
      case 6:
        v = v * v;
        break;
      default:
        v = -v;
        break;
    }
    EXPECT_EQ(out[i], v) << i;
  }
}

TEST(Algorithms, Histogram) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  const int n = 3000;
  DeviceArray<unsigned char> x(n);
  std::vector<unsigned> want(256);
  for (int i = 0; i < n; ++i) x[i] = static_cast<unsigned char>(i * i % 251), ++want[x[i]];
  DeviceArray<unsigned> bins(256);
  ASSERT_NO_FAULT(kernels().run("histogram", {4, 1, 1}, {128, 1, 1},
                                Params().add(x.address()).add(bins.address()).add(n), 0, nullptr, 3, 2));
  EXPECT_EQ(bins.values(), want);
}

TEST(Algorithms, CooperativeGridBarrier) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  for (unsigned threads : {1u, 2u}) {
    const int n = 6 * 64;
    DeviceArray<int> x(n);
    ASSERT_NO_FAULT(kernels().run("grid_sync", {6, 1, 1}, {64, 1, 1}, Params().add(x.address()).add(n), 0,
                                  nullptr, 1, threads, true));
    for (int i = 0; i < n; ++i) EXPECT_EQ(x[i], n - 1 - i);
  }
}

TEST(Algorithms, TileReduction) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<int> x(64);
  for (int i = 0; i < 64; ++i) x[i] = i;
  ASSERT_NO_FAULT(kernels().run("tile_sums", {1, 1, 1}, {64, 1, 1}, Params().add(x.address())));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x[i], 28 + i / 8 * 64);
}

TEST(Algorithms, VirtualCalls) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<int> x(64, 10);
  ASSERT_NO_FAULT(kernels().run("virtual_calls", {1, 1, 1}, {64, 1, 1}, Params().add(x.address())));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x[i], i % 2 ? 11 : 20);
}

TEST(Algorithms, Mathematics) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<double> x(64);
  DeviceArray<float> y(64);
  for (int i = 0; i < 64; ++i) x[i] = 0.1 + i * 0.37, y[i] = 0.2f + static_cast<float>(i) * 0.31f;
  const std::vector<double> xs = x.values();
  const std::vector<float> ys = y.values();
  ASSERT_NO_FAULT(
      kernels().run("mathematics", {1, 1, 1}, {64, 1, 1}, Params().add(x.address()).add(y.address())));
  for (int i = 0; i < 64; ++i) {
    const double v = xs[i], s = ys[i];
    const double want = std::sin(v) + std::exp(-v) * std::log(v + 1) + std::pow(v, 1.5) + std::erf(v) +
                        std::fmod(v, 0.7) + std::cbrt(v);
    EXPECT_NEAR(x[i], want, 1e-13 * std::fabs(want));
    const double want_single = std::sin(s) + std::pow(s, 1.5) + std::tanh(s) + std::fmod(ys[i], 0.7f) +
                               1 / std::sqrt(s) + std::log(s) + std::atan(s);
    EXPECT_NEAR(y[i], want_single, 2e-6 * (1 + std::fabs(want_single)));
  }
}

TEST(Algorithms, DeviceHeap) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  DeviceArray<uint64_t> pointers(32);
  DeviceArray<int> out(32);
  ASSERT_NO_FAULT(
      kernels().run("heap", {1, 1, 1}, {32, 1, 1}, Params().add(pointers.address()).add(out.address())));
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(out[i], (i ^ 1) * 3);
    AllocationMap::Range range;
    EXPECT_FALSE(test_memory().find(pointers[i], &range));  // freed
  }
}

TEST(Algorithms, Printf) {
  ASSERT_TRUE(kernels().ok()) << kernels().error;
  testing::internal::CaptureStdout();
  const Fault f = kernels().run("print", {1, 1, 1}, {64, 1, 1}, Params().add(42));
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(f.kind, FaultKind::kNone) << f.text;
  EXPECT_EQ(text, "value 42 text 1.50 1099511627776\n");
}

}  // namespace
}  // namespace tessera::softgpu::exec
