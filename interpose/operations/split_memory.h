// Remembers which classes of calls were found equal in pieces, and which not: a table in this process, and a file of this user's cache
// that all its processes append to. Any thread; no allocation. A file that somebody else could have written is not read; a
// record that is garbled is skipped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace tessera::library {

enum class Equality : uint32_t { kUnknown = 0, kTried = 1, kEqual = 2, kUnequal = 3 };

// As they stand in the file: 24 bytes, no padding.
struct VerdictRecord {
  uint64_t key;
  uint64_t check;  // of the other two
  uint32_t verdict;
  uint32_t reserved;
};
static_assert(sizeof(VerdictRecord) == 24);
VerdictRecord make_record(uint64_t key, Equality verdict);
// Calls `found(key, verdict)` for each good record of a file's bytes. The last one of a key counts.
void parse_records(std::span<const unsigned char> bytes, void (*found)(uint64_t key, Equality verdict));

// Once, by connect(): reads the file.
void open_memory();
Equality recall(uint64_t key);  // never kUnequal and kEqual of one key in turn: unequal stays
// How many of its pieces were found equal in trials before. Nothing: it is known or tried already, or there is no room.
std::optional<uint32_t> begin_trial(uint64_t key);
void end_trial(uint64_t key, Equality verdict);               // kUnknown: it may be tried again
void end_trial_of_some(uint64_t key, uint32_t equal_pieces);  // the others will be tried
// Equal, but so would any results have been. It is tried again a few times.
void end_trial_that_says_nothing(uint64_t key);

}  // namespace tessera::library
