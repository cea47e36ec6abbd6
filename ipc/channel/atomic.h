// Loads and stores of shared words through std::atomic_ref, with the order named at each use. Any thread, no
// state. The words live in memory that another process maps: never locked, always plain integers
// (ipc/abi/region.h).
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::ipc {

static_assert(std::atomic_ref<uint32_t>::is_always_lock_free &&
              std::atomic_ref<uint64_t>::is_always_lock_free);

// const: the word may lie in a read-only mapping; a lock-free load never writes (x86-64, aarch64).
template <class T>
inline T load(const T& word, std::memory_order order) {
  return std::atomic_ref<T>(const_cast<T&>(word)).load(order);
}
template <class T>
inline void store(T& word, T value, std::memory_order order) {
  std::atomic_ref<T>(word).store(value, order);
}

}  // namespace tessera::ipc
