#include "tests/device/prologue/prologue.h"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/image/attributes.h"
#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
#include "tests/device/prologue/code.h"
#include "tests/device/prologue/entry.h"
#include "tests/device/prologue/write_cubin.h"

namespace tessera::image {
namespace {

template <class T>
void append(std::vector<uint8_t>* out, const T& value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof value);
}

void append_record(std::vector<uint8_t>* out, uint8_t code, Bytes payload) {
  append(out, uint8_t{4});
  append(out, code);
  append(out, uint16_t(payload.size()));
  out->insert(out->end(), payload.begin(), payload.end());
}

void append_words(std::vector<uint8_t>* out, uint8_t code, const std::vector<uint32_t>& values) {
  std::vector<uint8_t> payload;
  for (const uint32_t value : values) append(&payload, value);
  append_record(out, code, payload);
}

Bytes symbol_table(CubinFile* file) {
  for (const CubinSection& s : file->sections)
    if (s.header.sh_type == SHT_SYMTAB) return s.bytes;
  return {};
}

// A symbol by index; out of range: none.
Elf64_Sym symbol(Bytes table, uint64_t index) {
  return inside(index * sizeof(Elf64_Sym), sizeof(Elf64_Sym), table.size())
             ? load<Elf64_Sym>(table, index * sizeof(Elf64_Sym))
             : Elf64_Sym{};
}

// A rule says what becomes of an attribute of a kernel.
enum class Rule : uint8_t {
  kKeep,
  kExits,               // places of instructions, to which those of the check are added
  kOffsets,             // places of instructions
  kOffsetsInRecords,    // records of kRecordBytes that begin with the place of an instruction
  kBranches,            // jumps through tables, with their targets
  kParameter,           // one each
  kParameterBytes,      // of all of them
  kParameterBank,       // where they are
  kKeepsRegisterCount,  // the kernel hands registers from warp to warp: their number at the launch must stay
};
struct AttributeRule {
  uint8_t attribute;
  Rule rule;
};
// clang-format off
constexpr AttributeRule kRules[] = {
    {kMaxThreads, Rule::kKeep},
    {kParamCbank, Rule::kParameterBank},
    {kRequiredThreads, Rule::kKeep},
    {kKparamInfo, Rule::kParameter},
    {kCbankParamSize, Rule::kParameterBytes},
    {kMaxregCount, Rule::kKeep},
    {kExitOffsets, Rule::kExits},
    {kCrsStackSize, Rule::kKeep},
    {kCoopGroupOffsets, Rule::kOffsets},
    {kCoopGroupMasks, Rule::kKeep},
    {kWarpWideOffsets, Rule::kOffsets},
    {kIndirectBranches, Rule::kBranches},
    {kApiVersion, Rule::kKeep},
    {kMbarrierCount, Rule::kKeep},
    {kMbarrierOffsets, Rule::kOffsetsInRecords},
    {kCtaPerCluster, Rule::kKeep},
    {kExplicitCluster, Rule::kKeep},
    {kMaxClusterRank, Rule::kKeep},
    {kKparamInfoV2, Rule::kParameter},
    {kNumBarriers, Rule::kKeep},
    {kSparseMask, Rule::kKeep},
    {kRegisterReconfiguration, Rule::kKeepsRegisterCount},
    {kMercuryVersion, Rule::kKeep},
};
// clang-format on
constexpr uint32_t kRecordBytes = 16;
// Parameters of more bytes are described in another form, and a kernel has either.
constexpr uint32_t kMostBytesOfFirstForm = 4096, kMostBytes = 32764;
// A plain parameter of four bytes in the first form, as ptxas describes it.
constexpr uint32_t kPlainWord = 4 << 18 | 0x1f000;

// The edit of one kernel.
class Editor {
 public:
  Editor(CubinFile* file, const CubinKernel& kernel, const Prologue& prologue)
      : file_(*file),
        kernel_(kernel.name),
        prologue_(prologue),
        shift_(uint32_t(prologue.code.size())),
        own_parameters_(uint16_t(kernel.parameters.size())),
        own_bytes_(kernel.param_bytes),
        all_bytes_(range_offset(own_bytes_) + kRangeBytes),
        registers_(kernel.registers) {}

