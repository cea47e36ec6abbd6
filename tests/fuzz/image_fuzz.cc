// Any bytes: entries or an error, within the bounds of the input; entries that were read come back when they
// are written and read again.
#include "kernels/image/image.h"

#include <cstdlib>
#include <vector>

#include "kernels/image/write.h"

namespace {

using tessera::image::Entry;
using tessera::image::EntryKind;
using tessera::image::LoadedEntry;

constexpr size_t kMostWritten = 1 << 20;  // more says nothing more

void check(bool fine) {
  if (!fine) abort();
}

// Plain machine code comes back padded to 8 bytes.
bool same_payload(const LoadedEntry& a, LoadedEntry b) {
  if (a.kind == EntryKind::kCubin && b.payload.size() < a.payload.size() &&
      a.payload.size() - b.payload.size() < 8)
    b.payload.resize(a.payload.size());
  return a.payload == b.payload;
}

// list() must tell the same from machine code's first bytes as from all of it.
void same_start(const LoadedEntry& e) {
  if (e.kind != EntryKind::kCubin) return;
  auto bare = tessera::image::list(e.payload);
  if (bare.ok() && bare->size() == 1 && (*bare)[0].kind == EntryKind::kCubin)
    check((*bare)[0].relocatable == e.relocatable);
}

void write_and_read(std::vector<LoadedEntry> entries) {
  size_t bytes = 0;
  std::erase_if(entries, [](const LoadedEntry& e) { return e.kind == EntryKind::kOther; });
  for (const LoadedEntry& e : entries) bytes += e.payload.size();
  if (entries.empty() || bytes > kMostWritten) return;
  auto written = tessera::image::write_container(entries);
  if (!written.ok()) return;  // beyond the fields: a version of a text, say
  auto again = tessera::image::read(*written);
  check(again.ok() && again->size() == entries.size());
  for (size_t i = 0; i < entries.size(); i++) {
    const LoadedEntry &a = (*again)[i], &b = entries[i];
    check(a.kind == b.kind && a.sm == b.sm && a.arch_specific == b.arch_specific &&
          a.family_specific == b.family_specific && a.relocatable == b.relocatable &&
          a.options == b.options && a.version_major == b.version_major &&
          a.version_minor == b.version_minor && same_payload(a, b));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto listed = tessera::image::list({data, size});
  auto entries = tessera::image::read({data, size});
  check(listed.ok() || !entries.ok());
  if (!listed.ok()) return 0;
  for (unsigned sm : {75u, 90u, 120u}) (void)tessera::image::choose(*listed, sm);
  if (!entries.ok()) return 0;
  for (const LoadedEntry& e : *entries) same_start(e);
  write_and_read(std::move(*entries));
  return 0;
}
