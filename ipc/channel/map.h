// A shared mapping of a memfd. Only map.cc includes Boost.Interprocess; what it throws ends there as a
// Result. Slow path, any thread. The mapping is excluded from fork (MADV_DONTFORK): a forked child must not
// touch it, which is why the preload library swaps its client for a static empty one there. Does not check
// seals: memfd.h does.
#pragma once

#include <cstddef>
#include <utility>

#include "base/result.h"

namespace tessera::ipc {

enum class Access { kReadOnly, kReadWrite };

class Mapping {  // owns the pages; unmaps on destruction unless leaked
 public:
  Mapping() = default;
  Mapping(void* region, void* data, size_t bytes) : region_(region), data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : region_(std::exchange(other.region_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this == &other) return *this;
    reset();
    region_ = std::exchange(other.region_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  bool valid() const { return data_ != nullptr; }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as(size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(data_) + offset);
  }
  void reset();  // unmaps now
  // Gives the pages up without unmapping: for hosts whose threads may still read them at exit.
  void* leak();

 private:
  void* region_ = nullptr;  // holds the boost::interprocess::mapped_region, known to map.cc only
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Pages that nobody fills any more, but that a thread may still be using: private zeroes take their place,
// which cost nothing until somebody writes. The addresses stay good. Where there is no room for that, nothing
// happens.
void drop_memory(void* pages, size_t bytes);

base::Result<Mapping> map_shared(int fd, size_t bytes, Access access);

}  // namespace tessera::ipc
