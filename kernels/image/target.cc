// The 'a' or 'f' of a bare cubin's target, which e_flags of ptxas 13 leaves out. Three places, from
// observation and LLVM's names for the flags:
//   e_flags       a bit for 'a', 0x800 before ELF ABI 8 and 0x8 from then on
//   .nv.compat    records {2, attribute, value}: attribute 9 is 1 for 'a'
//   .note.nv.tkinfo  the options of the assembler or linker, with "-arch sm_100f"
#include <elf.h>

#include <string_view>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

constexpr unsigned kAbiOfToolkit13 = 8;
constexpr uint32_t kAcceleratorsBefore = 0x800, kAccelerators = 0x8;
constexpr uint32_t kSectionCompat = 0x70000086;
constexpr uint8_t kShortForms = 3, kLongForm = 4, kAttributeSpecific = 9;

bool compat_says_specific(Bytes records) {
  while (records.size() >= 4) {
    const uint8_t form = records[0];
    size_t used = 4;
    if (form == kLongForm)
      used += load<uint16_t>(records, 2);
    else if (form < 1 || form > kShortForms)
      return false;
    if (form != kLongForm && records[1] == kAttributeSpecific) return records[2] == 1;
    if (used > records.size()) return false;
    records = records.subspan(used);
  }
  return false;
}

// The letter behind "sm_<number>" of an option of the note; 0 = none.
char suffix_in(Bytes note, unsigned sm) {
  const std::string_view text(reinterpret_cast<const char*>(note.data()), note.size());
  const std::string option = "-arch sm_" + std::to_string(sm);
  const size_t at = text.find(option);
  if (at == std::string_view::npos || at + option.size() >= text.size()) return 0;
  const char letter = text[at + option.size()];
  return letter == 'a' || letter == 'f' ? letter : 0;
}

}  // namespace

void read_target_suffix(Bytes elf, Entry* entry) {
  const auto header = load<Elf64_Ehdr>(elf, 0);
  const bool new_abi = header.e_ident[EI_ABIVERSION] >= kAbiOfToolkit13;
  entry->arch_specific = header.e_flags & (new_abi ? kAccelerators : kAcceleratorsBefore);
  if (header.e_shentsize != sizeof(Elf64_Shdr) ||
      !inside(header.e_shoff, uint64_t(header.e_shnum) * sizeof(Elf64_Shdr), elf.size()))
    return;
  for (unsigned i = 0; i < header.e_shnum; i++) {
    const auto section = load<Elf64_Shdr>(elf, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type == SHT_NOBITS || !inside(section.sh_offset, section.sh_size, elf.size())) continue;
    const Bytes bytes = elf.subspan(section.sh_offset, section.sh_size);
    if (section.sh_type == kSectionCompat) entry->arch_specific |= compat_says_specific(bytes);
    if (section.sh_type != SHT_NOTE) continue;
    const char suffix = suffix_in(bytes, entry->sm);
    entry->arch_specific |= suffix == 'a';
    entry->family_specific |= suffix == 'f';
  }
  if (entry->arch_specific) entry->family_specific = false;
}

}  // namespace tessera::image
