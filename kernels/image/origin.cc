// The ELF note .note.nv.cuinfo (toolkit 12 and later): u16 version, u16 virtual architecture, u16 toolkit.
// Older machine code keeps the virtual architecture in bits 16..23 of e_flags.
#include "kernels/image/origin.h"

#include <elf.h>

#include <string_view>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

constexpr std::string_view kOwner("NVIDIA Corp\0", 12);
constexpr uint32_t kCuInfo = 1000;
constexpr unsigned kFirstWithNote = 8;  // ELF ABI version

unsigned from_note(Bytes note) {
  if (note.size() < sizeof(Elf64_Nhdr) + kOwner.size() + 6) return 0;
  const auto header = load<Elf64_Nhdr>(note, 0);
  const std::string_view owner(reinterpret_cast<const char*>(note.data()) + sizeof header, kOwner.size());
  if (header.n_namesz != kOwner.size() || header.n_type != kCuInfo || header.n_descsz < 6 || owner != kOwner)
    return 0;
  return load<uint16_t>(note, sizeof header + kOwner.size() + 2);
}

}  // namespace

unsigned compiled_from(Bytes elf) {
  if (!is_cubin(elf)) return 0;
  const auto header = load<Elf64_Ehdr>(elf, 0);
  if (header.e_ident[EI_ABIVERSION] < kFirstWithNote) return (header.e_flags >> 16) & 0xff;
  if (header.e_shentsize != sizeof(Elf64_Shdr) ||
      !inside(header.e_shoff, uint64_t(header.e_shnum) * sizeof(Elf64_Shdr), elf.size()))
    return 0;
  unsigned found = 0;
  for (unsigned i = 0; i < header.e_shnum; i++) {
    const auto section = load<Elf64_Shdr>(elf, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_NOTE || !inside(section.sh_offset, section.sh_size, elf.size())) continue;
    const unsigned sm = from_note(elf.subspan(section.sh_offset, section.sh_size));
    if (sm && found && sm != found) return 0;  // linked from several
    if (sm) found = sm;
  }
  return found;
}

const Entry* source_of(const std::vector<Entry>& entries, const Entry& cubin, Bytes code) {
  const unsigned sm = compiled_from(code);
  const Entry* source = nullptr;
  for (const Entry& e : entries) {
    if (!sm || e.kind != EntryKind::kPtx || e.sm != sm) continue;
    if (e.arch_specific != cubin.arch_specific || e.family_specific != cubin.family_specific) continue;
    if (source) return nullptr;  // several translation units: which one is not said
    source = &e;
  }
  return source;
}

}  // namespace tessera::image
