// Names a rewriting: the same key means that the same rewriter would make the same of the same text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::cache {

struct Key {  // XXH3, 128 bits
  uint64_t low = 0, high = 0;
  bool operator==(const Key&) const = default;
};

// `text`: the PTX as the program brought it. `driver_version`: as cuDriverGetVersion says. The sources of
// kernels/ptx, kernels/slice and this folder are part of the key, so that no result outlives the rewriter
// that made it; so is what the user allows (slice::Options).
Key key_of(std::string_view text, int driver_version, bool allow_order_dependent = false);
std::string file_name(const Key& key);  // 32 hexadecimal digits and ".tsr"

}  // namespace tessera::cache
