// The common part of the sample programs: command-line options, clocks, checksums, pseudo-random input, CUDA error
// checks. Header-only, included by the samples' .cu files alone (host code); nothing here knows of Tessera.
// Single-threaded.
#pragma once

#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

namespace samples {

inline void fail(const char* what, const char* detail) {
  std::fprintf(stderr, "error: %s: %s\n", what, detail);
  std::exit(1);
}

inline void cuda_failed(const char* file, int line, const char* call, cudaError_t status) {
  const char* slash = std::strrchr(file, '/');
  std::fprintf(stderr, "error: %s:%d: %s: %s (%s)\n", slash ? slash + 1 : file, line, call,
               cudaGetErrorString(status), cudaGetErrorName(status));
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
    std::fprintf(stderr,
                 "  no usable GPU driver: libcuda.so.1 must be installed, or be found by LD_LIBRARY_PATH\n");
  }
  std::exit(1);
}

#define CUDA_CHECK(call)                                                                  \
  do {                                                                                    \
    const cudaError_t status_ = (call);                                                   \
    if (status_ != cudaSuccess) samples::cuda_failed(__FILE__, __LINE__, #call, status_); \
  } while (0)

// One row per option. What `value` points to says of which kind it is; it is written when the option is given. A flag
// takes no argument.
struct Option {
  const char* name;
  std::variant<int64_t*, double*, std::string*, bool*> value;
  const char* help;
};

inline void usage(const char* program, const char* purpose, const std::vector<Option>& options) {
  std::printf("usage: %s [options]\n%s\n\n", program, purpose);
  for (const Option& option : options) {
    static const char* const kArgument[] = {" N", " X", " S", ""};
    std::printf("  %-24s %s\n", (std::string(option.name) + kArgument[option.value.index()]).c_str(),
                option.help);
  }
}

inline void parse_options(int argc, char** argv, const char* purpose, const std::vector<Option>& options) {
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--help") || !std::strcmp(argv[i], "-h")) {
      usage(argv[0], purpose, options);
      std::exit(0);
    }
    const auto row = std::find_if(options.begin(), options.end(),
                                  [&](const Option& option) { return !std::strcmp(option.name, argv[i]); });
    if (row == options.end()) fail("unknown option (see --help)", argv[i]);
    if (bool* const* flag = std::get_if<bool*>(&row->value)) {
      **flag = true;
      continue;
    }
    if (i + 1 == argc) fail("option needs a value", argv[i]);
    const char* text = argv[++i];
    if (std::string* const* words = std::get_if<std::string*>(&row->value)) {
      **words = text;
      continue;
    }
    char* end = nullptr;
    bool finite = true;
    if (int64_t* const* whole = std::get_if<int64_t*>(&row->value))
      **whole = std::strtoll(text, &end, 0);
    else if (double* const* real = std::get_if<double*>(&row->value))
      finite = std::isfinite(** real = std::strtod(text, &end));
    if (end == text || *end != '\0' || !finite) fail(row->name, "not a number");
  }
}

// How many times slower than CLOCK_MONOTONIC the program's clock runs (--stretch, for a GPU that is slowed
// down alike). Arrivals, deadlines and reports follow it.
inline double clock_stretch = 1;

inline uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(double(uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec)) / clock_stretch);
}

inline void sleep_until_ns(uint64_t when_ns) {
  when_ns = uint64_t(double(when_ns) * clock_stretch);
  const timespec t{time_t(when_ns / 1000000000u), long(when_ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) != 0) {
  }
}

// FNV-1a over the bits, so that -0.0 and 0.0, or two NaNs, are told apart: "equal" means bit-equal.
struct Checksum {
  uint64_t value = 0xcbf29ce484222325u;
  void add(const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i) value = (value ^ p[i]) * 0x100000001b3u;
  }
};

// splitmix64: the same numbers on every machine, from any starting point.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return double(next() >> 11) * 0x1.0p-53; }                        // [0, 1)
  float symmetric() { return float(int32_t(next() >> 40) - (1 << 23)) * 0x1.0p-23f; }  // [-1, 1)
};

inline void fill(float* data, size_t n, uint64_t seed, float amplitude) {
  Random random{seed};
  for (size_t i = 0; i < n; ++i) data[i] = amplitude * random.symmetric();
}

template <class T>
T* device_array(size_t n) {
  void* p = nullptr;
  CUDA_CHECK(cudaMalloc(&p, n * sizeof(T)));
  return static_cast<T*>(p);
}

inline float* device_filled(size_t n, uint64_t seed, float amplitude) {
  std::vector<float> host(n);
  fill(host.data(), n, seed, amplitude);
  float* device = device_array<float>(n);
  CUDA_CHECK(cudaMemcpy(device, host.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  return device;
}

// Adds what `n` numbers on the device are when everything before in the stream is done.
inline void add_floats(Checksum& sum, const float* device, size_t n, cudaStream_t stream) {
  std::vector<float> host(n);
  CUDA_CHECK(cudaMemcpyAsync(host.data(), device, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  sum.add(host.data(), n * sizeof(float));
}

inline double quantile(std::vector<double> sorted, double q) {
  if (sorted.empty()) return 0;
  std::sort(sorted.begin(), sorted.end());
  const size_t rank = size_t(std::ceil(q * double(sorted.size())));
  return sorted[rank == 0 ? 0 : rank - 1];
}

// "soft" sizes suit a device of a few modelled multiprocessors, "gpu" sizes a real one.
inline bool wants_gpu_sizes(const std::string& preset) {
  if (preset == "gpu") return true;
  if (preset == "soft") return false;
  if (preset != "auto") fail("--preset is one of auto, soft, gpu, not", preset.c_str());
  int device = 0, n_multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return n_multiprocessors > 16;
}

inline void positive(const char* name, double value) {
  if (!(value > 0)) fail(name, "must be greater than zero");
}

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace samples
