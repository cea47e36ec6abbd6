// The kernels of bench_softgpu on the CPU through OpenCL (PoCL), for comparison. Used by bench_softgpu.cc
// only, from one thread. Built without OpenCL it answers that there is none.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace tessera::bench {

struct OpenClArgument {
  size_t bytes = 0;  // of a value
  const void* value = nullptr;
  int buffer = -1;  // or a buffer by index
};

class OpenCl {
 public:
  static std::unique_ptr<OpenCl> open(std::string* why_not);  // null if there is no CPU device
  virtual ~OpenCl() = default;
  virtual int buffer(const void* contents, size_t bytes) = 0;  // its index
  virtual void read(int buffer, void* to, size_t bytes) = 0;
  virtual void write(int buffer, const void* from, size_t bytes) = 0;
  // Runs a kernel to its end; false with a message on standard error if that failed.
  virtual bool run(const std::string& kernel, const size_t (&global)[2], const size_t (&local)[2],
                   const std::vector<OpenClArgument>& arguments) = 0;
};

}  // namespace tessera::bench
