// Only as much ELF as a container needs: the length of a cubin that comes without one, its SM number, and the
// sections of a host program that hold fat binaries. <elf.h> has the layouts; offsets are checked before each
// load.
#include <elf.h>

#include <algorithm>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr uint64_t kMaxSections = 1u << 24;

base::Error bad(const char* what) {
  return base::error(base::Code::kInvalid, std::string("ELF: ") + what);
}

bool is_elf64(const uint8_t* ident) {
  return ident[EI_CLASS] == ELFCLASS64 && ident[EI_DATA] == ELFDATA2LSB;
}

// Sections of an ELF whose bytes are all readable; empty if the headers do not hold together.
struct Sections {
  Bytes elf;
  uint64_t offset = 0, count = 0;
  Bytes names;
  explicit Sections(Bytes bytes);
  Elf64_Shdr at(uint64_t i) const { return load<Elf64_Shdr>(elf, offset + i * sizeof(Elf64_Shdr)); }
};

Sections::Sections(Bytes bytes) : elf(bytes) {
  auto header = load<Elf64_Ehdr>(elf, 0);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || !inside(header.e_shoff, sizeof(Elf64_Shdr), elf.size()))
    return;
  offset = header.e_shoff;
  uint64_t n = header.e_shnum, index = header.e_shstrndx;
  auto first = at(0);
  n = n ? n : first.sh_size;  // more than 0xff00 sections
  index = index == SHN_XINDEX ? first.sh_link : index;
  if (n > kMaxSections || !inside(offset, n * sizeof(Elf64_Shdr), elf.size()) || index >= n) return;
  auto strings = at(index);
  if (!inside(strings.sh_offset, strings.sh_size, elf.size())) return;
  names = elf.subspan(strings.sh_offset, strings.sh_size);
  count = n;
}

}  // namespace

base::Result<size_t> elf_size(const ReadableBytes& readable) {
  if (!readable.covers(0, sizeof(Elf64_Ehdr)) || !is_elf64(readable.begin))
    return bad("truncated header, or not a 64-bit little-endian file");
  Bytes all(readable.begin, readable.limit);  // each look below is covered by a readable.covers() before it
  auto header = load<Elf64_Ehdr>(all, 0);
  uint64_t size = sizeof(Elf64_Ehdr);
  uint64_t n_sections = header.e_shnum;
  if (header.e_shoff) {
    if (header.e_shentsize != sizeof(Elf64_Shdr) || !readable.covers(header.e_shoff, sizeof(Elf64_Shdr)))
      return bad("the section table lies outside the image");
    if (n_sections == 0) n_sections = load<Elf64_Shdr>(all, header.e_shoff).sh_size;
    if (n_sections > kMaxSections || !readable.covers(header.e_shoff, n_sections * sizeof(Elf64_Shdr)))
      return bad("the section table lies outside the image");
    size = std::max(size, header.e_shoff + n_sections * sizeof(Elf64_Shdr));
    for (uint64_t i = 0; i < n_sections; ++i) {
      auto section = load<Elf64_Shdr>(all, header.e_shoff + i * sizeof(Elf64_Shdr));
      if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
      if (!inside(section.sh_offset, section.sh_size, readable.limit))
        return bad("a section lies outside the image");
      size = std::max(size, section.sh_offset + section.sh_size);
    }
  }
  if (header.e_phnum) {
    uint64_t bytes = uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
    if (header.e_phentsize != sizeof(Elf64_Phdr) || !readable.covers(header.e_phoff, bytes))
      return bad("the program table lies outside the image");
    size = std::max(size, header.e_phoff + bytes);
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
      auto segment = load<Elf64_Phdr>(all, header.e_phoff + i * sizeof(Elf64_Phdr));
      if (!inside(segment.p_offset, segment.p_filesz, readable.limit))
        return bad("a segment lies outside the image");
      size = std::max(size, segment.p_offset + segment.p_filesz);
    }
  }
  if (!readable.covers(0, size)) return bad("the image ends before its headers say");
  return size_t{size};
}

bool is_cubin(Bytes elf) {
  return elf.size() >= sizeof(Elf64_Ehdr) && is_elf64(elf.data()) &&
         load<uint16_t>(elf, offsetof(Elf64_Ehdr, e_machine)) == kMachineCuda;
}

bool is_relocatable(Bytes elf) {
  return is_cubin(elf) && load<Elf64_Ehdr>(elf, 0).e_type == ET_REL;
}

base::Result<Entry> list_cubin(Bytes elf) {
  if (!is_cubin(elf)) return bad("not a 64-bit CUDA image");
  auto header = load<Elf64_Ehdr>(elf, 0);
  Entry entry;
  entry.kind = EntryKind::kCubin;
  entry.version_major = header.e_version;  // as fat binaries number it: 1.8
  entry.version_minor = header.e_ident[EI_ABIVERSION];
  // CUDA ELF ABI 8 (toolkit 13) keeps the SM number in bits 8..15 of e_flags, older ones in bits 0..7.
  entry.sm = entry.version_minor >= 8 ? (header.e_flags >> 8) & 0xff : header.e_flags & 0xff;
  entry.relocatable = is_relocatable(elf);
  read_target_suffix(elf, &entry);
  entry.stored_payload = elf;
  entry.stored_bytes = elf.size();
  return entry;
}

std::vector<Bytes> fatbin_sections(Bytes elf) {
  std::vector<Bytes> found;
  if (elf.size() < sizeof(Elf64_Ehdr) || !is_elf64(elf.data())) return found;
  Sections sections(elf);
  for (uint64_t i = 0; i < sections.count; ++i) {
    auto section = sections.at(i);
    if (section.sh_type == SHT_NOBITS || section.sh_name >= sections.names.size() ||
        !inside(section.sh_offset, section.sh_size, elf.size()))
      continue;
    Bytes rest = sections.names.subspan(section.sh_name);
    std::string_view name(reinterpret_cast<const char*>(rest.data()),
                          strnlen(reinterpret_cast<const char*>(rest.data()), rest.size()));
    if (name == ".nv_fatbin" || name == "__nv_relfatbin")
      found.push_back(elf.subspan(section.sh_offset, section.sh_size));
  }
  return found;
}

}  // namespace tessera::image
