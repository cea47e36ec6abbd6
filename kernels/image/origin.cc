// The ELF note .note.nv.cuinfo (toolkit 12 and later): u16 version, u16 virtual architecture, u16 toolkit.
// Older machine code keeps the virtual architecture in bits 16..23 of e_flags.
#include "kernels/image/origin.h"

#include <elf.h>

#include <cstring>
#include <string_view>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

constexpr std::string_view kOwner("NVIDIA Corp\0", 12);
constexpr uint32_t kCuInfo = 1000, kToolInfo = 2000;
constexpr unsigned kFirstWithNote = 8;  // ELF ABI version

// Returns the description of a note of this type and owner; empty for any other note.
Bytes description(Bytes note, uint32_t type) {
  if (note.size() < sizeof(Elf64_Nhdr) + kOwner.size()) return {};
  const auto header = load<Elf64_Nhdr>(note, 0);
  const std::string_view owner(reinterpret_cast<const char*>(note.data()) + sizeof header, kOwner.size());
  const Bytes rest = note.subspan(sizeof header + kOwner.size());
  if (header.n_namesz != kOwner.size() || header.n_type != type || header.n_descsz > rest.size() ||
      owner != kOwner)
    return {};
  return rest.first(header.n_descsz);
}

template <class F>
void each_note(Bytes elf, F&& visit) {
  const auto header = load<Elf64_Ehdr>(elf, 0);
  if (header.e_shentsize != sizeof(Elf64_Shdr) ||
      !inside(header.e_shoff, uint64_t(header.e_shnum) * sizeof(Elf64_Shdr), elf.size()))
    return;
  for (unsigned i = 0; i < header.e_shnum; i++) {
    const auto section = load<Elf64_Shdr>(elf, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type == SHT_NOTE && inside(section.sh_offset, section.sh_size, elf.size()))
      visit(elf.subspan(section.sh_offset, section.sh_size));
  }
}

std::string text_at(Bytes text, uint32_t at) {
  if (at >= text.size()) return {};
  const char* begin = reinterpret_cast<const char*>(text.data()) + at;
  return {begin, strnlen(begin, text.size() - at)};
}

}  // namespace

unsigned compiled_from(Bytes elf) {
  if (!is_cubin(elf)) return 0;
  const auto header = load<Elf64_Ehdr>(elf, 0);
  if (header.e_ident[EI_ABIVERSION] < kFirstWithNote) return (header.e_flags >> 16) & 0xff;
  unsigned found = 0;
  bool several = false;  // linked from several
  each_note(elf, [&](Bytes note) {
    const Bytes facts = description(note, kCuInfo);
    const unsigned sm = facts.size() >= 6 ? load<uint16_t>(facts, 2) : 0;
    several = several || (sm && found && sm != found);
    if (sm) found = sm;
  });
  return several ? 0 : found;
}

Toolchain toolchain_of(Bytes elf) {
  Toolchain out;
  if (!is_cubin(elf)) return out;
  each_note(elf, [&](Bytes note) {
    constexpr size_t kTexts =
        24;  // u32 version, u32, then where four texts begin: program, release, build, options
    const Bytes facts = description(note, kToolInfo);
    if (facts.size() < kTexts) return;
    out.release = text_at(facts.subspan(kTexts), load<uint32_t>(facts, 12));
    out.options = text_at(facts.subspan(kTexts), load<uint32_t>(facts, 20));
  });
  return out;
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
