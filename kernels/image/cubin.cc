#include "kernels/image/cubin.h"

#include <elf.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "kernels/image/attributes.h"
#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

constexpr uint8_t kCudaEntry = 0x10;    // st_other of kernels
constexpr uint8_t kCudaManaged = 0x04;  // st_other of managed variables
constexpr uint64_t kMaxSymbols = 1u << 24;

// Attributes that occur in the code of current compilers and change nothing that is reported here.
// clang-format off
constexpr uint8_t kKnown[] = {
    0x04, kMaxThreads, kParamCbank, 0x0f, kFrameSize, kMinStack, kKparamInfo, 0x18, kCbankParamSize,
    0x1b, 0x1c, 0x1d, 0x1e, 0x23, 0x25, 0x27, 0x28, 0x29, 0x2a, 0x2b, kRegcount, 0x31, 0x34, 0x36, 0x37, 0x39,
    kCtaPerCluster, kExplicitCluster, kMaxClusterRank, 0x44, kKparamInfoV2, 0x46, 0x47, 0x4a, kNumBarriers,
    0x50, 0x54, 0x55, 0x57, 0x59, 0x5f};
// clang-format on

base::Error bad(const char* what) {
  return base::error(base::Code::kInvalid, std::string("cubin: ") + what);
}

class Reader {
 public:
  explicit Reader(Bytes elf) : elf_(elf) {}

  base::Result<std::vector<CubinKernel>> run() {
    if (!sections()) return bad("the section table lies outside the image");
    for (const Section& s : sections_)
      if (s.header.sh_type == SHT_SYMTAB && !symbols(s))
        return bad("the symbol table lies outside the image");
    for (const Section& s : sections_)
      if (!section(s)) return bad("an attribute record is cut off");
    return std::move(kernels_);
  }

