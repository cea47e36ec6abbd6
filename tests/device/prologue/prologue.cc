#include "tests/device/prologue/prologue.h"

#include <algorithm>
#include <string>

#include "kernels/image/attributes.h"
#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
#include "tests/device/prologue/write_cubin.h"

namespace tessera::image {
namespace {

base::Error bad(std::string what) {
  return base::error(base::Code::kInvalid, "prologue: " + std::move(what));
}
base::Error refused(std::string what) {
  return base::error(base::Code::kUnsupported, "prologue: " + std::move(what));
}

// One instruction of sm_70 and newer, as far as it has to be read. Nothing is ever encoded here.
class Instruction {
 public:
  Instruction(Bytes code, uint64_t offset)
      : low_(load<uint64_t>(code, offset)), high_(load<uint64_t>(code, offset + 8)) {}
  bool is_exit() const { return (low_ & 0xfff) == 0x94d; }
  bool is_nop() const { return (low_ & 0xfff) == 0x918; }
  bool conditional() const { return ((low_ >> 12) & 7) != 7; }
  // Scoreboards, as the scheduling bits say: the one it sets when its result is there, the one it sets when
  // its operands are read (7: none), and those that it waits for.
  unsigned result_scoreboard() const { return (high_ >> 46) & 7; }
  unsigned operand_scoreboard() const { return (high_ >> 49) & 7; }
  unsigned waits() const { return (high_ >> 52) & 0x3f; }

 private:
  uint64_t low_, high_;
};

// A result that arrives after the join would overwrite a register of the kernel: each scoreboard that is set
// must be waited for by a later instruction.
bool nothing_on_its_way(Bytes code) {
  unsigned open = 0;
  for (uint64_t at = 0; at < code.size(); at += kInstructionBytes) {
    const Instruction i(code, at);
    open &= ~i.waits();
    for (const unsigned scoreboard : {i.result_scoreboard(), i.operand_scoreboard()})
      if (scoreboard < 6) open |= 1u << scoreboard;
  }
  return open == 0;
}

std::vector<uint32_t> words(Bytes payload) {
  std::vector<uint32_t> all(payload.size() / 4);
  for (size_t i = 0; i < all.size(); ++i) all[i] = load<uint32_t>(payload, 4 * i);
  return all;
}

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

// Facts of EIATTR_EXIT_INSTR_OFFSETS, EIATTR_KPARAM_INFO and the like, collected from the template.
struct TemplateFacts {
  std::vector<uint32_t> exits;
  std::vector<uint8_t> parameters, workarounds;
  bool broken = false;
};

TemplateFacts template_facts(Bytes info) {
  TemplateFacts facts;
  Attributes a(info);
  while (a.next()) {
    if (a.code == kExitOffsets) facts.exits = words(a.payload);
    if (a.code == kSoftwareWorkaround) facts.workarounds.assign(a.payload.begin(), a.payload.end());
    // The first parameter, which stands for the kernel's own, is not one of the prologue.
    if (a.code == kKparamInfo && a.payload.size() == 12 && load<uint16_t>(a.payload, 4) != 0)
      append_record(&facts.parameters, kKparamInfo, a.payload);
  }
  facts.broken = a.broken;
  return facts;
}

bool has_frame(CubinFile* file) {
  CubinSection* info = file->find(".nv.info");
  if (!info) return true;
  Attributes a(info->bytes);
  while (a.next())
    if ((a.code == kFrameSize || a.code == kMinStack) && a.payload.size() >= 8 &&
        load<uint32_t>(a.payload, 4))
      return true;
  return a.broken;
}

// The edit of one kernel.
class Editor {
 public:
  Editor(CubinFile* file, std::string_view kernel, const Prologue& prologue)
      : file_(*file), kernel_(kernel), prologue_(prologue), shift_(uint32_t(prologue.code.size())) {}

  base::Status run(const CubinKernel& kernel) {
    if (kernel.param_bytes != prologue_.own_param_bytes)
      return refused(kernel_ + " has " + std::to_string(kernel.param_bytes) +
                     " bytes of parameters, the template is for " +
                     std::to_string(prologue_.own_param_bytes));
    own_parameters_ = uint16_t(kernel.parameters.size());
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
      if (s.name.starts_with(".nv_debug") || s.name.starts_with(".nv.capmerc") ||
          (s.name.starts_with(".debug_") && s.name != ".debug_frame"))
        return refused("section " + s.name);
    return base::ok();
  }

