// An allocation that finds no room waits for it (`tessera run --memory-wait`, docs/memory.md): it is tried again and again,
// until others have made room or the time is over. Called by hooks of allocations, by any thread of the program, outside
// every lock. Slow path: nothing happens here unless memory was refused.
#pragma once

#include "interpose/memory/memory.h"

namespace tessera::memory {

class Wait {
 public:
  Wait(int device, uint64_t bytes) : device_(device), bytes_(bytes) {}
  ~Wait();
  Wait(const Wait&) = delete;
  bool again(
      CUresult
          result);  // after an attempt; true: it was refused, has waited a while, and is to be made again

 private:
  bool may_begin() const;
  int device_;
  uint64_t bytes_;
  uint64_t until_ns_ = 0;  // 0: it does not wait
};

}  // namespace tessera::memory
