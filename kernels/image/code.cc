#include "kernels/image/code.h"

#include <elf.h>

#include <charconv>
#include <cstring>
#include <string>

#include "kernels/image/attributes.h"
#include "kernels/image/cubin_file.h"

namespace tessera::image {
namespace {

std::string symbol_name(const CubinFile& file, const CubinSection& relocations, uint64_t index) {
  if (relocations.header.sh_link >= file.sections.size()) return {};
  const CubinSection& table = file.sections[relocations.header.sh_link];
  if (!inside(index * sizeof(Elf64_Sym), sizeof(Elf64_Sym), table.bytes.size()) ||
      table.header.sh_link >= file.sections.size())
    return {};
  const auto symbol = load<Elf64_Sym>(table.bytes, index * sizeof(Elf64_Sym));
  const std::vector<uint8_t>& names = file.sections[table.header.sh_link].bytes;
  if (symbol.st_name >= names.size()) return {};
  const char* begin = reinterpret_cast<const char*>(names.data()) + symbol.st_name;
  return {begin, strnlen(begin, names.size() - symbol.st_name)};
}

std::vector<Relocation> relocations_of(const CubinFile& file, const CubinSection& section) {
  std::vector<Relocation> all;
  const auto index = uint64_t(&section - file.sections.data());
  for (const CubinSection& s : file.sections) {
    const bool with_addend = s.header.sh_type == SHT_RELA;
    if ((!with_addend && s.header.sh_type != SHT_REL) || s.header.sh_info != index) continue;
    const size_t entry = with_addend ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
    for (uint64_t at = 0; at + entry <= s.bytes.size(); at += entry) {
      const auto r = load<Elf64_Rel>(s.bytes, at);
      all.push_back({r.r_offset, uint32_t(ELF64_R_TYPE(r.r_info)),
                     symbol_name(file, s, ELF64_R_SYM(r.r_info)),
                     with_addend ? load<Elf64_Rela>(s.bytes, at).r_addend : 0});
    }
  }
  return all;
}

// ".nv.constant2.KERNEL" or ".nv.constant3", which all kernels of the file share.
bool bank_number(std::string_view section, std::string_view kernel, uint8_t* number) {
  constexpr std::string_view kPrefix = ".nv.constant";
  if (!section.starts_with(kPrefix)) return false;
  section.remove_prefix(kPrefix.size());
  const auto [end, error] = std::from_chars(section.data(), section.data() + section.size(), *number);
  const std::string_view rest = section.substr(size_t(end - section.data()));
  return error == std::errc() && *number != 0 && (rest.empty() || rest == "." + std::string(kernel));
}

}  // namespace

base::Result<KernelCode> kernel_code(std::span<const uint8_t> cubin, std::string_view kernel) {
  const auto bad = [](const char* what) {
    return base::error(base::Code::kInvalid, std::string("code of a kernel: ") + what);
  };
  if (!is_cubin(cubin) || is_relocatable(cubin)) return bad("not linked machine code");
  auto entry = list_cubin(cubin);
  if (!entry) return entry.error();
  auto file = parse_cubin_file(cubin);
  if (!file) return file.error();
  const std::string name(kernel);
  const CubinSection *text = file->find(".text." + name), *info = file->find(".nv.info." + name);
  if (!text || !info) return base::error(base::Code::kNotFound, "code of a kernel: there is no " + name);
  KernelCode out;
  out.sm = entry->sm;
  out.code = text->bytes;
  out.relocations = relocations_of(*file, *text);
  Attributes a(info->bytes);
  while (a.next()) {
    if (a.code == kParamCbank && a.payload.size() >= 8) {  // u32 symbol of the bank, u16 offset, u16 bytes
      out.param_base = load<uint16_t>(a.payload, 4);
      out.param_bytes = load<uint16_t>(a.payload, 6);
    }
    if (a.code == kRequiredThreads && a.payload.size() == sizeof out.required_threads)
      out.required_threads = load<std::array<uint32_t, 3>>(a.payload, 0);
  }
  if (a.broken) return bad("its attributes");
  for (const CubinSection& s : file->sections) {
    ConstantBank bank;
    if (!bank_number(s.name, kernel, &bank.number)) continue;
    bank.bytes = s.bytes;
    bank.relocations = relocations_of(*file, s);
    out.banks.push_back(std::move(bank));
  }
  return out;
}

}  // namespace tessera::image
