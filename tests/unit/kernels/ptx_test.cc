#include <gtest/gtest.h>

#include <utility>

#include "fixtures.h"
#include "kernels/ptx/opcodes.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/ptx/verifier.h"

namespace tessera::ptx {
namespace {

const char kHead[] = ".version 8.0\n.target sm_80\n.address_size 64\n";

Module parsed(const std::string& text) {
  auto module = parse(text);
  EXPECT_TRUE(module.ok()) << (module.ok() ? "" : module.error().text) << "\n" << text;
  return module.ok() ? std::move(*module) : Module();
}
// The statements of a kernel with this body, usual registers declared.
const char kRegisters[] =
    ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>, q; .reg .f32 %f<4>; .reg .v4 .f32 vec;\n";
struct Body {
  Module module;
  const std::vector<Statement>& all;
  explicit Body(const std::string& body)
      : module(parsed(kHead + std::string(".entry k(.param .u64 p)\n{\n") + kRegisters + body + "\n}\n")),
        all(module.items.at(0).function->body) {
    EXPECT_EQ(print(parsed(print(module))), print(module)) << "printing is not stable";
  }
  const Statement& last() const { return all.back(); }
  const Instruction& instruction() const { return all.back().instruction; }
  const Operand& operand(size_t n) const { return instruction().operands.at(n); }
};
std::string error_of(const std::string& text) {
  auto module = parse(text);
  return module.ok() ? "accepted" : module.error().text;
}
std::string body_error(const std::string& body) {
  return error_of(kHead + std::string(".entry k()\n{\n.reg .b32 %r<9>;\n") + body + "\n}\n");
}

TEST(Ir, CopiesAreValuesThoughTheyShareStorage) {
  Module m = parsed(kHead + std::string(".entry k()\n{\n.reg .b32 %r<9>;\nadd.s32 %r1, %r2, 3;\n") +
                    "{ .reg .b32 x; add.s32 %r1, %r1, %r1; }\nmov.b64 {%r1,%r2}, %r3;\n}\n");
  const std::string before = print(m);
  Function copy = *m.items.at(0).function;
  const Instruction& original = std::as_const(*m.items[0].function).body.at(1).instruction;
  Instruction& changed = copy.body.at(1).instruction;
  EXPECT_EQ(std::as_const(changed).operands.begin(), original.operands.begin()) << "not shared";

  changed.operands[1].name = "%r7";
  changed.operands.push_back(changed.operands[0]);
  changed.operands.pop_back();
  changed.modifiers = {"u32"};
  copy.body.at(0).variable.edit().count = 3;
  copy.body.at(2).scope.edit().at(1).instruction.operands.back().name = "%r8";
  copy.body.at(3).instruction.operands[0].children[1].name = "%r6";
  EXPECT_EQ(print(m), before) << "a change of the copy reached the original";

  m.items[0].function = std::make_unique<Function>(std::move(copy));
  const std::string after = print(m);
  for (const char* line : {"%r<3>", "add.u32 %r1, %r7, 3;", "add.s32 %r1, %r1, %r8;", "{%r1, %r6}"}) {
    EXPECT_NE(after.find(line), std::string::npos) << line << "\n" << after;
  }
}

TEST(Ir, AnEmptyBoxReadsAsNothing) {
  const Statement s;
  EXPECT_TRUE(s.scope->empty());
  EXPECT_TRUE(s.variable->name.empty());
  EXPECT_TRUE(s.prototype->targets.empty());
}

TEST(Parser, ElementsOfArrays) {
  const std::string array = ".shared .align 8 .b64 s[8];\n";
  const auto element = [&](const std::string& text) {
    Body b(array + text);
    EXPECT_EQ(b.last().kind, Statement::Kind::kInstruction) << text;
    return b.instruction().operands;
  };
  EXPECT_EQ(element("ld.shared.b64 %rd1, s[3];")[1].kind, Operand::Kind::kAddress);
  EXPECT_EQ(element("ld.shared.b64 %rd1, s[3];")[1].bits, 24u);
  EXPECT_EQ(element("st.shared.b64 s[1+1], %rd1;")[0].bits, 16u);
  EXPECT_EQ(element("mov.u64 %rd1, s[WARP_SZ];")[1].kind, Operand::Kind::kSymbol);
  EXPECT_EQ(element("mov.u64 %rd1, s[WARP_SZ];")[1].bits, 256u);
  EXPECT_EQ(element("ld.shared.b64 %rd1, [s+8];")[1].bits, 8u);

  // A number in a register becomes arithmetic in a scope of its own; the guard stays with the access.
  Body b(array + "@!q ld.shared.b64 %rd1, s[%r1+2];");
  ASSERT_EQ(b.last().kind, Statement::Kind::kScope);
  const std::vector<Statement>& inner = b.last().scope;
  EXPECT_EQ(inner.back().instruction.opcode, "ld");
  EXPECT_EQ(inner.back().instruction.guard, "q");
  EXPECT_TRUE(inner.back().instruction.operands[1].base_is_register);
  for (const Statement& s : inner) {
    if (s.kind == Statement::Kind::kInstruction && s.instruction.opcode != "ld") {
      EXPECT_TRUE(s.instruction.guard.empty());
      EXPECT_EQ(s.instruction.at.line, inner.back().instruction.at.line);
    }
  }
  EXPECT_TRUE(verify(b.module).ok());

  for (const char* wrong :
       {"ld.shared.b64 %rd1, t[3];", "add.u64 %rd1, s[1], s[2];", "ld.shared.b64 %rd1, s[%p1];",
        "ld.shared.b64 %rd1, s[%tid.x];", "ld.shared.b64 %rd1, s[1][2];", "ld.shared.b64 %rd1, s[1;",
        "ld.shared.b64 %rd1, [s[1]];", "atom.shared.add.u64 %rd1, s[1], 1;"}) {
    EXPECT_NE(body_error(array + ".reg .pred %p<2>; .reg .b64 %rd<2>;" + wrong).find("expected"),
              std::string::npos)
        << wrong;
  }
}

TEST(Parser, SuffixesOfSimdInstructions) {
  Body b("vadd4.u32.u32.u32 %r1.b3210, %r2.b7654, %r3.b0123, %r4;");
  EXPECT_EQ(b.operand(1).suffix, ".b7654");
  EXPECT_EQ(b.operand(1).suffix.view(), ".b7654");
  EXPECT_NE(body_error("mov.u32 %r1, %r2.component;").find("a component such as .x"), std::string::npos);
}

TEST(Parser, Header) {
  Module m = parsed("\n\n// by hand\n.version 9.0\n.target sm_90a, debug\n.address_size 64\n");
  EXPECT_EQ(m.version_major, 9u);
  EXPECT_EQ(m.version_minor, 0u);
  EXPECT_EQ(m.target, (std::vector<Name>{"sm_90a", "debug"}));
  EXPECT_EQ(m.address_bits, 64u);
  EXPECT_TRUE(parse(std::string(kHead) + std::string(4, '\0')).ok()) << "fat-binary text ends with NULs";
}

TEST(Parser, GuardModifiersAndOperands) {
  Body b("@!%p1 ld.global.nc.L2::128B.v2.u32 {%r1, _}, [%rd1+-8];");
  const Instruction& i = b.instruction();
  EXPECT_EQ(i.guard, "%p1");
  EXPECT_TRUE(i.guard_negated);
  EXPECT_EQ(i.opcode, "ld");
  EXPECT_EQ(i.modifiers, (std::vector<Name>{"global", "nc", "L2::128B", "v2", "u32"}));
  EXPECT_EQ(i.type(), Type::kU32);
  ASSERT_EQ(i.operands.size(), 2u);
  EXPECT_EQ(i.operands[0].kind, Operand::Kind::kVector);
  EXPECT_EQ(i.operands[0].children[1].kind, Operand::Kind::kSink);
  EXPECT_EQ(i.operands[1].kind, Operand::Kind::kAddress);
  EXPECT_TRUE(i.operands[1].base_is_register);
  EXPECT_EQ(static_cast<int64_t>(i.operands[1].bits), -8);
  EXPECT_EQ(i.at.line, 7u);
}

TEST(Parser, OpcodeWithoutBlankBeforeOperands) {
  Body b(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32{%f0,%f1,%f2,%f3},{%r0,%r1,%r2,%r3},{%r4,%r5},{%f0,%"
      "f1,%f2,%f3};");
  EXPECT_EQ(b.instruction().operands.size(), 4u);
  EXPECT_EQ(b.instruction().modifiers.front(), "sync");
  Body c("mov.u32%r1,%tid.x;");
  EXPECT_EQ(c.operand(1).kind, Operand::Kind::kSpecial);
  EXPECT_EQ(c.operand(1).suffix, ".x");
}

TEST(Parser, RegistersAndSymbols) {
  Body b(
      ".reg .u32 start; .shared .b32 tile[4]; mov.u32 start, %r8; mov.u32 %r1, tile; mov.u32 %r1, tile+8; "
      "mov.f32 %f1, vec.y;");
  const auto& s = b.all;
  auto op = [&](size_t from_end, size_t n) -> const Operand& {
    return s[s.size() - from_end].instruction.operands.at(n);
  };
  EXPECT_EQ(op(4, 0).kind, Operand::Kind::kRegister);
  EXPECT_EQ(op(4, 1).kind, Operand::Kind::kRegister);
  EXPECT_EQ(op(3, 1).kind, Operand::Kind::kSymbol);
  EXPECT_EQ(op(2, 1).bits, 8u);
  EXPECT_EQ(op(1, 1).suffix, ".y");
  EXPECT_EQ(op(1, 1).kind, Operand::Kind::kRegister);
  Body out_of_range("mov.u32 %r1, %r9;");
  EXPECT_EQ(out_of_range.operand(1).kind, Operand::Kind::kSymbol);
  EXPECT_FALSE(verify(out_of_range.module).ok());
}

TEST(Parser, ScopesShadow) {
  Body b(
      "{ .reg .pred %r1; { .reg .b32 x; mov.b32 x, 1; } setp.eq.s32 %r1, %r2, 0; @%r1 bra L; L: } mov.u32 "
      "%r1, x;");
  EXPECT_EQ(b.operand(1).kind, Operand::Kind::kSymbol);  // x has gone
  const Statement& scope = b.all[b.all.size() - 2];
  ASSERT_EQ(scope.kind, Statement::Kind::kScope);
  EXPECT_EQ(scope.scope->at(1).kind, Statement::Kind::kScope);
}

TEST(Parser, Pairs) {
  Body b("shfl.sync.down.b32 %r1|%p2, %r2, 1, 31, -1;");
  ASSERT_EQ(b.operand(0).kind, Operand::Kind::kPair);
  EXPECT_EQ(b.operand(0).children[1].name, "%p2");
  EXPECT_EQ(static_cast<int64_t>(b.operand(4).bits), -1);
  Body sink("elect.sync _|q, 0xffffffff;");
  EXPECT_EQ(sink.operand(0).children[0].kind, Operand::Kind::kSink);
  Body negated("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3;");
  EXPECT_TRUE(negated.operand(3).negated);
}

TEST(Parser, Literals) {
  struct Row {
    const char* text;
    uint64_t bits;
  };
  for (Row row : {
           Row{"0x10", 16},
           {"0X1fU", 31},
           {"0b101", 5},
           {"017", 15},
           {"0", 0},
           {"-5", uint64_t(-5)},
           {"4294967295U", 0xffffffff},
           {"18446744073709551615", UINT64_MAX},
           {"WARP_SZ", 32},
           {"(1<<4)|3", 19},
           {"4*2+1", 9},
           {"-4+8", 4},
           {"~0", UINT64_MAX},
           {"7 % 4", 3},
           {"(.u64)-1>>63", 1},
           {"1 ? 5 : 6", 5},
           {"- 9", uint64_t(-9)},
       }) {
    Body b("mov.u64 %rd1, " + std::string(row.text) + ";");
    EXPECT_EQ(b.operand(1).kind, Operand::Kind::kInteger) << row.text;
    EXPECT_EQ(b.operand(1).bits, row.bits) << row.text;
  }
  Body f("mov.f32 %f1, 0f3F800000;");
  EXPECT_EQ(f.operand(1).kind, Operand::Kind::kFloat);
  EXPECT_EQ(f.operand(1).bits, 0x3f800000u);
  EXPECT_FALSE(f.operand(1).is_f64);
  Body d("mov.f64 %rd1, 0dBFF0000000000000;");
  EXPECT_EQ(d.operand(1).bits, 0xbff0000000000000u);
  EXPECT_TRUE(d.operand(1).is_f64);
  for (const char* half : {"0.5", ".5", "5e-1", "5.0E-1"}) {
    Body b("mov.f64 %rd1, " + std::string(half) + ";");
    EXPECT_EQ(b.operand(1).bits, 0x3fe0000000000000u) << half;
  }
  Body minus("add.f32 %f1, %f1, -0f3F800000;");
  EXPECT_EQ(minus.operand(2).bits, 0xbf800000u);
}

TEST(Parser, Brackets) {
  Body tensor(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, "
      "%r3}], [%r4];");
  EXPECT_EQ(tensor.instruction().modifiers.back(), "mbarrier::complete_tx::bytes");
  const Operand& bracket = tensor.operand(1);
  ASSERT_EQ(bracket.kind, Operand::Kind::kBracket);
  EXPECT_EQ(bracket.children[0].kind, Operand::Kind::kRegister);
  EXPECT_EQ(bracket.children[1].children.size(), 2u);
  Body tex("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [image, sampler, {%f0,%f1}];");
  EXPECT_EQ(tex.operand(1).children.size(), 3u);
  EXPECT_EQ(tex.operand(1).children[0].kind, Operand::Kind::kSymbol);
  Body displaced("prefetch.tensormap [%rd1+64, {%r2}];");  // found by the fuzzer: printed as [[%rd1+64], ..]
  EXPECT_EQ(displaced.operand(0).children[0].bits, 64u);
  Body absolute("ld.global.u32 %r1, [4096];");
  EXPECT_EQ(absolute.operand(1).bits, 4096u);
  EXPECT_TRUE(absolute.operand(1).name.empty());
  Body offset("ld.param.u32 %r1, [p+(2*4)];");
  EXPECT_EQ(offset.operand(1).bits, 8u);
  EXPECT_FALSE(offset.operand(1).base_is_register);
}

TEST(Parser, Calls) {
  Body b(
      "{ .param .b32 param0; .param .b32 retval0;\nprototype_4 : .callprototype (.param .b32 _) _ (.param "
      ".b32 _) ;\n"
      "call (retval0), \n%rd1, \n(\nparam0\n)\n, prototype_4;\n}");
  const std::vector<Statement>& scope = b.last().scope;
  ASSERT_EQ(scope[2].kind, Statement::Kind::kPrototype);
  EXPECT_EQ(scope[2].label, "prototype_4");
  const Instruction& call = scope[3].instruction;
  ASSERT_EQ(call.operands.size(), 4u);
  EXPECT_EQ(call.operands[0].kind, Operand::Kind::kList);
  EXPECT_EQ(call.operands[1].kind, Operand::Kind::kRegister);
  EXPECT_EQ(call.operands[3].kind, Operand::Kind::kSymbol);
  Body empty("call.uni ff, ();");
  EXPECT_TRUE(empty.operand(1).children.empty());
}

TEST(Parser, TargetLists) {
  Body b("L0: L1: TS: .branchtargets L0, L1; brx.idx %r1, TS;");
  const Statement& list = b.all[b.all.size() - 2];
  EXPECT_EQ(list.prototype->targets, (std::vector<Name>{"L0", "L1"}));
  Body range("N0: N1: N2: TS: .branchtargets N<3>; brx.idx %r1, TS;");
  EXPECT_EQ(range.all[range.all.size() - 2].prototype->targets, (std::vector<Name>{"N0", "N1", "N2"}));
  EXPECT_TRUE(verify(range.module).ok());
}

TEST(Parser, DebugAndPragmas) {
  Body b(
      ".loc 1 15 3\n.pragma \"nounroll\";\n.loc 2 3 4, function_name $L__info0+12, inlined_at 1 10 5 add.s32 "
      "%r1, %r1, 1;");
  EXPECT_EQ(b.all[b.all.size() - 2].kind, Statement::Kind::kLoc);
  EXPECT_EQ(b.all[b.all.size() - 3].kind, Statement::Kind::kPragma);
  Module m = parsed(
      std::string(kHead) +
      ".file 1 \"a \\\" b.cu\", 1684, 99\n.section .debug_abbrev\n{\n.b8 1 ;\n$L: .b32 .debug_line\n}\n"
      "@@DWARF .byte 0x01, 0x02\n.alias a, b;\n.pragma \"x\";\n");
  EXPECT_EQ(m.items.size(), 5u);
}

TEST(Parser, Declarations) {
  Module m = parsed(std::string(kHead) +
                    ".visible .global .align 4 .u32 a[2][3] = {{1,2,3},{4,5,6}}, b = 7;\n"
                    ".extern .shared .align 16 .b8 dynamic[];\n.global .texref image;\n"
                    ".global .attribute(.managed) .align 8 .u64 managed;\n.const .f32 c = 0f00000000;\n"
                    ".weak .global .v4.f32 v;\n.shared .b8 s[4*4];\n");
  ASSERT_EQ(m.items.size(), 8u);
  EXPECT_EQ(m.items[0].variable.size_bytes(), 24u);
  EXPECT_EQ(m.items[0].variable.initializer, "{{1,2,3},{4,5,6}}");
  EXPECT_EQ(m.items[1].variable.name, "b");
  EXPECT_EQ(m.items[2].variable.linkage, ".extern");
  EXPECT_EQ(m.items[2].variable.dims, (std::vector<uint64_t>{0}));
  EXPECT_EQ(m.items[3].variable.other_type, ".texref");
  EXPECT_EQ(m.items[4].variable.attributes, ".attribute(.managed)");
  EXPECT_EQ(m.items[6].variable.vector, 4u);
  EXPECT_EQ(m.items[7].variable.size_bytes(), 16u);
  EXPECT_EQ(print(parsed(print(m))), print(m));
}

TEST(Parser, Functions) {
  Module m = parsed(
      std::string(kHead) +
      ".extern .func (.param .b32 r) f(.param .b64 a, .param .align 8 .b8 rest[]) .noreturn ;\n"
      ".func .attribute(.unified(1, 2)) g(.reg .b32 x) { ret; }\n"
      ".weak .entry e(.param .u64 .ptr .global .align 16 p, .param .align 8 .b8 s[24])\n"
      ".maxntid 256, 1, 1 .minnctapersm 2 .pragma \"a\"; .explicitcluster { ret; }\n.entry bare { ret; }");
  const Function& f = *m.items[0].function;
  EXPECT_FALSE(f.has_body);
  EXPECT_EQ(f.directives.at(0).name, ".noreturn");
  EXPECT_EQ(m.items[1].function->attributes, ".attribute(.unified(1, 2))");
  const Function& e = *m.items[2].function;
  EXPECT_TRUE(e.is_entry);
  EXPECT_EQ(e.linkage, ".weak");
  EXPECT_EQ(e.params[0].attributes, ".ptr .global .align 16");
  EXPECT_EQ(e.params[1].size_bytes(), 24u);
  EXPECT_EQ(e.directives[0].values, (std::vector<uint64_t>{256, 1, 1}));
  EXPECT_EQ(e.directives.size(), 4u);
  EXPECT_EQ(m.find("f"), &f);
  EXPECT_EQ(m.find("nothing"), nullptr);
  EXPECT_EQ(print(parsed(print(m))), print(m));
}

TEST(Parser, UnknownOpcodeIsKept) {
  Body b("frobnicate.x2.b32::y %r1, [%rd1], {1, 2};");
  EXPECT_EQ(b.instruction().opcode, "frobnicate");
  EXPECT_EQ(find_opcode("frobnicate"), nullptr);
  EXPECT_TRUE(verify(b.module).ok());
}

TEST(Parser, ErrorsSayWhereAndWhat) {
  EXPECT_EQ(
      error_of(""),
      "1:1: expected '.version' (the text must begin with .version MAJOR.MINOR), found the end of the text");
  EXPECT_EQ(error_of(".version nine"), "1:10: expected a PTX version such as 9.0, found 'nine'");
  EXPECT_EQ(body_error("add.s32 %r1, %r2"), "8:1: expected ',' or ';' after an operand, found '}'");
  EXPECT_EQ(body_error("add.s32 %r1, ;"), "7:14: expected an operand, found ';'");
  EXPECT_EQ(body_error("@ add.s32 %r1, %r1, 1;").substr(0, 4), "7:6:");
  EXPECT_EQ(body_error("ld.u32 %r1, [%r2;"), "7:17: expected ',' or ']', found ';'");
  EXPECT_EQ(body_error("mov.u32 %r1, 12abc;"), "7:14: expected an operand, found '12abc'");
  EXPECT_EQ(body_error("mov.u32 %r1, 0x;").substr(0, 14), "7:14: expected");
  EXPECT_EQ(body_error("mov.u32 %r1, 99999999999999999999;").substr(0, 14), "7:14: expected");
  EXPECT_EQ(body_error(".reg .b32 %x<0>;").substr(0, 14), "7:16: expected");
  EXPECT_EQ(error_of(kHead + std::string("/* no end")).substr(0, 4), "4:1:");
  EXPECT_EQ(error_of(kHead + std::string(".entry k( .param .u32 ) {}")).substr(0, 14), "4:23: expected");
  EXPECT_EQ(error_of(kHead + std::string(".entry k() { ret;")).substr(0, 14), "4:18: expected");
}

TEST(Parser, DeepNestingIsAnErrorNotAStackOverflow) {
  EXPECT_NE(body_error(std::string(100000, '{')), "accepted");
  EXPECT_NE(body_error("mov.u32 %r1, " + std::string(100000, '{') + ";"), "accepted");
  EXPECT_NE(body_error("mov.u32 %r1, " + std::string(100000, '-') + "1;"), "accepted");
  EXPECT_NE(body_error("mov.u32 %r1, " + std::string(100000, '!') + "%r1;"), "accepted");
  EXPECT_NE(body_error("mov.u32 %r1, ~" + std::string(100000, '(') + "1;"), "accepted");
  std::string ternary = "mov.u32 %r1, 1";
  for (int i = 0; i < 100000; ++i) {
    ternary += "?1:1";
  }
  EXPECT_NE(body_error(ternary + ";"), "");  // must return
}

TEST(Parser, EveryTruncationOfARealModule) {
  std::string text = fixture("kernels.ptx");
  for (size_t n = 0; n < text.size(); n += 131) {
    (void)parse(std::string_view(text).substr(0, n));
  }
}

class RoundTrip : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, RoundTrip, testing::Values("kernels.ptx", "kernels_debug.ptx"));

TEST_P(RoundTrip, PrintIsAFixedPointAndValid) {
  Module m = parsed(fixture(GetParam()));
  base::Status valid = verify(m);
  EXPECT_TRUE(valid.ok()) << valid.error().text;
  std::string once = print(m);
  Module again = parsed(once);
  EXPECT_EQ(print(again), once);
  EXPECT_EQ(again.items.size(), m.items.size());
}

TEST(Verifier, Findings) {
  auto finding = [](const std::string& body) {
    Module m = parsed(kHead + std::string(".global .b32 x;\n.entry k(.param .u64 p)\n{\n") + kRegisters +
                      body + "\n}\n");
    base::Status s = verify(m);
    return s.ok() ? std::string() : s.error().text;
  };
  EXPECT_EQ(finding("ld.param.u64 %rd1, [p]; mov.u64 %rd2, x; @%p1 bra L; L: ret;"), "");
  EXPECT_NE(finding("mov.u32 %r1, %r10;"), "");
  EXPECT_NE(finding("@%r1 bra L; L: ret;"), "") << "guard is not a predicate";
  EXPECT_NE(finding("@%p77 ret;"), "");
  EXPECT_NE(finding("bra NOWHERE;"), "");
  EXPECT_NE(finding("{ L: } bra L;"), "") << "label of an inner scope";
  EXPECT_EQ(finding("{ bra L; } L: ret;"), "");
  EXPECT_NE(finding("L: L: ret;"), "");
  EXPECT_NE(finding(".reg .b32 a; .reg .b32 a;"), "");
  EXPECT_EQ(finding(".reg .b32 a; { .reg .b32 a; }"), "");
  EXPECT_NE(finding("st.global.u32 [y], %r1;"), "");
  EXPECT_NE(finding("call nowhere;"), "");
}

TEST(Opcodes, WrittenOperands) {
  auto written = [](const std::string& text) {
    Body b(text);
    const Opcode* o = find_opcode(b.instruction().opcode);
    return o ? written_operand(*o, b.instruction()) : -2;
  };
  EXPECT_EQ(written("add.s32 %r1, %r2, %r3;"), 0);
  EXPECT_EQ(written("st.global.u32 [%rd1], %r1;"), -1);
  EXPECT_EQ(written("bar.sync %r1, %r2;"), -1);
  EXPECT_EQ(written("barrier.red.or.pred %p1, 0, %p2;"), 0);
  EXPECT_EQ(written("mbarrier.init.shared.b64 [%r1], 1;"), -1);
  EXPECT_EQ(written("mbarrier.arrive.shared.b64 %rd1, [%r1];"), 0);
  EXPECT_EQ(written("wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd1], {%f0};"), -1);
  EXPECT_EQ(written("call (p), f, (p);"), 0);
  EXPECT_EQ(written("call f, (p);"), -1);
  EXPECT_EQ(written("ret;"), -1);
}

}  // namespace
}  // namespace tessera::ptx
