// A learnt table (ipc/abi/learnt.h): how the daemon builds one and how a client reads it. find() is for the
// launch path: plain loads of memory that no one writes any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/scoped_fd.h"
#include "ipc/abi/learnt.h"

namespace tessera::ipc {

// Returns the first slot of the search for a key. Launch keys are odd, so the low bit would waste half the slots.
inline uint32_t learnt_start(uint64_t key) {
  return uint32_t(key >> 32);
}

struct LearntTable {  // a client's view; where it points is mapped for ever
  const abi::LearntSlot* slots = nullptr;
  uint32_t mask = 0;

  const abi::LearntSlot* find(uint64_t key) const {
    if (slots == nullptr || key == 0) return nullptr;
    for (uint32_t i = 0; i < abi::kLearntProbes; ++i) {
      const abi::LearntSlot& slot = slots[(learnt_start(key) + i) & mask];
      if (slot.key == key) return &slot;
      if (slot.key == 0) return nullptr;
    }
    return nullptr;
  }
};

// The header is checked against the size of the mapping.
base::Result<LearntTable> check_learnt(const void* data, size_t bytes);

struct LearntFile {
  base::ScopedFd fd;  // sealed against every change
  size_t bytes = 0;
};
// Entries that find no place within kLearntProbes are left out; of equal keys the first one counts.
base::Result<LearntFile> create_learnt(const std::vector<abi::LearntSlot>& entries);

}  // namespace tessera::ipc
