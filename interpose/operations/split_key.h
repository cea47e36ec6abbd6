// The key of a class of calls: a hash of everything that bits may depend on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interpose/operations/call.h"

namespace tessera::library {

// The part of an address that counts: only how far behind a multiple of the driver's alignment something lies, which a library may choose by.
inline constexpr uint64_t kAlignment = 256;

class ClassKey {
 public:
  template <class... Numbers>
  ClassKey& add(Numbers... numbers) {
    ((hash_ = mixed_in(hash_, static_cast<uint64_t>(numbers))), ...);
    return *this;
  }
  ClassKey& add_bytes(const void* bytes, size_t n) {
    const auto* byte = static_cast<const unsigned char*>(bytes);
    for (size_t i = 0; i < n; i++) add(byte[i]);
    return *this;
  }
  ClassKey& add_alignment(uint64_t address) { return add(address % kAlignment); }
  uint64_t value() const { return hash_ ? hash_ : 1; }

 private:
  uint64_t hash_ = 1;
};

}  // namespace tessera::library
