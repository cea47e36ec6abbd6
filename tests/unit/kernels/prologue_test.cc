// Against what ptxas says of the same kernels with the check in their source. What the machine code does is
// question H20; what NVIDIA's disassembler reads there is checked by tests/device/h20_disassembly.py.
#include "tests/device/prologue/prologue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "fixtures.h"
#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
#include "kernels/sass/instruction.h"
#include "tests/device/prologue/answer.h"
#include "tests/device/prologue/proof.h"
#include "tests/device/prologue/write_cubin.h"

namespace tessera::image {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes file(const char* name) {
  const std::string text = fixture(name);
  return {text.begin(), text.end()};
}

Prologue prologue(RangeOf unit = RangeOf::kBlocks, const char* name = "range_check.cubin") {
  auto lifted = lift_prologue(file(name), unit);
  EXPECT_TRUE(lifted.ok()) << lifted.error().text;
  return lifted.ok() ? *lifted : Prologue{};
}
Prologue prologue_of(const CubinKernel& kernel) {
  return prologue(kernel.cluster ? RangeOf::kClusters : RangeOf::kBlocks);
}

std::vector<CubinKernel> kernels_of(const Bytes& bytes) {
  auto kernels = cubin_kernels(bytes);
  EXPECT_TRUE(kernels.ok()) << kernels.error().text;
  return kernels.ok() ? *kernels : std::vector<CubinKernel>{};
}

// All kernels of a file with a check.
Bytes spliced() {
  Bytes bytes = file("plain.cubin");
  for (const CubinKernel& k : kernels_of(bytes)) {
    auto next = prepend(bytes, k.name, prologue_of(k));
    EXPECT_TRUE(next.ok()) << k.name << ": " << next.error().text;
    if (next.ok()) bytes = *next;
  }
  return bytes;
}

const CubinKernel* find(const std::vector<CubinKernel>& kernels, const std::string& name) {
  const auto found =
      std::find_if(kernels.begin(), kernels.end(), [&](const auto& k) { return k.name == name; });
  return found == kernels.end() ? nullptr : &*found;
}

TEST(CubinFile, UneditedIsWrittenAsItWas) {
  for (const char* name : {"kernels.cubin", "range_check.cubin", "plain.cubin", "checked.cubin"}) {
    const Bytes bytes = file(name);
    auto parsed = parse_cubin_file(bytes);
    ASSERT_TRUE(parsed.ok()) << name << parsed.error().text;
    auto written = write_cubin_file(*parsed);
    ASSERT_TRUE(written.ok()) << name << written.error().text;
    EXPECT_EQ(*written, bytes) << name;
  }
}

// As ptxas 13.5 writes a file whose last section ends between two places of eight bytes.
TEST(CubinFile, TablesMayBeginAtFourBytes) {
  CubinFile cubin = *parse_cubin_file(file("plain.cubin"));
  cubin.sections.back().bytes.resize(cubin.sections.back().bytes.size() + 4);
  Bytes bytes = *write_cubin_file(cubin);
  cubin = *parse_cubin_file(bytes);
  const uint64_t table = cubin.header.e_shoff - 4;
  const Elf64_Shdr& last = cubin.sections.back().header;
  ASSERT_EQ(last.sh_offset + bytes_in_file(last), table);
  bytes.erase(bytes.begin() + long(table), bytes.begin() + long(table) + 4);
  for (Elf64_Phdr& segment : cubin.segments)
    if (segment.p_offset > table) segment.p_offset -= 4;
  cubin.header.e_shoff -= 4;
  cubin.header.e_phoff -= 4;
  memcpy(bytes.data(), &cubin.header, sizeof cubin.header);
  memcpy(&bytes[cubin.header.e_phoff], cubin.segments.data(), cubin.segments.size() * sizeof(Elf64_Phdr));
  const auto written = write_cubin_file(*parse_cubin_file(bytes));
  ASSERT_TRUE(written.ok()) << written.error().text;
  EXPECT_EQ(*written, bytes);
}

TEST(Prologue, IsTheTemplateUpToItsLastConditionalExit) {
  for (const RangeOf unit : {RangeOf::kBlocks, RangeOf::kClusters}) {
    const Prologue p = prologue(unit);
    EXPECT_EQ(p.code.size() % kPrologueAlignment, 0u);
    EXPECT_EQ(p.exits.size(), 1u);
    EXPECT_EQ(p.reads.size(), 2u);
    EXPECT_EQ(p.sm, 90u);
    const char* name = unit == RangeOf::kBlocks ? ".text.check_blocks" : ".text.check_clusters";
    const Bytes code = parse_cubin_file(file("range_check.cubin"))->find(name)->bytes;
    const size_t lifted = p.exits.back() + kInstructionBytes;
    EXPECT_TRUE(std::equal(p.code.begin(), p.code.begin() + long(lifted), code.begin()));
  }
}

// A check that is set to another place is what ptxas makes of the template with another size of parameters. Where both words lie in
// eight bytes at their alignment, it may read them at once; these sizes are none of those.
TEST(Prologue, FittedCodeIsThatOfPtxasForThisSize) {
  const uint32_t base = 0x210;
  for (const uint32_t bytes : {4u, 12u, 60u, 4084u})
    for (const RangeOf unit : {RangeOf::kBlocks, RangeOf::kClusters}) {
      const std::string name = "range_check_" + std::to_string(bytes) + ".cubin";
      const auto fitted = fitted_code(prologue(unit), base + range_offset(bytes));
      ASSERT_TRUE(fitted.ok()) << bytes << fitted.error().text;
      EXPECT_EQ(*fitted, prologue(unit, name.c_str()).code) << bytes;
    }
  EXPECT_FALSE(fitted_code(prologue(), 0xfffc).ok());
}

TEST(Prologue, MetadataIsThatOfPtxasForTheCheckInTheSource) {
  const std::vector<CubinKernel> mine = kernels_of(spliced()), ptxas = kernels_of(file("checked.cubin")),
                                 plain = kernels_of(file("plain.cubin"));
  ASSERT_EQ(mine.size(), 15u);
  for (const CubinKernel& k : mine) {
    const CubinKernel *checked = find(ptxas, k.name), *before = find(plain, k.name);
    ASSERT_TRUE(checked && before) << k.name;
    EXPECT_EQ(k.param_bytes, checked->param_bytes) << k.name;
    EXPECT_EQ(k.constant_bytes, checked->constant_bytes) << k.name;
    EXPECT_EQ(k.shared_bytes, checked->shared_bytes) << k.name;
    EXPECT_EQ(k.barriers, checked->barriers) << k.name;
    ASSERT_EQ(k.parameters.size(), checked->parameters.size()) << k.name;
    for (size_t i = 0; i < k.parameters.size(); ++i) {
      EXPECT_EQ(k.parameters[i].index, checked->parameters[i].index) << k.name;
      EXPECT_EQ(k.parameters[i].offset, checked->parameters[i].offset) << k.name;
      EXPECT_EQ(k.parameters[i].bytes, checked->parameters[i].bytes) << k.name;
    }
    EXPECT_EQ(k.code_bytes, before->code_bytes + prologue_of(k).code.size()) << k.name;
    EXPECT_EQ(k.registers, std::max(before->registers, prologue_of(k).registers)) << k.name;
  }
}

// The attributes of a kernel that had no parameters are those of ptxas, too, but for their order.
TEST(Prologue, FirstParametersAreDescribedAsPtxasDescribesThem) {
  const auto records = [](const Bytes& cubin) {
    const Bytes info = parse_cubin_file(cubin)->find(".nv.info.bare")->bytes;
    std::vector<Bytes> all;
    for (size_t at = 0; at + 4 <= info.size();) {
      const size_t bytes = 4 + (info[at] == 4 ? size_t(info[at + 2] | info[at + 3] << 8) : 0);
      const bool of_parameters = info[at + 1] == 0x17 || info[at + 1] == 0x19;
      if (of_parameters) all.emplace_back(info.begin() + long(at), info.begin() + long(at + bytes));
      at += bytes;
    }
    return all;
  };
  EXPECT_EQ(records(spliced()), records(file("checked.cubin")));
}

TEST(Prologue, TheKernelsOwnCodeIsUntouched) {
  const Bytes plain = file("plain.cubin");
  CubinFile before = *parse_cubin_file(plain), after = *parse_cubin_file(spliced());
  for (const CubinKernel& k : kernels_of(plain)) {
    const Bytes old = before.find(".text." + k.name)->bytes, now = after.find(".text." + k.name)->bytes;
    ASSERT_EQ(now.size(), prologue_of(k).code.size() + old.size());
    EXPECT_TRUE(std::equal(old.rbegin(), old.rend(), now.rbegin())) << k.name;
    EXPECT_EQ(after.find(".text." + k.name)->header.sh_offset % kPrologueAlignment, 0u) << k.name;
  }
}

TEST(Prologue, NothingElseDiffersIsProved) {
  for (const char* name : {"plain.cubin", "lines.cubin"}) {
    const Bytes plain = file(name);
    size_t followed = 0;
    for (const CubinKernel& k : kernels_of(plain)) {
      const auto edited = prepend(plain, k.name, prologue_of(k));
      ASSERT_TRUE(edited.ok()) << k.name << edited.error().text;
      const auto proof = prove_prepended(plain, *edited, k.name, prologue_of(k));
      ASSERT_TRUE(proof.ok()) << k.name << proof.error().text;
      EXPECT_EQ(proof->instructions, k.code_bytes / kInstructionBytes) << k.name;
      followed += proof->reachable != 0;
    }
    EXPECT_GT(followed, 5u) << name;
  }
}

// One bit at a time, in every section but names and what only a debugger or linker reads.
TEST(Prologue, AnyOtherDifferenceIsFound) {
  const Bytes plain = file("plain.cubin"), edited = *prepend(plain, "left", prologue());
  const CubinFile parsed = *parse_cubin_file(edited);
  const std::string may[] = {".symtab",           ".strtab",  ".shstrtab",
                             ".rela.debug_frame", ".nv.info", ".nv.info.left"};
  int planted = 0;
  for (size_t s = 1; s < parsed.sections.size(); ++s) {
    if (std::find(std::begin(may), std::end(may), parsed.sections[s].name) != std::end(may)) continue;
    for (size_t at = 0; at < parsed.sections[s].bytes.size(); at += 97) {
      // The driver fills this in; it is zero in the file.
      if (parsed.sections[s].name == ".nv.constant0.left") break;
      CubinFile faulty = parsed;
      faulty.sections[s].bytes[at] ^= 1 << at % 8;
      const auto written = write_cubin_file(faulty);
      ASSERT_TRUE(written.ok());
      EXPECT_FALSE(prove_prepended(plain, *written, "left", prologue()).ok())
          << parsed.sections[s].name << at;
      ++planted;
    }
  }
  EXPECT_GT(planted, 300);
  EXPECT_FALSE(prove_prepended(plain, plain, "left", prologue()).ok());
  EXPECT_FALSE(prove_prepended(plain, edited, "left", prologue(RangeOf::kClusters)).ok());
}

// An instruction that reads a register as it finds it, in the place of the first one. Each of these writes it before.
TEST(Prologue, AKernelThatReadsWhatNobodyWroteIsRefused) {
  const CubinFile plain = *parse_cubin_file(file("plain.cubin"));
  int refused = 0;
  for (size_t from = kInstructionBytes; from < 16 * kInstructionBytes; from += kInstructionBytes) {
    CubinFile cubin = plain;
    Bytes& code = cubin.find(".text.added")->bytes;
    uint64_t words[2];
    memcpy(words, &code[from], sizeof words);
    const auto instruction = sass::decode(words[0], words[1], 90);
    if (!instruction || instruction->kind == sass::Kind::kExit) continue;
    bool reads = false;  // R0, which the check writes
    for (const sass::Operand& o : instruction->reads)
      reads = reads ||
              (o.kind == sass::Operand::Kind::kRegister && o.file == sass::File::kGeneral && o.index == 0);
    memcpy(&code[0], words, sizeof words);
    const auto done = prepend(*write_cubin_file(cubin), "added", prologue());
    if (reads) {
      ASSERT_FALSE(done.ok()) << from;
      EXPECT_TRUE(done.error().text.starts_with("prologue: 0x0000: may read ")) << done.error().text;
    }
    refused += reads;
  }
  EXPECT_GT(refused, 0);
}

// Functions inside a kernel's section, what unwinds their frames, and what says from which line an instruction comes, lie where
// their code went.
TEST(Prologue, PlacesInTheCodeMoveWithIt) {
  const Bytes plain = file("lines.cubin"), edited = *prepend(plain, "called", prologue());
  CubinFile before = *parse_cubin_file(plain), after = *parse_cubin_file(edited);
  const Bytes old_symbols = before.find(".symtab")->bytes, symbols = after.find(".symtab")->bytes;
  const auto index = size_t(before.find(".text.called") - before.sections.data());
  const uint64_t shift = prologue().code.size();
  const auto symbol = [&](const Bytes& table, size_t i) {
    Elf64_Sym s;
    memcpy(&s, &table[i * sizeof s], sizeof s);
    return s;
  };
  int moved = 0;
  for (size_t i = 0; i < symbols.size() / sizeof(Elf64_Sym); ++i) {
    const Elf64_Sym old = symbol(old_symbols, i), now = symbol(symbols, i);
    const bool here = old.st_shndx == index && ELF64_ST_TYPE(old.st_info) == STT_FUNC;
    const bool kernel = old.st_value == 0;
    EXPECT_EQ(now.st_value, here && !kernel ? old.st_value + shift : old.st_value);
    EXPECT_EQ(now.st_size, here && kernel ? old.st_size + shift : old.st_size);
    moved += here && !kernel;
  }
  EXPECT_GE(moved, 2);
  for (const char* name : {".rela.debug_frame", ".rela.debug_line", ".rela.nv_debug_line_sass"}) {
    const Bytes old_places = before.find(name)->bytes, new_places = after.find(name)->bytes;
    ASSERT_EQ(new_places.size(), old_places.size()) << name;
    int here = 0;
    for (size_t at = 0; at + sizeof(Elf64_Rela) <= old_places.size(); at += sizeof(Elf64_Rela)) {
      Elf64_Rela old, now;
      memcpy(&old, &old_places[at], sizeof old);
      memcpy(&now, &new_places[at], sizeof now);
      const Elf64_Sym of = symbol(old_symbols, ELF64_R_SYM(old.r_info));
      const bool moves = of.st_shndx == index && of.st_value == 0;
      EXPECT_EQ(now.r_addend, moves ? old.r_addend + int64_t(shift) : old.r_addend) << name;
      here += moves;
      // One that names another place is found.
      CubinFile faulty = after;
      faulty.find(name)->bytes[at + offsetof(Elf64_Rela, r_addend)] ^= 0x10;
      EXPECT_FALSE(prove_prepended(plain, *write_cubin_file(faulty), "called", prologue()).ok())
          << name << at;
    }
    EXPECT_GE(here, 1) << name;
  }
}

TEST(Prologue, WhatIsNotUnderstoodIsRefused) {
  const Prologue p = prologue();
  Prologue older = p, other_compiler = p;
  older.sm = 80;
  other_compiler.attributes.clear();
  const Bytes plain = file("plain.cubin");
  for (const Prologue& wrong : {older, other_compiler}) {
    auto done = prepend(plain, "added", wrong);
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, base::Code::kUnsupported) << done.error().text;
  }
  EXPECT_EQ(prepend(plain, "absent", p).error().code, base::Code::kNotFound);
  CubinFile debugged = *parse_cubin_file(plain);
  debugged.sections[debugged.header.e_shstrndx].bytes[debugged.find(".debug_frame")->header.sh_name + 7] =
      'g';
  EXPECT_EQ(prepend(*write_cubin_file(debugged), "added", p).error().text, "prologue: section .debug_grame");
  EXPECT_FALSE(prepend(file("kernels.cubin"), "accepted_add", p).ok());  // sm_75
  EXPECT_FALSE(lift_prologue(plain, RangeOf::kBlocks).ok());
  EXPECT_FALSE(lift_prologue({}, RangeOf::kBlocks).ok());
}