  base::Status constants() {
    CubinSection* bank = file_.find(".nv.constant0." + kernel_);
    if (!bank) return bad("no constant bank of " + kernel_);
    const uint64_t appended = prologue_.param_bytes - prologue_.own_param_bytes;
    if (bank->bytes.size() + appended != prologue_.constant_bytes)
      return refused("the constant bank of " + kernel_ + " holds more than parameters");
    bank->bytes.resize(prologue_.constant_bytes);
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

  // Relocations of the code move with it. Those that name its start mean the place where the code began: call
  // frame information does; what else would is not known.
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
          if (s.name != ".rela.debug_frame")
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
    return has_parameters_ && has_exits_
               ? base::ok()
               : base::Status(refused(kernel_ + " does not say its parameters and exits"));
  }

  base::Status attribute(const Attributes& a, std::vector<uint8_t>* out) {
    switch (a.code) {
      case kExitOffsets:
        has_exits_ = true;
        return offsets(a, prologue_.exits, out);
      case kCoopGroupOffsets:
      case kWarpWideOffsets:
        return offsets(a, {}, out);
      case kIndirectBranches:
        return branches(a, out);
      case kKparamInfo:  // from the last parameter to the first
        if (!has_parameters_) append_parameters(out);
        has_parameters_ = true;
        copy(a, out);
        return base::ok();
      case kCbankParamSize:
        append(out, a.form);
        append(out, a.code);
        append(out, uint16_t(prologue_.param_bytes));
        return base::ok();
      case kParamCbank: {  // symbol, u16 offset, u16 size
        if (a.payload.size() != 8) return bad("the place of the parameters");
        const uint32_t offset = load<uint16_t>(a.payload, 4);
        if (offset + prologue_.param_bytes != prologue_.constant_bytes)
          return refused("the template has its parameters elsewhere");
        append_words(out, a.code, {load<uint32_t>(a.payload, 0), offset | prologue_.param_bytes << 16});
        return base::ok();
      }
      case kSoftwareWorkaround:
        if (!std::equal(a.payload.begin(), a.payload.end(), prologue_.workarounds.begin(),
                        prologue_.workarounds.end()))
          return refused("the template was compiled with other workarounds");
        copy(a, out);
        return base::ok();
      case kMaxThreads:
      case kMaxregCount:
      case kCrsStackSize:
      case kCoopGroupMasks:
      case kApiVersion:
      case kNumBarriers:
      case kSparseMask:
      case kMercuryVersion:
        copy(a, out);
        return base::ok();
      default:
        return refused("attribute " + std::to_string(a.code));
    }
  }

  base::Status offsets(const Attributes& a, std::vector<uint32_t> first, std::vector<uint8_t>* out) {
    if (a.form != 4 || a.payload.size() % 4) return bad("offsets of instructions");
    for (const uint32_t offset : words(a.payload)) first.push_back(offset + shift_);
    if (first.size() * 4 > UINT16_MAX) return refused("too many instructions in a list");
    append_words(out, a.code, first);
    return base::ok();
  }

  // Each: place of the branch, 0, number of targets, the targets.
  base::Status branches(const Attributes& a, std::vector<uint8_t>* out) {
    std::vector<uint32_t> all = words(a.payload);
    for (size_t i = 0; i < all.size();) {
      if (all.size() - i < 3 || all[i + 1] != 0 || all[i + 2] > all.size() - i - 3)
        return bad("targets of a branch");
      const size_t end = i + 3 + all[i + 2];
      all[i] += shift_;
      for (i += 3; i < end; ++i) all[i] += shift_;
    }
    append_words(out, a.code, all);
    return base::ok();
  }

