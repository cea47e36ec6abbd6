// How many bytes of one device the processes of a user have, together. The driver's memory.cc calls it under Memory::mutex_.
//
// A file in the arbiter's folder has a word per process: the bytes that it has. A process holds a lock of the kernel
// (F_OFD_SETLK) on its word as long as it lives, so that the word of a dead one is told from the rest. One more such lock
// orders those who add up and take; it ends with its holder, too. A device inside the process has no file.
#pragma once

#include <cstdint>
#include <string>

#include "base/scoped_fd.h"

namespace tessera::softgpu::timing {

// The file for that device of the machine; empty: the device is inside this process.
std::string memory_count_of(unsigned device);
// Bytes of all living processes by that file. 0: there is no such file.
uint64_t counted_in(const std::string& file);

struct DeviceMemoryPage;

class DeviceMemory {
 public:
  // `file` empty: nobody else uses the device. Where the file cannot be used, the process counts for itself.
  DeviceMemory(uint64_t capacity, const std::string& file);

  bool take(uint64_t bytes);  // false: there is not so much left
  void give(uint64_t bytes);
  uint64_t used() const;  // by all processes that live
  uint64_t mine() const { return mine_; }
  // While the process is checkpointed it has nothing; `take_back` as `take`.
  void give_all();
  bool take_back();
  // ... and is to have on another device what it had on this one.
  void move_to(uint64_t capacity, const std::string& file);
  void forget() { file_.reset(); }  // in the child of a fork, which has no part in this

 private:
  void open(const std::string& file);
  bool fits(uint64_t bytes) const;  // the caller holds the lock of the file
  uint64_t others() const;
  bool lock(short type, int64_t at) const;

  uint64_t capacity_;
  base::ScopedFd file_;
  DeviceMemoryPage* page_ = nullptr;  // null: no file, or no word was free
  uint64_t slot_ = 0;
  uint64_t mine_ = 0;  // bytes
};

}  // namespace tessera::softgpu::timing