TEST(Prologue, KernelsThatCannotBeCutSoAreRefusedWithAReason) {
  const Bytes others = file("refused.cubin");
  const auto refusal = [&](const char* kernel, const Prologue& p) {
    const auto done = prepend(others, kernel, p);
    return done.ok() ? std::string("not refused") : done.error().text;
  };
  EXPECT_NE(refusal("whole_grid", prologue()).find("its grid waits for all of its blocks"),
            std::string::npos);
  EXPECT_NE(refusal("prints", prologue()).find("opcode 0x14e is not known"), std::string::npos);
  EXPECT_EQ(refusal("in_clusters", prologue()),
            "prologue: in_clusters is launched in clusters, and the range counts blocks");
  EXPECT_EQ(refusal("full", prologue()), "prologue: parameters of 4092 bytes leave no room for a range");
  EXPECT_EQ(refusal("full_of_second_form", prologue()),
            "prologue: parameters of 32760 bytes leave no room for a range");
  EXPECT_EQ(refusal("in_clusters", prologue(RangeOf::kClusters)), "not refused");
  Prologue wide = prologue();
  wide.registers = 255;
  EXPECT_EQ(refusal("shares_registers", wide),
            "prologue: its warps share registers, and the check needs more than they begin with");
}

// An attribute that might hold places in the code is none to be copied.
TEST(Prologue, UnknownAttributesAreRefused) {
  CubinFile cubin = *parse_cubin_file(file("plain.cubin"));
  cubin.find(".nv.info.added")
      ->bytes.insert(cubin.find(".nv.info.added")->bytes.begin(), {4, 0x46, 4, 0, 0, 0, 0, 0});
  auto done = prepend(*write_cubin_file(cubin), "added", prologue());
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().text, "prologue: attribute 70");
}

