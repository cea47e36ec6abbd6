// Against what ptxas says of the same kernels with the check in their source. What the machine code does is
// question H20; what NVIDIA's disassembler reads there is checked by tests/device/h20_disassembly.py.
#include "tests/device/prologue/prologue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "fixtures.h"
#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
#include "tests/device/prologue/write_cubin.h"

namespace tessera::image {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes file(const char* name) {
  const std::string text = fixture(name);
  return {text.begin(), text.end()};
}

Prologue prologue() {
  auto lifted = lift_prologue(file("range_check.cubin"));
  EXPECT_TRUE(lifted.ok()) << lifted.error().text;
  return lifted.ok() ? *lifted : Prologue{};
}

std::vector<CubinKernel> kernels_of(const Bytes& bytes) {
  auto kernels = cubin_kernels(bytes);
  EXPECT_TRUE(kernels.ok()) << kernels.error().text;
  return kernels.ok() ? *kernels : std::vector<CubinKernel>{};
}

Bytes spliced() {
  Bytes bytes = file("plain.cubin");
  for (const CubinKernel& k : kernels_of(bytes)) {
    auto next = prepend(bytes, k.name, prologue());
    EXPECT_TRUE(next.ok()) << next.error().text;
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

TEST(Prologue, IsTheTemplateUpToItsLastConditionalExit) {
  const Prologue p = prologue();
  EXPECT_EQ(p.code.size() % kPrologueAlignment, 0u);
  EXPECT_EQ(p.exits.size(), 2u);
  EXPECT_EQ(p.own_param_bytes, 28u);
  EXPECT_EQ(p.param_bytes, 36u);
  EXPECT_EQ(p.sm, 90u);
  const Bytes code = parse_cubin_file(file("range_check.cubin"))->find(".text.range_check")->bytes;
  const size_t lifted = p.exits.back() + kInstructionBytes;
  EXPECT_TRUE(std::equal(p.code.begin(), p.code.begin() + long(lifted), code.begin()));
}

TEST(Prologue, MetadataIsThatOfPtxasForTheCheckInTheSource) {
  const std::vector<CubinKernel> mine = kernels_of(spliced()), ptxas = kernels_of(file("checked.cubin")),
                                 plain = kernels_of(file("plain.cubin"));
  ASSERT_EQ(mine.size(), 5u);
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
    EXPECT_EQ(k.code_bytes, before->code_bytes + prologue().code.size()) << k.name;
    EXPECT_EQ(k.registers, std::max(before->registers, prologue().registers)) << k.name;
  }
}

TEST(Prologue, TheKernelsOwnCodeIsUntouched) {
  CubinFile before = *parse_cubin_file(file("plain.cubin")), after = *parse_cubin_file(spliced());
  ASSERT_EQ(before.sections.size(), after.sections.size());
  for (size_t i = 0; i < before.sections.size(); ++i) {
    const CubinSection &old = before.sections[i], &now = after.sections[i];
    EXPECT_EQ(old.name, now.name);
    if (!old.name.starts_with(".text.")) continue;
    Bytes wanted = prologue().code;
    wanted.insert(wanted.end(), old.bytes.begin(), old.bytes.end());
    EXPECT_EQ(now.bytes, wanted) << now.name;
    EXPECT_EQ(now.header.sh_offset % kPrologueAlignment, 0u) << now.name;
  }
}

// Functions inside a kernel's section, and what unwinds their frames, lie where their code went.
TEST(Prologue, PlacesInTheCodeMoveWithIt) {
  CubinFile before = *parse_cubin_file(file("plain.cubin")), after = *parse_cubin_file(spliced());
  const Bytes old_symbols = before.find(".symtab")->bytes, symbols = after.find(".symtab")->bytes;
  const uint64_t shift = prologue().code.size();
  int moved = 0;
  for (size_t at = 0; at + sizeof(Elf64_Sym) <= symbols.size(); at += sizeof(Elf64_Sym)) {
    Elf64_Sym old, now;
    memcpy(&old, &old_symbols[at], sizeof old);
    memcpy(&now, &symbols[at], sizeof now);
    if (ELF64_ST_TYPE(old.st_info) != STT_FUNC) continue;
    const bool kernel = old.st_value == 0;
    EXPECT_EQ(now.st_value, kernel ? 0 : old.st_value + shift);
    EXPECT_EQ(now.st_size, kernel ? old.st_size + shift : old.st_size);
    moved += !kernel;
  }
  EXPECT_GE(moved, 2);
  const Bytes old_frames = before.find(".rela.debug_frame")->bytes,
              frames = after.find(".rela.debug_frame")->bytes;
  ASSERT_EQ(frames.size(), old_frames.size());
  for (size_t at = 0; at + sizeof(Elf64_Rela) <= frames.size(); at += sizeof(Elf64_Rela)) {
    Elf64_Rela old, now;
    memcpy(&old, &old_frames[at], sizeof old);
    memcpy(&now, &frames[at], sizeof now);
    EXPECT_EQ(now.r_addend, old.r_addend + int64_t(shift));
  }
}

TEST(Prologue, WhatIsNotUnderstoodIsRefused) {
  const Prologue p = prologue();
  Prologue wider = p, older = p, other_war = p;
  wider.own_param_bytes = 32;
  older.sm = 80;
  other_war.workarounds.push_back(1);
  const Bytes plain = file("plain.cubin");
  for (const Prologue& wrong : {wider, older, other_war}) {
    auto done = prepend(plain, "added", wrong);
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, base::Code::kUnsupported) << done.error().text;
  }
  EXPECT_EQ(prepend(plain, "absent", p).error().code, base::Code::kNotFound);
  EXPECT_EQ(prepend(file("lines.cubin"), "added", p).error().text, "prologue: section .debug_line");
  EXPECT_FALSE(prepend(file("kernels.cubin"), "accepted_add", p).ok());  // sm_75
  EXPECT_FALSE(lift_prologue(plain).ok());
  EXPECT_FALSE(lift_prologue({}).ok());
}

// An attribute that might hold places in the code is none to be copied.
TEST(Prologue, UnknownAttributesAreRefused) {
  CubinFile cubin = *parse_cubin_file(file("plain.cubin"));
  cubin.find(".nv.info.added")
      ->bytes.insert(cubin.find(".nv.info.added")->bytes.begin(), {4, 0x39, 4, 0, 0, 0, 0, 0});
  auto done = prepend(*write_cubin_file(cubin), "added", prologue());
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().text, "prologue: attribute 57");
}

// The template's last load, with the wait of the comparison that reads it taken away.
TEST(Prologue, AResultOnItsWayIsRefused) {
  CubinFile cubin = *parse_cubin_file(file("range_check.cubin"));
  Bytes& code = cubin.find(".text.range_check")->bytes;
  const size_t last_exit = prologue().exits.back();
  for (size_t at = 0; at < last_exit; at += kInstructionBytes) {
    uint64_t high;
    memcpy(&high, &code[at + 8], 8);
    high &= ~(uint64_t{0x3f} << 52);
    memcpy(&code[at + 8], &high, 8);
  }
  auto lifted = lift_prologue(*write_cubin_file(cubin));
  ASSERT_FALSE(lifted.ok());
  EXPECT_EQ(lifted.error().text, "prologue: the template leaves a result on its way");
}

TEST(Prologue, CutOffBytesAreAnError) {
  const Bytes whole = file("plain.cubin");
  for (size_t n = 0; n < whole.size(); n += 97) {
    const Bytes cut(whole.begin(), whole.begin() + long(n));
    EXPECT_FALSE(prepend(cut, "added", prologue()).ok()) << n;
    (void)lift_prologue(cut);
  }
}

}  // namespace
}  // namespace tessera::image