  // The template's, numbered behind the kernel's own.
  void append_parameters(std::vector<uint8_t>* out) {
    Attributes a(prologue_.parameters);
    while (a.next()) {
      std::vector<uint8_t> payload(a.payload.begin(), a.payload.end());
      const uint16_t ordinal = uint16_t(load<uint16_t>(payload, 4) - 1 + own_parameters_);
      std::memcpy(payload.data() + 4, &ordinal, sizeof ordinal);
      append_record(out, a.code, payload);
    }
  }

  static void copy(const Attributes& a, std::vector<uint8_t>* out) {
    if (a.form == 4) return append_record(out, a.code, a.payload);
    append(out, a.form);
    append(out, a.code);
    append(out, a.value);
  }

  base::Status code() {
    text_->bytes.insert(text_->bytes.begin(), prologue_.code.begin(), prologue_.code.end());
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
  CubinSection* text_ = nullptr;
  uint64_t text_index_ = 0;
  uint16_t own_parameters_ = 0;
  bool has_parameters_ = false, has_exits_ = false;
};

base::Result<unsigned> target_of(Bytes cubin) {
  auto entries = list(cubin);
  if (!entries.ok()) return entries.error();
  if (entries->size() != 1 || (*entries)[0].kind != EntryKind::kCubin || (*entries)[0].relocatable)
    return bad("not linked machine code");
  return (*entries)[0].sm;
}

}  // namespace

base::Result<Prologue> lift_prologue(Bytes cubin) {
  auto sm = target_of(cubin);
  if (!sm.ok()) return sm.error();
  auto kernels = cubin_kernels(cubin);
  if (!kernels.ok()) return kernels.error();
  auto file = parse_cubin_file(cubin);
  if (!file.ok()) return file.error();
  if (kernels->size() != 1) return refused("a template has one kernel");
  const CubinKernel& kernel = (*kernels)[0];
  const CubinSection *text = file->find(".text." + kernel.name),
                     *info = file->find(".nv.info." + kernel.name);
  if (!text || !info || text->bytes.empty() || text->bytes.size() % kInstructionBytes)
    return bad("no code of the template");
  TemplateFacts facts = template_facts(info->bytes);
  if (facts.broken || facts.exits.size() < 2)
    return refused("the template needs a conditional EXIT and one at its end");
  if (!std::is_sorted(facts.exits.begin(), facts.exits.end())) return bad("exits of the template");
  facts.exits.pop_back();  // of its body
  Prologue out;
  const uint64_t end = uint64_t(facts.exits.back()) + kInstructionBytes;
  if (end > text->bytes.size()) return bad("exits of the template");
  out.code.assign(text->bytes.begin(), text->bytes.begin() + int64_t(end));
  for (const uint32_t exit : facts.exits) {
    if (exit % kInstructionBytes) return bad("exits of the template");
    const Instruction i(out.code, exit);
    if (!i.is_exit() || !i.conditional()) return refused("an exit of the template that is not conditional");
  }
  if (!nothing_on_its_way(out.code)) return refused("the template leaves a result on its way");
  if (has_frame(&*file)) return refused("the template has a stack");
  const uint64_t last = text->bytes.size() - kInstructionBytes;
  if (out.code.size() % kPrologueAlignment && !Instruction(text->bytes, last).is_nop())
    return refused("the template does not end in NOP");
  while (out.code.size() % kPrologueAlignment)
    out.code.insert(out.code.end(), text->bytes.begin() + int64_t(last), text->bytes.end());
  if (kernel.parameters.size() < 2 || kernel.parameters[0].offset != 0)
    return refused("the template needs parameters of its own");
  out.exits = facts.exits;
  out.registers = kernel.registers;
  out.own_param_bytes = kernel.parameters[0].bytes;
  out.param_bytes = kernel.param_bytes;
  out.constant_bytes = kernel.constant_bytes;
  out.sm = *sm;
  out.parameters = facts.parameters;
  out.workarounds = facts.workarounds;
  if (out.param_bytes < out.own_param_bytes || out.constant_bytes < out.param_bytes)
    return bad("parameters of the template");
  return out;
}

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
  if (found->cluster) return refused(std::string(kernel) + " is launched in clusters");
  if (base::Status edited = Editor(&*file, kernel, prologue).run(*found); !edited.ok()) return edited.error();
  return write_cubin_file(*file);
}

}  // namespace tessera::image
