// The classifier: tables of launches on an invented GPU with round figures.
#include "profiles/classify.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::profiles {
namespace {

// 1 G warp instructions/s, 100 GB/s, 64 Gflop/s fp32, 1 Tflop/s tensor.
GpuDescription gpu() {
  GpuDescription g;
  g.name = "round";
  g.sm.count = 10;
  g.sm.clock_hz = 25e6;
  g.sm.issue_per_clock = 4;
  g.memory.bytes_per_s = 100e9;
  g.peak.fp32 = 64e9;
  g.peak.tensor_fp16 = 1e12;
  return g;
}

RooflineInput launch(double bytes, double instructions, double fp32 = 0, double tensor = 0) {
  RooflineInput in;
  in.duration_ns = 1e6;  // 1 ms: full use is 1e8 bytes, 1e6 instructions, 64e6 fp32, 1e9 tensor operations
  in.samples = 10;
  in.memory_bytes = bytes;
  in.warp_instructions = instructions;
  if (fp32 > 0) in.operations["fp32"] = fp32;
  if (tensor > 0) in.operations["tensor"] = tensor;
  return in;
}

constexpr Class U = Class::kUnknown, C = Class::kCompute, M = Class::kMemory, L = Class::kLatency;

TEST(Classify, Roofline) {
  const struct {
    const char* what;
    RooflineInput in;
    Class expected;
    double compute, memory;
    const char* pipe;
  } rows[] = {
      {"streams", launch(0.9e8, 0.1e6, 3e6), M, 0.1, 0.9, "issue"},
      {"fp32 at its peak", launch(0.2e8, 0.7e6, 60e6), C, 0.9375, 0.2, "fp32"},
      {"issues integers", launch(0.1e8, 0.8e6), C, 0.8, 0.1, "issue"},
      {"tensor cores, few instructions", launch(0.3e8, 0.1e6, 0, 0.8e9), C, 0.8, 0.3, "tensor"},
      {"small grid", launch(0.1e8, 0.05e6), L, 0.05, 0.1, "issue"},
      {"just below", launch(0.59e8, 0.1e6), L, 0.1, 0.59, "issue"},
      {"just bound", launch(0.61e8, 0.1e6), M, 0.1, 0.61, "issue"},
      {"both, memory more", launch(0.95e8, 0.9e6), M, 0.9, 0.95, "issue"},
      {"both, compute more", launch(0.9e8, 0.3e6, 0.95 * 64e6), C, 0.95, 0.9, "fp32"},
      {"a reduction: issues, but for memory", launch(0.63e8, 0.99e6, 1e6), M, 0.99, 0.63, "issue"},
      {"a softmax: slots taken, for memory", launch(0.36e8, 0.99e6, 5e6), M, 0.99, 0.36, "issue"},
      {"slots taken, little moved", launch(0.29e8, 0.99e6, 5e6), C, 0.99, 0.29, "issue"},
      {"a small tiled product", launch(0.41e8, 0.85e6, 0.43 * 64e6), C, 0.85, 0.41, "issue"},
  };
  for (const auto& row : rows) {
    const Roofline r = classify(row.in, gpu());
    EXPECT_EQ(r.bound, row.expected) << row.what << ": " << r.reason;
    EXPECT_NEAR(r.compute_utilisation, row.compute, 1e-6) << row.what;
    EXPECT_NEAR(r.memory_utilisation, row.memory, 1e-6) << row.what;
    EXPECT_EQ(r.pipe, row.pipe) << row.what;
    EXPECT_FALSE(r.reason.empty()) << row.what;
  }
}

TEST(Classify, UnknownSaysWhy) {
  RooflineInput few = launch(1e8, 1e5), timeless = few, nan = few, pipe = few, empty = launch(0, 0);
  few.samples = kMinSamples - 1;
  timeless.duration_ns = 0;
  nan.memory_bytes = std::nan("");
  pipe.operations["fp64"] = 1e3;  // the description has no fp64 peak
  const struct {
    RooflineInput in;
    const char* reason;
  } rows[] = {{few, "fewer than 3"},
              {timeless, "no duration"},
              {nan, "no numbers"},
              {pipe, "no peak for fp64"},
              {empty, "neither bytes nor operations"}};
  for (const auto& row : rows) {
    const Roofline r = classify(row.in, gpu(), C);  // whatever it was before
    EXPECT_EQ(r.bound, U);
    EXPECT_THAT(r.reason, testing::HasSubstr(row.reason));
  }
}

TEST(Classify, Hysteresis) {
  const struct {
    Class previous;
    double compute, memory;
    Class expected;
  } rows[] = {
      {U, 0.1, 0.55, L}, {L, 0.1, 0.55, L}, {M, 0.1, 0.55, M}, {M, 0.1, 0.49, L}, {C, 0.55, 0.1, C},
      {C, 0.8, 0.85, C}, {M, 0.8, 0.85, M}, {C, 0.7, 0.85, M}, {M, 0.85, 0.7, C}, {L, 0.8, 0.85, M},
  };
  for (const auto& row : rows)
    EXPECT_EQ(classify(launch(row.memory * 1e8, 1e5, row.compute * 64e6), gpu(), row.previous).bound,
              row.expected)
        << class_name(row.previous) << " " << row.compute << " " << row.memory;
  // A class does not flicker while a figure swings around the threshold.
  Class now = U;
  int changes = 0;
  for (double memory : {0.62, 0.58, 0.61, 0.55, 0.63, 0.52}) {
    const Class next = classify(launch(memory * 1e8, 1e5), gpu(), now).bound;
    changes += next != now;
    now = next;
  }
  EXPECT_EQ(changes, 1);
}

TEST(Classify, Sensitivity) {
  const struct {
    double beside_memory, beside_compute;
    Class previous, expected;
  } rows[] = {
      {1.8, 1.1, U, M}, {1.1, 1.9, U, C}, {1.05, 1.1, U, L}, {1.15, 1.05, M, M}, {1.05, 1.05, M, L},
      {1.5, 1.6, M, M}, {1.5, 1.7, M, C}, {0, 1.7, U, U},    {1.7, 0, C, U},     {NAN, 1.5, U, U},
  };
  for (const auto& row : rows)
    EXPECT_EQ(classify_by_sensitivity(row.beside_memory, row.beside_compute, row.previous), row.expected)
        << row.beside_memory << " " << row.beside_compute;
}

TEST(Classify, IntensityAndPeak) {
  const Roofline r = classify(launch(0.2e8, 0.7e6, 60e6, 5e6), gpu());
  EXPECT_DOUBLE_EQ(r.operations, 65e6);
  EXPECT_DOUBLE_EQ(r.operations_per_byte(), 65e6 / 0.2e8);
  EXPECT_DOUBLE_EQ(r.peak_per_s, 64e9);  // of the pipe with most of them
}

}  // namespace
}  // namespace tessera::profiles
