// What the hardware questions share: driver entry points, timing, one JSON object on standard output.
// Host code of the .cu files in this folder. Programs change no device setting.
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
  report.text("gpu", prop.name)
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

// Where this program and what it loads are.
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

// Rounds for `work` so that a launch of `blocks` x 128 lasts about `wanted_ms`.
inline int rounds_for(cudaStream_t stream, float* scratch, int blocks, double wanted_ms) {
  const int sample = 1000;
  work<<<blocks, 128, 0, stream>>>(scratch, sample);
  const double ms = device_ms(stream, [&] { work<<<blocks, 128, 0, stream>>>(scratch, sample); });
  return std::max(1, int(sample * wanted_ms / std::max(ms, 1e-6)));
}

}  // namespace probe
