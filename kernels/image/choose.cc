#include <tuple>

#include "kernels/image/image.h"

namespace tessera::image {
namespace {

// CUDA C++ programming guide, "compute capability" and "architecture-specific features": machine code runs on
// the same major version with an equal or higher minor one; 'a' targets only on exactly theirs; 'f' targets
// within their family (same major version here); PTX on everything that is not older.
bool usable(const Entry& entry, unsigned sm) {
  if (entry.relocatable || entry.kind == EntryKind::kOther) return false;
  if (entry.arch_specific) return entry.sm == sm;
  bool not_newer = entry.sm <= sm;
  bool same_major = entry.sm / 10 == sm / 10;
  switch (entry.kind) {
    case EntryKind::kCubin:
      return not_newer && same_major;
    case EntryKind::kPtx:
      return not_newer && (same_major || !entry.family_specific);
    case EntryKind::kOther:
      return false;
  }
  return false;
}

}  // namespace

const Entry* choose(const std::vector<Entry>& entries, unsigned sm) {
  const Entry* best = nullptr;
  auto rank = [](const Entry& e) {
    return std::tuple(e.kind == EntryKind::kCubin, e.sm, e.arch_specific, e.family_specific);
  };
  for (const Entry& entry : entries)
    if (usable(entry, sm) && (!best || rank(entry) > rank(*best))) best = &entry;
  return best;
}

}  // namespace tessera::image
