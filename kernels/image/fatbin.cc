// One fat-binary container. Layout: docs/formats.md.
#include <array>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

base::Error bad(const char* what) {
  return base::error(base::Code::kInvalid, std::string("fat binary: ") + what);
}

bool relocatable(const Entry& entry) {
  std::array<uint8_t, kElfHeaderBytes> start;
  return entry.kind == EntryKind::kCubin && decompress_start(entry, start) && is_relocatable(start);
}

// Options record {u32 string offset in the header, u32 length}: text such as "-g --compile-only".
std::string options(Bytes header, uint32_t offset, uint64_t flags) {
  if (offset == 0 || (flags & kFlagBinaryOptions) || !inside(offset, 8, header.size())) return {};
  uint32_t at = load<uint32_t>(header, offset), length = load<uint32_t>(header, offset + 4);
  if (!inside(at, length, header.size())) return {};
  std::string text(reinterpret_cast<const char*>(header.data()) + at, length);
  return text.substr(0, text.find('\0'));
}

base::Status list_entry(Bytes bytes, std::vector<Entry>* entries, size_t* used) {
  if (bytes.size() < kEntryHeaderBytes) return bad("truncated entry header");
  const auto header_bytes = load<uint32_t>(bytes, 4);
  const auto padded_bytes = load<uint64_t>(bytes, 8);
  const auto compressed_bytes = load<uint32_t>(bytes, 16);
  const auto flags = load<uint64_t>(bytes, 40);
  const auto uncompressed_bytes = load<uint64_t>(bytes, 56);
  if (header_bytes < kEntryHeaderBytes || !inside(header_bytes, padded_bytes, bytes.size()))
    return bad("an entry is longer than its container");
  *used = header_bytes + padded_bytes;
  Bytes header = bytes.first(header_bytes);
  Bytes payload = bytes.subspan(header_bytes, padded_bytes);
  Entry entry;
  const auto kind = load<uint16_t>(bytes, 0);
  entry.kind = kind == kKindPtx ? EntryKind::kPtx : kind == kKindElf ? EntryKind::kCubin : EntryKind::kOther;
  entry.version_minor = load<uint16_t>(bytes, 24);
  entry.version_major = load<uint16_t>(bytes, 26);
  entry.sm = load<uint32_t>(bytes, 28);
  entry.arch_specific = flags & kFlagArchSpecific;
  entry.family_specific = flags & kFlagFamilySpecific;
  entry.options = options(header, load<uint32_t>(bytes, 20), flags);
  entry.stored_bytes = *used;
  entry.compression = flags & kFlagZstd ? "zstd" : flags & kFlagLz4 ? "lz4" : "none";
  // LTO-IR and later kinds are kept as they are, nobody here reads them.
  if (entry.kind != EntryKind::kOther && (flags & kFlagsCompressed)) {
    if ((flags & kFlagsCompressed) == kFlagsCompressed) return bad("an entry claims two compressions");
    if (compressed_bytes > payload.size()) return bad("a compressed entry is longer than its payload");
    payload = payload.first(compressed_bytes);
    entry.claimed_bytes = uncompressed_bytes;
  }
  entry.stored_payload = payload;
  entry.relocatable = relocatable(entry);
  entries->push_back(std::move(entry));
  return base::ok();
}

}  // namespace

base::Status list_container(Bytes bytes, std::vector<Entry>* entries) {
  if (bytes.size() < kContainerHeaderBytes || load<uint32_t>(bytes, 0) != kContainerMagic)
    return bad("truncated container header");
  const auto header_bytes = load<uint16_t>(bytes, 6);
  const auto body_bytes = load<uint64_t>(bytes, 8);
  if (header_bytes < kContainerHeaderBytes || !inside(header_bytes, body_bytes, bytes.size()))
    return bad("the container is longer than the image");
  Bytes body = bytes.subspan(header_bytes, body_bytes);
  while (!body.empty()) {
    size_t entry_bytes = 0;
    base::Status status = list_entry(body, entries, &entry_bytes);
    if (!status.ok()) return status;
    body = body.subspan(entry_bytes);
  }
  return base::ok();
}

}  // namespace tessera::image
