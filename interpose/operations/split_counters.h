// Words of abi::OperationTotals, by number, as NoteReader::count wants them. A test compares (note_test.cc).
#pragma once

#include <cstdint>

namespace tessera::library {

inline constexpr uint32_t kSplitCalls = 1, kSplitPieces = 2, kSplitProven = 3, kSplitUnequal = 4,
                          kKeptUnproven = 5, kKeptUnequal = 6, kKeptForm = 7, kNarrowedCalls = 8,
                          kKeptShort = 13, kKeptFree = 14;

}  // namespace tessera::library
