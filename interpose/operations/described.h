// What descriptors with certain bytes say, once it was read: so that they need not be read at every call.
//
//   same addresses as before --> the bytes are compared, and were the same? --> known
//   else                     --> looked up by the bytes                     --> known, or null: read, and remember()
//
// Of a descriptor those bytes count that its library writes when it makes one (Significant): the rest is whatever lay in
// memory there. Any thread; no lock, no allocation. What was remembered stays; where there is no more room, nothing is added.
#pragma once

#include <cstddef>
#include <cstdint>

#include "interpose/operations/call.h"

namespace tessera::library {

// Two words: as wide as registers of every machine of this architecture are.
using WordPair = uint64_t __attribute__((vector_size(16)));

inline constexpr size_t kMostDescriptors = 5, kMostDescriptorPairs = 32;  // of one call

// The bits of a kind of descriptor that count. Written once, before the first key with it.
struct Significant {
  static constexpr size_t kMostPairs = 16;
  WordPair pairs[kMostPairs] = {};
  uint32_t n_pairs = 0;  // behind the last there is nothing that counts; 0: not known
};
// From what the library makes of storage that was all zeros, and all ones: bits that are the same were written.
void learn_significant(const void* made_of_zeros, const void* made_of_ones, size_t bytes, Significant* out);

struct Descriptor {
  const void* at;
  const Significant* significant;
};

// The descriptors of a call. Nothing is remembered of those with more than kMostDescriptorPairs pairs that count.
class DescriptorKey {
 public:
  void add(const void* at, const Significant& significant) {
    parts_[n_parts_++] = {at, &significant};
    n_pairs_ += significant.n_pairs;
    if (significant.n_pairs == 0) is_usable_ = false;
  }
  // What was remembered under the same bytes; null: nothing.
  const Operation* find();
  // After find(), which keeps what it gathered.
  void remember(const Operation& operation);

 private:
  void gather();
  uint32_t place_of_addresses() const;

  Descriptor parts_[kMostDescriptors];
  uint32_t n_parts_ = 0, n_pairs_ = 0;
  bool is_usable_ = true, is_gathered_ = false;
  uint64_t hash_ = 0;                     // of the bytes, never 0
  WordPair pairs_[kMostDescriptorPairs];  // of all parts, what does not count is zero; written by gather()
};

}  // namespace tessera::library
