// Runs PTX in the software GPU from tests: a module from text, device buffers, a launch with a packed
// parameter block.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ptx/parser.h"
#include "softgpu/exec/exec.h"
#include "tests/unit/softgpu_exec/coverage.h"

namespace tessera::softgpu::exec {

inline AllocationMap& test_memory() {
  static AllocationMap memory;
  return memory;
}

// A live allocation of n elements.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n, T value = T{}) : values_(n + (127 + sizeof(T)) / sizeof(T), value), n_(n) {
    const uint64_t raw = reinterpret_cast<uint64_t>(values_.data());
    begin_ = (raw + 127) & ~uint64_t{127};
    test_memory().add(begin_, n * sizeof(T), true);
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    std::memcpy(data(), from.data(), from.size() * sizeof(T));
  }
  ~DeviceArray() { release(); }
  void release() {
    if (begin_) test_memory().remove(begin_);
    begin_ = 0;
  }
  DeviceArray(const DeviceArray&) = delete;
  T* data() {
    return reinterpret_cast<T*>((reinterpret_cast<uint64_t>(values_.data()) + 127) & ~uint64_t{127});
  }
  uint64_t address() { return reinterpret_cast<uint64_t>(data()); }
  T& operator[](size_t i) { return data()[i]; }
  size_t size() const { return n_; }
  std::vector<T> values() { return std::vector<T>(data(), data() + n_); }

 private:
  std::vector<T> values_;
  size_t n_;
  uint64_t begin_ = 0;
};

// Parameter block with natural alignment.
class Params {
 public:
  template <class T>
  Params& add(T value) {
    while (bytes_.size() % sizeof(T)) bytes_.push_back(0);
    const char* p = reinterpret_cast<const char*>(&value);
    bytes_.insert(bytes_.end(), p, p + sizeof(T));
    return *this;
  }
  const void* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<char> bytes_;
};

struct TestModule {
  std::unique_ptr<ptx::Module> module;
  std::unique_ptr<Program> program;
  std::string error;

  explicit TestModule(const std::string& text) {
    auto parsed = ptx::parse(text);
    if (!parsed.ok()) {
      error = parsed.error().text;
      return;
    }
    module = std::make_unique<ptx::Module>(std::move(parsed).value());
    auto loaded = Program::load(*module, test_memory());
    if (!loaded.ok()) {
      error = loaded.error().text;
      return;
    }
    program = std::move(loaded).value();
  }
  bool ok() const { return program != nullptr; }

  Fault run(const std::string& kernel, std::array<uint32_t, 3> grid, std::array<uint32_t, 3> block,
            const Params& params, uint32_t shared = 0, Work* work = nullptr, uint64_t seed = 0,
            unsigned threads = 1, bool cooperative = false, std::array<uint32_t, 3> cluster = {}) {
    const Kernel* k = program->kernel(kernel);
    if (!k) {
      Fault f;
      f.kind = FaultKind::kInvalidPc;
      const auto refusal = program->refused().find(kernel);
      f.text = refusal == program->refused().end() ? "no kernel " + kernel : refusal->second;
      return f;
    }
    watch(*k);
    Launch launch;
    launch.grid = grid;
    launch.block = block;
    launch.dynamic_shared_bytes = shared;
    launch.params = params.data();
    launch.block_order_seed = seed;
    launch.cooperative = cooperative;
    launch.cluster = cluster;
    return program->run(*k, launch, threads, work, nullptr, nullptr);
  }
};

inline std::string ptx_header() {
  return ".version 8.5\n.target sm_90\n.address_size 64\n";
}

}  // namespace tessera::softgpu::exec
