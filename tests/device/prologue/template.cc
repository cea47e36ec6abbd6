// The check as a compiler made it: lifted out of its kernel, and set to the place of a kernel's range.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/image/attributes.h"
#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
#include "tests/device/prologue/code.h"
#include "tests/device/prologue/prologue.h"

namespace tessera::image {
namespace {

// An instruction has the place of a constant in 16 bits of its lower word.
constexpr unsigned kConstantBit = 38;
constexpr uint64_t kConstantMask = uint64_t{0xffff} << kConstantBit;

// Scoreboards, as the scheduling bits say: the one it sets when its result is there, the one it sets when
// its operands are read (7: none), and those that it waits for.
unsigned result_scoreboard(uint64_t high) {
  return (high >> 46) & 7;
}
unsigned operand_scoreboard(uint64_t high) {
  return (high >> 49) & 7;
}
unsigned waits(uint64_t high) {
  return (high >> 52) & 0x3f;
}

// A result that arrives after the join would overwrite a register of the kernel: each scoreboard that is set
// must be waited for by a later instruction.
bool nothing_on_its_way(Bytes code) {
  unsigned open = 0;
  for (uint64_t at = 0; at < code.size(); at += kInstructionBytes) {
    const auto high = load<uint64_t>(code, at + 8);
    open &= ~waits(high);
    for (const unsigned scoreboard : {result_scoreboard(high), operand_scoreboard(high)})
      if (scoreboard < 6) open |= 1u << scoreboard;
  }
  return open == 0;
}

struct TemplateFacts {  // of the attributes of the template's kernel
  std::vector<uint32_t> exits;
  std::vector<std::vector<uint8_t>> attributes;
  uint32_t param_base = 0;
  bool broken = false;
};

TemplateFacts template_facts(Bytes info) {
  TemplateFacts facts;
  Attributes a(info);
  while (a.next()) {
    if (a.code == kExitOffsets) facts.exits = words(a.payload);
    if (names_no_place(a)) facts.attributes.push_back(record(a));
    if (a.code == kParamCbank && a.payload.size() == 8) facts.param_base = load<uint16_t>(a.payload, 4);
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

// It only computes and leaves.
bool harmless(sass::Kind kind) {
  return kind == sass::Kind::kNothing || kind == sass::Kind::kPure || kind == sass::Kind::kSpecial ||
         kind == sass::Kind::kConstant || kind == sass::Kind::kExit;
}

// Fills in what the instructions say. `range`: where the template has its two words.
base::Status read_instructions(Prologue* out, uint32_t param_base, const std::array<uint32_t, 2>& range) {
  for (uint32_t at = 0; at < out->code.size(); at += kInstructionBytes) {
    const auto i = instruction_at(out->code, at, out->sm);
    if (!i || !harmless(i->kind)) return refused("the template does more than compute and leave");
    const bool leaves = std::find(out->exits.begin(), out->exits.end(), at) != out->exits.end();
    if ((i->kind == sass::Kind::kExit) != leaves) return bad("exits of the template");
    out->writes.insert(out->writes.end(), i->writes.begin(), i->writes.end());
    for (const sass::Operand& o : i->reads) {
      if (o.kind != sass::Operand::Kind::kConstant || (o.bank == 0 && o.value + 4 * o.words <= param_base))
        continue;
      const auto word = std::find(range.begin(), range.end(), o.value);
      if (o.bank != 0 || o.words != 1 || word == range.end())
        return refused("the template reads more than its range");
      out->reads.push_back({at, uint32_t(word - range.begin())});
    }
  }
  return base::ok();
}

}  // namespace

base::Result<Prologue> lift_prologue(Bytes cubin, RangeOf unit) {
  const std::string name = unit == RangeOf::kBlocks ? "check_blocks" : "check_clusters";
  auto sm = target_of(cubin);
  if (!sm.ok()) return sm.error();
  auto kernels = cubin_kernels(cubin);
  if (!kernels.ok()) return kernels.error();
  auto file = parse_cubin_file(cubin);
  if (!file.ok()) return file.error();
  const auto kernel =
      std::find_if(kernels->begin(), kernels->end(), [&](const CubinKernel& k) { return k.name == name; });
  const CubinSection *text = file->find(".text." + name), *info = file->find(".nv.info." + name);
  if (kernel == kernels->end() || !text || !info || text->bytes.empty() ||
      text->bytes.size() % kInstructionBytes)
    return bad("no template is called " + name);
  TemplateFacts facts = template_facts(info->bytes);
  if (facts.broken || facts.exits.size() < 2)
    return refused("the template needs a conditional EXIT and one at its end");
  if (!std::is_sorted(facts.exits.begin(), facts.exits.end())) return bad("exits of the template");
  facts.exits.pop_back();  // of its body
  const uint64_t end = uint64_t(facts.exits.back()) + kInstructionBytes;
  if (end > text->bytes.size() || end % kInstructionBytes) return bad("exits of the template");
  Prologue out;
  out.unit = unit;
  out.code.assign(text->bytes.begin(), text->bytes.begin() + int64_t(end));
  out.exits = facts.exits;
  out.registers = kernel->registers;
  out.sm = *sm;
  out.attributes = facts.attributes;
  for (const uint32_t exit : out.exits) {
    const auto i = instruction_at(out.code, exit, out.sm);
    if (!i || i->kind != sass::Kind::kExit ||
        (i->guard.index == sass::kZero &&
         std::all_of(i->reads.begin(), i->reads.end(), [](const auto& o) { return o.index == sass::kZero; })))
      return refused("an exit of the template that is not conditional");
  }
  if (!nothing_on_its_way(out.code)) return refused("the template leaves a result on its way");
  if (has_frame(&*file)) return refused("the template has a stack");
  const auto& parameters = kernel->parameters;
  if (parameters.size() != 3 || parameters[0].offset != 0 || parameters[1].bytes != 4 ||
      parameters[2].bytes != 4)
    return refused("the template needs a parameter for the kernel's own, first and end");
  const std::array<uint32_t, 2> range = {facts.param_base + parameters[1].offset,
                                         facts.param_base + parameters[2].offset};
  if (base::Status s = read_instructions(&out, facts.param_base, range); !s.ok()) return s.error();
  const uint64_t last = text->bytes.size() - kInstructionBytes;
  if (load<uint64_t>(text->bytes, last) % 0x1000 != 0x918) return refused("the template does not end in NOP");
  while (out.code.size() % kPrologueAlignment)
    out.code.insert(out.code.end(), text->bytes.begin() + int64_t(last), text->bytes.end());
  return out;
}

base::Result<std::vector<uint8_t>> fitted_code(const Prologue& prologue, uint32_t first_at) {
  std::vector<uint8_t> code = prologue.code;
  if (uint64_t{first_at} + kRangeBytes > UINT16_MAX) return refused("parameters beyond the constant bank");
  for (const Prologue::RangeRead& read : prologue.reads) {
    const uint32_t place = first_at + 4 * read.word;
    if (!inside(read.at, kInstructionBytes, code.size())) return bad("places of the range");
    const uint64_t low = load<uint64_t>(code, read.at) & ~kConstantMask;
    const uint64_t moved = low | uint64_t{place} << kConstantBit;
    std::memcpy(code.data() + read.at, &moved, sizeof moved);
    // Nothing but the constant may be another.
    const auto before = instruction_at(prologue.code, read.at, prologue.sm),
               after = instruction_at(code, read.at, prologue.sm);
    if (!before || !after || before->opcode != after->opcode || before->reads.size() != after->reads.size() ||
        before->writes != after->writes || before->guard != after->guard ||
        before->rest_low != after->rest_low || before->rest_high != after->rest_high)
      return refused("an instruction that has its constant elsewhere");
    for (size_t k = 0; k < after->reads.size(); ++k) {
      sass::Operand expected = before->reads[k];
      if (expected.kind == sass::Operand::Kind::kConstant) expected.value = place;
      if (after->reads[k] != expected) return refused("an instruction that has its constant elsewhere");
    }
  }
  return code;
}

}  // namespace tessera::image