  base::Status run() {
    text_ = file_.find(".text." + kernel_);
    if (!text_ || text_->bytes.size() % kInstructionBytes) return bad("no code of " + kernel_);
    text_index_ = uint64_t(text_ - file_.sections.data());
    for (auto step : {&Editor::sections_are_known, &Editor::constants, &Editor::symbols, &Editor::relocations,
                      &Editor::attributes_of_module, &Editor::attributes_of_kernel, &Editor::code})
      if (base::Status s = (this->*step)(); !s.ok()) return s;
    return base::ok();
  }

 private:
  // Refuses sections that name places in the code in ways that are not read here.
  base::Status sections_are_known() {
    for (const CubinSection& s : file_.sections)
      if (s.name.starts_with(".nv.capmerc") ||
          ((s.name.starts_with(".nv_debug") || s.name.starts_with(".debug_")) && !is_kept_debugging(s.name)))
        return refused("section " + s.name);
    return base::ok();
  }

  // The bank ends with the parameters.
  base::Status constants() {
    bank_ = file_.find(".nv.constant0." + kernel_);
    if (!bank_ || bank_->bytes.size() < own_bytes_) return bad("no constant bank of " + kernel_);
    param_base_ = uint32_t(bank_->bytes.size()) - own_bytes_;
    bank_->bytes.resize(param_base_ + all_bytes_);
    return base::ok();
  }

  base::Status symbols() {
    for (CubinSection& table : file_.sections) {
      if (table.header.sh_type != SHT_SYMTAB) continue;
      for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.bytes.size(); at += sizeof(Elf64_Sym)) {
        auto s = load<Elf64_Sym>(table.bytes, at);
        if (s.st_shndx != text_index_ || ELF64_ST_TYPE(s.st_info) == STT_SECTION) continue;
        if (s.st_value == 0 && s.st_size == text_->bytes.size())
          s.st_size += shift_;  // the kernel
        else if (s.st_value == 0)
          return refused("a symbol at the start of " + kernel_ + " that is not the kernel");
        else
          s.st_value += shift_;
        std::memcpy(table.bytes.data() + at, &s, sizeof s);
      }
    }
    return base::ok();
  }

