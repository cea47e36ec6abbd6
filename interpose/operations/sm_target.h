// For how many SMs cuBLAS chooses its kernels: cublasSetSmCountTarget on the program's handle for the length of one call, then
// what the program had set.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::library {

struct Cublas;  // split_libraries.h

// A target of the program's own stands where it is smaller; 0: all SMs.
inline bool is_less(uint32_t sms, int programs) {
  return programs == 0 || sms < uint32_t(programs);
}

class SmTarget {
 public:
  // Not where the program wants no more itself, or another thread is in a call with this handle.
  SmTarget(const void* handle, const void* function, uint32_t sms);
  ~SmTarget();
  SmTarget(const SmTarget&) = delete;
  SmTarget& operator=(const SmTarget&) = delete;
  bool is_set() const { return in_use_ != nullptr; }

 private:
  const Cublas* cublas_ = nullptr;  // whose function is called
  std::atomic<const void*>* in_use_ = nullptr;
  int before_ = 0;
};

}  // namespace tessera::library
