// Lengths of work on a GPU in classes, two to an octave: what waits on a device names its class, and the gate lets classes
// begin up to the longest that fits. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::base {

// The longest work of each class, in ns; the last class is for all that is longer.
inline constexpr uint64_t kLongestOfClass[] = {
    20'000,    28'000,    40'000,     57'000,     80'000,     113'000,    160'000,    226'000,
    320'000,   453'000,   640'000,    905'000,    1'280'000,  1'810'000,  2'560'000,  3'620'000,
    5'120'000, 7'240'000, 10'240'000, 14'480'000, 20'480'000, 28'960'000, 40'960'000, UINT64_MAX};
inline constexpr uint32_t kLengthClasses = sizeof kLongestOfClass / sizeof *kLongestOfClass;
inline constexpr uint32_t kLongestClass = kLengthClasses - 1;

constexpr uint32_t length_class(uint64_t ns) {
  uint32_t c = 0;
  while (kLongestOfClass[c] < ns) ++c;
  return c;
}

// The longest class whose work all ends within that time; the first class at least.
constexpr uint32_t class_within(uint64_t ns) {
  uint32_t c = 0;
  while (c + 1 < kLengthClasses && kLongestOfClass[c + 1] <= ns) ++c;
  return c;
}

}  // namespace tessera::base