  // Relocations of the code move with it. Those that name its start mean the place where the code began: sections for
  // debuggers do; what else would is not known.
  base::Status relocations() {
    const Bytes table = symbol_table(&file_);
    for (CubinSection& s : file_.sections) {
      if (s.header.sh_type == SHT_REL && s.header.sh_size) return refused("section " + s.name);
      if (s.header.sh_type != SHT_RELA) continue;
      for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= s.bytes.size(); at += sizeof(Elf64_Rela)) {
        auto r = load<Elf64_Rela>(s.bytes, at);
        const Elf64_Sym target = symbol(table, ELF64_R_SYM(r.r_info));
        if (s.header.sh_info == text_index_) r.r_offset += shift_;
        if (target.st_shndx == text_index_ && target.st_value == 0) {
          if (!relocates_debugging(s.name))
            return refused("a relocation that names " + kernel_ + " in " + s.name);
          r.r_addend += shift_;
        }
        std::memcpy(s.bytes.data() + at, &r, sizeof r);
      }
    }
    return base::ok();
  }

  base::Status attributes_of_module() {
    CubinSection* info = file_.find(".nv.info");
    if (!info) return bad("no .nv.info");
    std::vector<uint8_t> out;
    const std::vector<uint8_t> before = info->bytes;
    Attributes a(before);
    const Bytes table = symbol_table(&file_);
    while (a.next())
      if (a.code == kRegcount && a.payload.size() == 8 &&
          symbol(table, load<uint32_t>(a.payload, 0)).st_shndx == text_index_)
        append_words(
            &out, a.code,
            {load<uint32_t>(a.payload, 0), std::max(load<uint32_t>(a.payload, 4), prologue_.registers)});
      else
        copy(a, &out);
    if (a.broken) return bad("an attribute record is cut off");
    info->bytes = out;
    return base::ok();
  }

  base::Status attributes_of_kernel() {
    CubinSection* info = file_.find(".nv.info." + kernel_);
    if (!info) return bad("no attributes of " + kernel_);
    const std::vector<uint8_t> before = info->bytes;
    info->bytes.clear();
    Attributes a(before);
    while (a.next())
      if (base::Status s = attribute(a, &info->bytes); !s.ok()) return s;
    if (a.broken) return bad("an attribute record is cut off");
    if (!has_exits_) return refused(kernel_ + " does not say where it ends");
    if (!own_parameters_) return first_parameters(&info->bytes);
    return has_parameters_ && has_bank_ ? base::ok()
                                        : base::Status(refused(kernel_ + " does not say its parameters"));
  }

  base::Status attribute(const Attributes& a, std::vector<uint8_t>* out) {
    const auto* found = std::find_if(std::begin(kRules), std::end(kRules),
                                     [&](const AttributeRule& r) { return r.attribute == a.code; });
    if (found == std::end(kRules)) {
      const auto& known = prologue_.attributes;
      if (std::find(known.begin(), known.end(), record(a)) == known.end())
        return refused("attribute " + std::to_string(a.code));
      copy(a, out);
      return base::ok();
    }
    switch (found->rule) {
      case Rule::kKeep:
        copy(a, out);
        return base::ok();
      case Rule::kExits:
        has_exits_ = true;
        return offsets(a, prologue_.exits, 4, out);
      case Rule::kOffsets:
        return offsets(a, {}, 4, out);
      case Rule::kOffsetsInRecords:
        return offsets(a, {}, kRecordBytes, out);
      case Rule::kBranches:
        return branches(a, out);
      case Rule::kParameter: {  // from the last one to the first
        if (!has_parameters_)
          if (base::Status s = append_range(a.code, out); !s.ok()) return s;
        has_parameters_ = true;
        copy(a, out);
        return base::ok();
      }
      case Rule::kParameterBytes:
        append_size(out);
        return base::ok();
      case Rule::kParameterBank:  // symbol, u16 offset, u16 size
        if (a.payload.size() != 8 || load<uint16_t>(a.payload, 4) != param_base_)
          return refused("the constant bank of " + kernel_ + " holds more than parameters");
        has_bank_ = true;
        append_words(out, a.code, {load<uint32_t>(a.payload, 0), param_base_ | all_bytes_ << 16});
        return base::ok();
      case Rule::kKeepsRegisterCount:
        if (registers_ < prologue_.registers)
          return refused("its warps share registers, and the check needs more than they begin with");
        copy(a, out);
        return base::ok();
    }
    return base::ok();
  }

  base::Status offsets(const Attributes& a, const std::vector<uint32_t>& first, uint32_t record_bytes,
                       std::vector<uint8_t>* out) {
    if (a.form != 4 || a.payload.size() % record_bytes) return bad("offsets of instructions");
    std::vector<uint32_t> all = words(a.payload);
    for (size_t i = 0; i < all.size(); i += record_bytes / 4)
      if (base::Status s = shift(&all[i]); !s.ok()) return s;
    all.insert(all.begin(), first.begin(), first.end());
    if (all.size() * 4 > UINT16_MAX) return refused("too many instructions in a list");
    append_words(out, a.code, all);
    return base::ok();
  }

  // An attribute with another number in it is not what it was taken for.
  base::Status shift(uint32_t* offset) const {
    if (*offset % kInstructionBytes || *offset >= text_->bytes.size())
      return refused("an attribute names a place that is no instruction");
    *offset += shift_;
    return base::ok();
  }

  // Each: place of the branch, 0, number of targets, the targets.
  base::Status branches(const Attributes& a, std::vector<uint8_t>* out) {
    std::vector<uint32_t> all = words(a.payload);
    for (size_t i = 0; i < all.size();) {
      if (all.size() - i < 3 || all[i + 1] != 0 || all[i + 2] > all.size() - i - 3)
        return bad("targets of a branch");
      const size_t end = i + 3 + all[i + 2];
      if (base::Status s = shift(&all[i]); !s.ok()) return s;
      for (i += 3; i < end; ++i)
        if (base::Status s = shift(&all[i]); !s.ok()) return s;
    }
    append_words(out, a.code, all);
    return base::ok();
  }

  // The two words of the range, numbered behind the kernel's own, in the form of those: u32 0, u16 ordinal, u16 offset, and
  // the bytes with flags or alone.
  base::Status append_range(uint8_t form, std::vector<uint8_t>* out) {
    const bool first_form = form == kKparamInfo;
    if (all_bytes_ > (first_form ? kMostBytesOfFirstForm : kMostBytes))
      return refused("parameters of " + std::to_string(own_bytes_) + " bytes leave no room for a range");
    for (const uint32_t i : {1u, 0u}) {
      const uint32_t ordinal = own_parameters_ + i, offset = range_offset(own_bytes_) + 4 * i;
      append_words(out, form, {0, ordinal | offset << 16, first_form ? kPlainWord : 4});
    }
    return base::ok();
  }

  void append_size(std::vector<uint8_t>* out) {
    append(out, uint8_t{3});
    append(out, uint8_t{kCbankParamSize});
    append(out, uint16_t(all_bytes_));
  }

  // Describes the range of a kernel that had no parameters.
  base::Status first_parameters(std::vector<uint8_t>* out) {
    const auto bank_index = uint64_t(bank_ - file_.sections.data());
    const Bytes table = symbol_table(&file_);
    for (uint32_t i = 0; i < table.size() / sizeof(Elf64_Sym); ++i) {
      const Elf64_Sym s = symbol(table, i);
      if (s.st_shndx != bank_index || ELF64_ST_TYPE(s.st_info) != STT_SECTION) continue;
      if (base::Status status = append_range(kKparamInfo, out); !status.ok()) return status;
      append_size(out);
      append_words(out, kParamCbank, {i, param_base_ | all_bytes_ << 16});
      return base::ok();
    }
    return refused("no symbol stands for the constant bank of " + kernel_);
  }

  static void copy(const Attributes& a, std::vector<uint8_t>* out) {
    const std::vector<uint8_t> whole = record(a);
    out->insert(out->end(), whole.begin(), whole.end());
  }

  base::Status code() {
    const auto code = fitted_code(prologue_, param_base_ + range_offset(own_bytes_));
    if (!code.ok()) return code.error();
    text_->bytes.insert(text_->bytes.begin(), code->begin(), code->end());
    // Before sm_90 the registers stand here, too.
    const uint32_t registers = std::max(text_->header.sh_info >> 24, prologue_.registers);
    if (text_->header.sh_info >> 24)
      text_->header.sh_info = (text_->header.sh_info & 0xffffff) | registers << 24;
    return base::ok();
  }

  CubinFile& file_;
  const std::string kernel_;
  const Prologue& prologue_;
  const uint32_t shift_;
  const uint16_t own_parameters_;
  const uint32_t own_bytes_, all_bytes_;  // of parameters
  const uint32_t registers_;
  CubinSection *text_ = nullptr, *bank_ = nullptr;
  uint64_t text_index_ = 0;
  uint32_t param_base_ = 0;
  bool has_parameters_ = false, has_bank_ = false, has_exits_ = false;
};