  // True also if it cannot be read.
  bool has_managed_variable() {
    if (!sections()) return true;
    return std::any_of(sections_.begin(), sections_.end(), [](const Section& s) {
      for (uint64_t i = 0; s.header.sh_type == SHT_SYMTAB && i < s.bytes.size() / sizeof(Elf64_Sym); ++i) {
        const auto symbol = load<Elf64_Sym>(s.bytes, i * sizeof(Elf64_Sym));
        if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && (symbol.st_other & kCudaManaged)) return true;
      }
      return false;
    });
  }

 private:
  struct Section {
    Elf64_Shdr header;
    std::string_view name;
    Bytes bytes;
  };

  std::string_view text_at(Bytes table, uint64_t at) const {
    if (at >= table.size()) return {};
    const char* begin = reinterpret_cast<const char*>(table.data()) + at;
    return {begin, strnlen(begin, table.size() - at)};
  }

  bool sections() {
    const auto header = load<Elf64_Ehdr>(elf_, 0);
    const uint64_t n = header.e_shnum;
    if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= n ||
        !inside(header.e_shoff, n * sizeof(Elf64_Shdr), elf_.size()))
      return false;
    for (uint64_t i = 0; i < n; ++i) {
      Section s;
      s.header = load<Elf64_Shdr>(elf_, header.e_shoff + i * sizeof(Elf64_Shdr));
      if (s.header.sh_type != SHT_NOBITS && inside(s.header.sh_offset, s.header.sh_size, elf_.size()))
        s.bytes = elf_.subspan(s.header.sh_offset, s.header.sh_size);
      sections_.push_back(s);
    }
    const Bytes names = sections_[header.e_shstrndx].bytes;
    for (Section& s : sections_) s.name = text_at(names, s.header.sh_name);
    return true;
  }

  bool symbols(const Section& table) {
    const uint64_t n = table.bytes.size() / sizeof(Elf64_Sym);
    if (table.header.sh_link >= sections_.size() || n > kMaxSymbols) return false;
    const Bytes names = sections_[table.header.sh_link].bytes;
    for (uint64_t i = 0; i < n; ++i) {
      const auto symbol = load<Elf64_Sym>(table.bytes, i * sizeof(Elf64_Sym));
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(symbol.st_other & kCudaEntry)) continue;
      CubinKernel kernel;
      kernel.name = text_at(names, symbol.st_name);
      kernel.code_bytes = symbol.st_size;
      by_symbol_[i] = by_name_[kernel.name] = kernels_.size();
      kernels_.push_back(std::move(kernel));
    }
    return true;
  }

  CubinKernel* kernel_of(std::string_view section, std::string_view prefix) {
    if (!section.starts_with(prefix)) return nullptr;
    auto found = by_name_.find(std::string(section.substr(prefix.size())));
    return found == by_name_.end() ? nullptr : &kernels_[found->second];
  }

  bool section(const Section& s) {
    if (CubinKernel* k = kernel_of(s.name, ".text.")) {
      // Upper byte of sh_info: registers, where no attribute says them.
      if (k->registers == 0) k->registers = s.header.sh_info >> 24;
    } else if ((k = kernel_of(s.name, ".nv.shared."))) {
      k->shared_bytes = s.header.sh_size;
    } else if ((k = kernel_of(s.name, ".nv.constant0."))) {
      k->constant_bytes = s.header.sh_size;
    } else if ((k = kernel_of(s.name, ".nv.info."))) {
      return of_kernel(s.bytes, k);
    } else if (s.name == ".nv.info") {
      return of_module(s.bytes);
    }
    return true;
  }

  bool of_module(Bytes bytes) {
    Attributes a(bytes);
    while (a.next()) {
      if (a.code != kRegcount || a.payload.size() < 8) continue;
      auto found = by_symbol_.find(load<uint32_t>(a.payload, 0));
      if (found != by_symbol_.end()) kernels_[found->second].registers = load<uint32_t>(a.payload, 4);
    }
    return !a.broken;
  }

  bool of_kernel(Bytes bytes, CubinKernel* k) {
    Attributes a(bytes);
    while (a.next()) {
      if (a.code == kCbankParamSize) k->param_bytes = a.value;
      if (a.code == kNumBarriers) k->barriers = a.value & 0xff;
      if (a.code == kCtaPerCluster || a.code == kExplicitCluster || a.code == kMaxClusterRank)
        k->cluster = true;
      if (a.code == kCtaPerCluster && a.payload.size() >= 12)
        for (size_t i = 0; i < 3; ++i) k->cluster_shape[i] = load<uint32_t>(a.payload, 4 * i);
      if (a.code == kMaxClusterRank && a.payload.size() >= 4)
        k->max_cluster_rank = load<uint32_t>(a.payload, 0);
      if (a.code == kMaxThreads && a.payload.size() >= 12)
        k->max_threads =
            load<uint32_t>(a.payload, 0) * load<uint32_t>(a.payload, 4) * load<uint32_t>(a.payload, 8);
      // u32 index of the bank, u16 ordinal, u16 offset, u32 with the size: in bits 18..31, in the second form alone.
      if ((a.code == kKparamInfo || a.code == kKparamInfoV2) && a.payload.size() >= 12)
        k->parameters.push_back({load<uint16_t>(a.payload, 4), load<uint16_t>(a.payload, 6),
                                 load<uint32_t>(a.payload, 8) >> (a.code == kKparamInfo ? 18 : 0)});
      const bool known = std::find(std::begin(kKnown), std::end(kKnown), a.code) != std::end(kKnown);
      auto& unknown = k->unknown_attributes;
      if (!known && std::find(unknown.begin(), unknown.end(), a.code) == unknown.end())
        unknown.push_back(a.code);
    }
    std::sort(k->parameters.begin(), k->parameters.end(),
              [](const CubinParameter& x, const CubinParameter& y) { return x.index < y.index; });
    return !a.broken;
  }

  Bytes elf_;
  std::vector<Section> sections_;
  std::vector<CubinKernel> kernels_;
  std::map<uint64_t, size_t> by_symbol_;
  std::map<std::string, size_t> by_name_;
};

}  // namespace

base::Result<std::vector<CubinKernel>> cubin_kernels(std::span<const uint8_t> code) {
  if (!is_cubin(code)) return bad("not machine code");
  return Reader(code).run();
}

bool has_managed_variable(EntryKind kind, Bytes payload) {
  switch (kind) {
    case EntryKind::kPtx: {
      const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
      return text.find(".managed") != text.npos;
    }
    case EntryKind::kCubin:
      return !is_cubin(payload) || Reader(payload).has_managed_variable();
    case EntryKind::kOther:
      return false;
  }
  return false;
}

}  // namespace tessera::image
