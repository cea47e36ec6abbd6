#include "kernels/image/cubin_file.h"

#include <algorithm>

namespace tessera::image {
namespace {

constexpr uint64_t kMostAlignment = 1 << 20;

base::Error bad(const char* what) {
  return base::error(base::Code::kInvalid, std::string("cubin: ") + what);
}

}  // namespace

CubinSection* CubinFile::find(std::string_view name) {
  const auto found =
      std::find_if(sections.begin(), sections.end(), [&](const auto& s) { return s.name == name; });
  return found == sections.end() ? nullptr : &*found;
}

base::Result<CubinFile> parse_cubin_file(Bytes elf) {
  if (!is_cubin(elf)) return bad("not machine code");
  CubinFile file;
  file.header = load<Elf64_Ehdr>(elf, 0);
  const Elf64_Ehdr& h = file.header;
  if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shstrndx >= h.e_shnum ||
      !inside(h.e_shoff, uint64_t(h.e_shnum) * sizeof(Elf64_Shdr), elf.size()))
    return bad("the section table lies outside the image");
  if ((h.e_phnum && h.e_phentsize != sizeof(Elf64_Phdr)) ||
      !inside(h.e_phoff, uint64_t(h.e_phnum) * sizeof(Elf64_Phdr), elf.size()))
    return bad("the program headers lie outside the image");
  for (uint64_t i = 0; i < h.e_shnum; ++i) {
    CubinSection s;
    s.header = load<Elf64_Shdr>(elf, h.e_shoff + i * sizeof(Elf64_Shdr));
    const uint64_t bytes = bytes_in_file(s.header);
    if (s.header.sh_addralign > kMostAlignment || !inside(s.header.sh_offset, bytes, elf.size()))
      return bad("a section lies outside the image");
    const Bytes view = elf.subspan(s.header.sh_offset, bytes);
    s.bytes.assign(view.begin(), view.end());
    file.sections.push_back(std::move(s));
  }
  const std::vector<uint8_t> names = file.sections[h.e_shstrndx].bytes;
  for (CubinSection& s : file.sections) {
    if (s.header.sh_name >= names.size()) continue;
    const char* begin = reinterpret_cast<const char*>(names.data()) + s.header.sh_name;
    s.name.assign(begin, strnlen(begin, names.size() - s.header.sh_name));
  }
  for (uint64_t i = 0; i < h.e_phnum; ++i)
    file.segments.push_back(load<Elf64_Phdr>(elf, h.e_phoff + i * sizeof(Elf64_Phdr)));
  return file;
}

}  // namespace tessera::image