// The size that a launch's blocks must have (.reqntid) is no place, though it may look like one.
TEST(Prologue, ARequiredSizeOfBlocksIsKept) {
  const Bytes required = {4, 0x10, 12, 0, 0x80, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0};
  CubinFile cubin = *parse_cubin_file(file("plain.cubin"));
  Bytes& info = cubin.find(".nv.info.added")->bytes;
  info.insert(info.begin(), required.begin(), required.end());
  const auto done = prepend(*write_cubin_file(cubin), "added", prologue());
  ASSERT_TRUE(done.ok()) << done.error().text;
  const Bytes after = parse_cubin_file(*done)->find(".nv.info.added")->bytes;
  EXPECT_TRUE(std::equal(required.begin(), required.end(), after.begin()));
}

// A list that holds something else than places of instructions was taken for what it is not.
TEST(Prologue, PlacesThatAreNoneAreRefused) {
  for (const uint8_t place : {8, 0xf8}) {
    CubinFile cubin = *parse_cubin_file(file("plain.cubin"));
    Bytes& info = cubin.find(".nv.info.added")->bytes;
    info.insert(info.begin(), {4, 0x31, 4, 0, place, place == 8 ? uint8_t{0} : uint8_t{0xff}, 0, 0});
    auto done = prepend(*write_cubin_file(cubin), "added", prologue());
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().text, "prologue: an attribute names a place that is no instruction");
  }
}

