// The common part of the hardware questions: driver entry points, timing, one JSON object on standard output. Host code
// of the .cu files in this folder. Programs change no device setting.
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "kernels/samples/support.h"

namespace probe {

using samples::now_ns;
using samples::quantile;

// One flat JSON object, in the order of the calls. Values that are JSON already go through raw().
class Report {
 public:
  Report() = default;  // part of another one
  explicit Report(const char* question) { text("question", question); }
  Report& number(const std::string& key, double value) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.6g", value);
    return raw(key, std::isfinite(value) ? buffer : "null");
  }
  Report& boolean(const std::string& key, bool value) { return raw(key, value ? "true" : "false"); }
  Report& text(const std::string& key, const std::string& value) {
    std::string quoted = "\"";
    for (char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
    return raw(key, quoted + "\"");
  }
  Report& raw(const std::string& key, const std::string& json) {
    body_ += (body_.empty() ? "" : ", ") + ("\"" + key + "\": ") + json;
    return *this;
  }
  // p50, p90 and p99 under one prefix
  Report& spread(const std::string& key, const std::vector<double>& values) {
    number(key + "_p50", quantile(values, 0.50));
    number(key + "_p90", quantile(values, 0.90));
    return number(key + "_p99", quantile(values, 0.99));
  }
  std::string str() const { return "{" + body_ + "}"; }
  void print() const { std::printf("%s\n", str().c_str()); }

 private:
  std::string body_;
};

inline void add_device(Report& report) {
  cudaDeviceProp prop{};
  int driver = 0, runtime = 0;
  CUDA_CHECK(cudaGetDeviceProperties(&prop, 0));
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  int mps = 0;
  if (cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, 0) != cudaSuccess) cudaGetLastError();
  report.text("gpu", prop.name)
      .text("regime", mps != 0 ? "MPS" : "time slices")
      .number("multiprocessors", prop.multiProcessorCount)
      .number("compute_capability", prop.major * 10 + prop.minor)
      .number("driver_version", driver)
      .number("runtime_version", runtime);
}

// A driver function by its base name, through the runtime, as libraries get theirs.
template <class Function>
Function driver_function(const char* name, unsigned version = 12000) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found));
  if (!address) samples::fail("the driver does not have", name);
  return reinterpret_cast<Function>(address);
}

inline void driver_check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) samples::fail(what, ("CUresult " + std::to_string(int(result))).c_str());
}

// The folder of this program and the files that it loads.
inline std::string own_folder() {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) samples::fail("no /proc", "self/exe");
  const std::string own = self;
  return own.substr(0, own.rfind('/'));
}

inline std::string file_text(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) samples::fail("not there, build device_programs", path.c_str());
  std::string text;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
  std::fclose(file);
  return text;
}

// Some work of adjustable length per block; the same instructions on every device.
__global__ void work(float* out, int rounds) {
  float x = float(threadIdx.x) + float(blockIdx.x);
  for (int i = 0; i < rounds; ++i) x = x * 0.999f + 0.5f;
  if (x == 1234.5f) out[0] = x;  // never; keeps the loop
}
__global__ void nothing() {}

// Milliseconds on the device between two events around `body`, alone on the stream.
template <class Body>
double device_ms(cudaStream_t stream, Body&& body) {
  cudaEvent_t start, end;
  CUDA_CHECK(cudaEventCreate(&start));
  CUDA_CHECK(cudaEventCreate(&end));
  CUDA_CHECK(cudaEventRecord(start, stream));
  body();
  CUDA_CHECK(cudaEventRecord(end, stream));
  CUDA_CHECK(cudaEventSynchronize(end));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, start, end));
  CUDA_CHECK(cudaEventDestroy(start));
  CUDA_CHECK(cudaEventDestroy(end));
  return ms;
}

// On the software GPU nothing is measured, and time is short.
inline bool rehearsed() {
  return std::getenv("TESSERA_LAB_REHEARSED") != nullptr;
}

struct Calibrated {
  int64_t amount = 1;  // that a launch was given
  double ms = 0;       // it then takes, alone
};

// `launch(amount)` into `stream`, with an amount that makes it last about `wanted_ms`. A clock that still rises and kernels
// that are short beside what launching one costs mislead: it is measured by long kernels on a warm device.
template <class Launch>
Calibrated calibrate(cudaStream_t stream, double wanted_ms, Launch&& launch) {
  const double long_ms = rehearsed() ? 0.2 : 4;
  const uint64_t warm_ns = rehearsed() ? 0 : 250000000;
  const auto timed = [&](int64_t amount) {
    std::vector<double> ms;
    for (int i = 0; i < 5; ++i) ms.push_back(device_ms(stream, [&] { launch(amount); }));
    return Calibrated{amount, std::max(quantile(ms, 0.5), 1e-6)};
  };
  const auto scaled = [&](const Calibrated& from) {
    return std::max<int64_t>(1, std::llround(double(from.amount) * wanted_ms / from.ms));
  };
  constexpr int64_t kMost = int64_t(1) << 30;
  int64_t amount = 1;
  launch(amount);  // loads its code
  CUDA_CHECK(cudaStreamSynchronize(stream));
  while (amount < kMost && device_ms(stream, [&] { launch(amount); }) < long_ms) amount *= 2;
  for (const uint64_t end_ns = now_ns() + warm_ns; now_ns() < end_ns;)
    device_ms(stream, [&] { launch(amount); });
  const Calibrated base = timed(amount), first = timed(scaled(base));
  const double ms_each = (first.ms - base.ms) / double(first.amount - base.amount);
  if (std::abs(first.ms - wanted_ms) <= 0.05 * wanted_ms || !(ms_each > 0)) return first;
  // Part of a launch's time is not in proportion.
  return timed(std::max<int64_t>(1, first.amount + std::llround((wanted_ms - first.ms) / ms_each)));
}

// Calibrates `work` in blocks of 128 threads.
inline Calibrated calibrate_work(cudaStream_t stream, float* scratch, int blocks, double wanted_ms) {
  return calibrate(stream, wanted_ms, [&](int64_t rounds) {
    work<<<unsigned(blocks), 128, 0, stream>>>(scratch, int(rounds));
    CUDA_CHECK(cudaGetLastError());
  });
}
inline int rounds_for(cudaStream_t stream, float* scratch, int blocks, double wanted_ms) {
  return int(calibrate_work(stream, scratch, blocks, wanted_ms).amount);
}
// Blocks of `work` for that many waves on the device.
inline int blocks_of(double waves) {
  int multiprocessors = 0, blocks = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work, 128, 0));
  return int(std::ceil(waves * multiprocessors * blocks));
}

}  // namespace probe