// Places in the code as the attribute says; the Editor refuses what does not hold together.
IndirectBranches indirect_branches(CubinFile* file, const std::string& kernel) {
  IndirectBranches out;
  const CubinSection* info = file->find(".nv.info." + kernel);
  if (!info) return out;
  Attributes a(info->bytes);
  while (a.next()) {
    if (a.code != kIndirectBranches) continue;
    const std::vector<uint32_t> all = words(a.payload);
    for (size_t i = 0; i + 3 <= all.size() && all[i + 2] <= all.size() - i - 3; i += 3 + all[i + 2])
      out[all[i]].assign(all.begin() + int64_t(i) + 3, all.begin() + int64_t(i) + 3 + all[i + 2]);
  }
  return out;
}

}  // namespace

base::Result<std::vector<uint8_t>> prepend(Bytes cubin, std::string_view kernel, const Prologue& prologue) {
  auto sm = target_of(cubin);
  if (!sm.ok()) return sm.error();
  if (*sm != prologue.sm) return refused("the template is for sm_" + std::to_string(prologue.sm));
  auto kernels = cubin_kernels(cubin);
  if (!kernels.ok()) return kernels.error();
  auto file = parse_cubin_file(cubin);
  if (!file.ok()) return file.error();
  const auto found =
      std::find_if(kernels->begin(), kernels->end(), [&](const CubinKernel& k) { return k.name == kernel; });
  if (found == kernels->end())
    return base::error(base::Code::kNotFound, "prologue: no kernel is called " + std::string(kernel));
  if (found->cluster && prologue.unit != RangeOf::kClusters)
    return refused(found->name + " is launched in clusters, and the range counts blocks");
  auto code = kernel_code(cubin, kernel);
  if (!code.ok()) return code.error();
  if (base::Status s = can_bear(*code, indirect_branches(&*file, found->name), prologue); !s.ok())
    return s.error();
  if (base::Status edited = Editor(&*file, *found, prologue).run(); !edited.ok()) return edited.error();
  return write_cubin_file(*file);
}

}  // namespace tessera::image
