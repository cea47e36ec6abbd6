#include "cli/doctor/elf.h"

#include <gelf.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "base/user_file.h"

namespace tessera::cli {
namespace {

constexpr std::string_view kDriver = "libcuda.so";

void add_driver_names(std::string_view data, std::vector<std::string>& out) {
  for (size_t at = data.find(kDriver); at != std::string_view::npos; at = data.find(kDriver, at + 1)) {
    const size_t before = data.find_last_of(std::string_view("\0", 1), at);
    const size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::string_view text = data.substr(begin, data.find('\0', at) - begin);
    if (text.size() > 256 || text.find_first_of(" \n%\"") != std::string_view::npos)
      continue;  // prose, a format
    if (std::find(out.begin(), out.end(), text) == out.end()) out.emplace_back(text);
  }
}

void read_dynamic(Elf* elf, Elf_Scn* section, const GElf_Shdr& header, ElfFacts& out) {
  Elf_Data* data = elf_getdata(section, nullptr);
  GElf_Dyn entry;
  for (int i = 0; data && gelf_getdyn(data, i, &entry) && entry.d_tag != DT_NULL; i++) {
    const bool path = entry.d_tag == DT_RUNPATH || (entry.d_tag == DT_RPATH && out.run_path.empty());
    if (entry.d_tag != DT_NEEDED && !path) continue;
    const char* text = elf_strptr(elf, header.sh_link, entry.d_un.d_val);
    if (!text) continue;
    if (path)
      out.run_path = text;
    else
      out.needed.push_back(text);
  }
}

void add_exports(Elf* elf, Elf_Scn* section, const GElf_Shdr& header, std::vector<std::string>& out) {
  Elf_Data* data = elf_getdata(section, nullptr);
  GElf_Sym symbol;
  for (int i = 0; data && gelf_getsym(data, i, &symbol); i++) {
    const int type = GELF_ST_TYPE(symbol.st_info);
    if (symbol.st_shndx == SHN_UNDEF || GELF_ST_BIND(symbol.st_info) != STB_GLOBAL) continue;
    if (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE) continue;  // assembly may say none
    if (const char* name = elf_strptr(elf, header.sh_link, symbol.st_name)) out.emplace_back(name);
  }
}

using OpenElf = std::unique_ptr<Elf, int (*)(Elf*)>;
base::Result<OpenElf> open_elf(int fd, const std::string& path) {
  elf_version(EV_CURRENT);
  OpenElf elf(elf_begin(fd, ELF_C_READ_MMAP, nullptr), elf_end);
  if (!elf || elf_kind(elf.get()) != ELF_K_ELF)
    return base::error(base::Code::kUnsupported, path + " is no ELF file");
  return elf;
}

std::string text_at(int fd, const GElf_Phdr& segment) {
  char text[PATH_MAX] = "";
  const size_t bytes = std::min<size_t>(segment.p_filesz, sizeof text - 1);
  return pread(fd, text, bytes, off_t(segment.p_offset)) > 0 ? text : "?";
}

}  // namespace

base::Result<ElfFacts> read_elf(const std::string& path, DriverNames driver_names) {
  const auto fd = base::open_to_read(path);
  if (!fd) return fd.error();
  const auto opened = open_elf(fd->get(), path);
  if (!opened) return opened.error();
  const OpenElf& elf = *opened;
  GElf_Ehdr header;
  if (!gelf_getehdr(elf.get(), &header))
    return base::error(base::Code::kUnsupported, path + " is no ELF file");
  ElfFacts out;
  out.shared = header.e_type == ET_DYN;
  size_t segments = 0, names = 0;
  elf_getphdrnum(elf.get(), &segments);
  GElf_Phdr segment;
  for (size_t i = 0; i < segments; i++)
    if (gelf_getphdr(elf.get(), int(i), &segment) && segment.p_type == PT_INTERP)
      out.interpreter = text_at(fd->get(), segment);
  elf_getshdrstrndx(elf.get(), &names);
  Elf_Scn* section = nullptr;
  while ((section = elf_nextscn(elf.get(), section))) {
    GElf_Shdr at;
    if (!gelf_getshdr(section, &at)) continue;
    const char* given = elf_strptr(elf.get(), names, at.sh_name);
    const std::string_view name = given ? given : "";
    if (at.sh_type == SHT_DYNAMIC) read_dynamic(elf.get(), section, at, out);
    if (name == ".nv_fatbin" || name == "__nv_relfatbin") out.gpu_code = true;
    if (driver_names == DriverNames::kSkip || (name != ".rodata" && name != ".data")) continue;
    if (Elf_Data* data = elf_rawdata(section, nullptr); data && data->d_buf)
      add_driver_names({static_cast<const char*>(data->d_buf), data->d_size}, out.driver_names);
  }
  return out;
}

base::Result<std::vector<std::string>> exported_functions(const std::string& path) {
  const auto fd = base::open_to_read(path);
  if (!fd) return fd.error();
  const auto elf = open_elf(fd->get(), path);
  if (!elf) return elf.error();
  std::vector<std::string> out;
  Elf_Scn* section = nullptr;
  GElf_Shdr header;
  while ((section = elf_nextscn(elf->get(), section)))
    if (gelf_getshdr(section, &header) && header.sh_type == SHT_DYNSYM)
      add_exports(elf->get(), section, header, out);
  return out;
}

}  // namespace tessera::cli