// The template's last load, with the wait of the comparison that reads it taken away.
TEST(Prologue, AResultOnItsWayIsRefused) {
  CubinFile cubin = *parse_cubin_file(file("range_check.cubin"));
  Bytes& code = cubin.find(".text.check_blocks")->bytes;
  const size_t last_exit = prologue().exits.back();
  for (size_t at = 0; at < last_exit; at += kInstructionBytes) {
    uint64_t high;
    memcpy(&high, &code[at + 8], 8);
    high &= ~(uint64_t{0x3f} << 52);
    memcpy(&code[at + 8], &high, 8);
  }
  auto lifted = lift_prologue(*write_cubin_file(cubin), RangeOf::kBlocks);
  ASSERT_FALSE(lifted.ok());
  EXPECT_EQ(lifted.error().text, "prologue: the template leaves a result on its way");
}

// The text is what h20_prologue prints.
TEST(PrologueAnswer, HoldsForOneGpuAndOneDriver) {
  const std::string answer = R"({"question": "H20", "device": {"gpu": "NVIDIA H200", "driver_version": 13000},
    "driver": "580.159.04", "asked_of": "machine code", "kinds": 3, "equal": 1, "added": "equal", "added_plain_ms": 0.5,
    "called": "refused by the driver", "called_result": 209, "mapped": "wrong"})";
  const auto kinds = equal_kinds(answer, "NVIDIA H200", "580.159.04");
  ASSERT_TRUE(kinds.ok()) << kinds.error().text;
  EXPECT_EQ(*kinds, std::vector<std::string>{"added"});
  const auto error = [&](std::string text, std::string_view gpu, std::string_view driver) {
    const auto none = equal_kinds(text, gpu, driver);
    return none.ok() ? std::string("accepted") : none.error().text;
  };
  EXPECT_EQ(error(answer, "NVIDIA H100", "580.159.04"),
            "prologue: the answer is of another GPU, NVIDIA H200");
  EXPECT_EQ(error(answer, "NVIDIA H200", "580.160.01"),
            "prologue: the answer is of another driver, 580.159.04");
  EXPECT_EQ(error(answer, "NVIDIA H200", ""), "prologue: the answer is of another driver, 580.159.04");
  std::string rehearsed = answer;
  rehearsed.replace(rehearsed.find("machine code"), strlen("machine code"), "the check in the source");
  EXPECT_EQ(error(rehearsed, "NVIDIA H200", "580.159.04"), "prologue: machine code was not asked");
  for (const char* text :
       {"", "{", "[]", "3", R"({"question": "H21", "device": {}})", R"({"question": "H20"})"})
    EXPECT_EQ(error(text, "NVIDIA H200", "580.159.04"), "prologue: no answer to H20") << text;
  EXPECT_EQ(error(R"({"question": "H20", "device": 3})", "NVIDIA H200", "1"),
            "prologue: the answer is of another GPU, ");
}

TEST(Prologue, CutOffBytesAreAnError) {
  const Bytes whole = file("plain.cubin");
  for (size_t n = 0; n < whole.size(); n += 97) {
    const Bytes cut(whole.begin(), whole.begin() + long(n));
    EXPECT_FALSE(prepend(cut, "added", prologue()).ok()) << n;
    (void)lift_prologue(cut, RangeOf::kBlocks);
    (void)prove_prepended(whole, cut, "added", prologue());
  }
}

}  // namespace
}  // namespace tessera::image
