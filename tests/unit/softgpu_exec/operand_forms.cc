// The forms that PTX has for an operand, applied to every case: a form that ptxas accepts must be executed,
// and its result is what the case's own reference says of the value that the form stands for. ptxas is asked
// about those forms alone that came out otherwise, all at once when the tests are done.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/softgpu_exec/coverage.h"
#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {
namespace {

// True for the kernels that ptxas assembles.
std::vector<bool> assembled(const std::vector<std::string>& kernels) {
  std::vector<bool> good(kernels.size(), true);
  const std::string path = testing::TempDir() + "operand_forms_" + std::to_string(getpid()) + ".ptx";
  for (bool again = true; again;) {  // some errors end the assembly: what is behind them comes next time
    std::ofstream file(path);
    std::vector<size_t> owner(1);  // by line
    const auto write = [&](std::string text, size_t who) {
      for (char& x : text) {
        if (x == '\n') owner.push_back(who);
      }
      file << text;
    };
    write(
        ".version 8.6\n.target sm_90\n.address_size 64\n.const .align 16 .b32 c[32];\n"
        ".global .align 16 .b32 g[32];\n.shared .align 16 .b32 s[32];\n",
        0);
    for (size_t k = 0; k < kernels.size(); ++k)
      if (good[k]) write(kernels[k], k);
    file.close();
    again = false;
    FILE* out = popen((TESSERA_PTXAS " -O0 -arch=sm_90 -o /dev/null " + path + " 2>&1").c_str(), "r");
    char line[1024];
    while (std::fgets(line, sizeof line, out)) {
      const char* at = std::strstr(line, ", line ");
      if (!at) continue;
      const size_t who = owner.at(static_cast<size_t>(std::atol(at + 7)));
      again = again || good[who];
      good[who] = false;
    }
    const int status = pclose(out);
    EXPECT_TRUE(again || status == 0) << "ptxas failed on " << path;
    if (status == 0) again = false;
  }
  unlink(path.c_str());
  return good;
}

class Trials : public testing::Environment {
 public:
  void add(std::string form, std::string why, const std::string& module) {
    forms_.push_back(std::move(form));
    reasons_.push_back(std::move(why));
    const std::string text = module.substr(module.find(".visible"));
    kernels_.push_back(replace(text, "entry k(", "entry k" + std::to_string(kernels_.size()) + "("));
  }
  void TearDown() override {
    const std::vector<bool> legal = assembled(kernels_);
    for (size_t k = 0; k < kernels_.size(); ++k) {
      if (!legal[k]) continue;
      note_form(forms_[k], false);
      ADD_FAILURE() << forms_[k] << " is accepted by ptxas: " << reasons_[k];
    }
  }
  std::set<std::string> seen;  // cases whose forms have been tried

 private:
  std::vector<std::string> forms_, reasons_, kernels_;
};
Trials* const trials = static_cast<Trials*>(testing::AddGlobalTestEnvironment(new Trials));

struct Constant {
  const char* form;
  const char* text;
  U value;
};
constexpr U negative(int64_t x) {
  return static_cast<U>(x);
}
constexpr Constant kIntegerConstants[] = {{"decimal", "5", 5},
                                          {"negative", "-3", negative(-3)},
                                          {"hexadecimal", "0xFFFD", 0xfffd},
                                          {"hexadecimal", "0x8000FFFD", 0x8000fffd},
                                          {"octal", "017", 15},
                                          {"binary", "0b1011", 11},
                                          {"suffix", "7U", 7},
                                          {"expression", "(3+4)*2", 14},
                                          {"expression", "~4", negative(-5)},
                                          {"expression", "!0", 1},
                                          {"expression", "-(2+1)", negative(-3)},
                                          {"expression", "0 ? 4 : 6", 6},
                                          {"warp_size", "WARP_SZ", 32},
                                          {"too_wide", "0x300000005", 0x300000005}};
struct FloatConstant {
  const char* form;
  const char* text;
  double value;
};
constexpr FloatConstant kFloatConstants[] = {{"decimal", "2.5", 2.5},
                                             {"negative", "-0.75", -0.75},
                                             {"exponent", "-25.0e-1", -2.5},
                                             {"exponent", "1e1", 10},
                                             {"hexadecimal32", "0fC0200000", -2.5},
                                             {"hexadecimal32", "0f7F800000", HUGE_VAL},
                                             {"hexadecimal64", "0dC004000000000000", -2.5},
                                             {"hexadecimal64", "0d3FB999999999999A", 0.1}};

// The name under which the forms of a case are counted.
std::string opcode_of(const std::string& text) {
  return text[0] == '{' || text[0] == '@' ? "several" : text.substr(0, text.find(' '));
}

void try_form(const std::string& name, const std::string& opcode, const Case& c) {
  const std::string form = "operand." + name + "." + opcode;
  std::string why;
  if (outcome_of(c, &why) == Outcome::kRight)
    note_form(form, true);
  else
    must_be_illegal(form, c.text + "\n" + why, kernel_text(c));
}

// `text` in place of source k (from 1), which then has that value.
Case with_constant(const Case& c, size_t k, const char* text, U value) {
  Case v = c;
  const std::string name = std::string("$") + static_cast<char>('a' + k - 1);
  v.text = replace(c.text, name, text);
  v.unread = k;
  const U mask = c.types[k] == 'p'   ? ~U{0}
                 : c.types[k] == 'h' ? 0xffff
                 : c.types[k] == 'w' ? 0xffffffff
                                     : ~U{0};
  v.want = [want = c.want, k, value = value & mask](U a, U b, U x) {
    return want(k == 1 ? value : a, k == 2 ? value : b, k == 3 ? value : x);
  };
  return v;
}

void source_forms(const Case& c, size_t k) {
  const std::string name = std::string("$") + static_cast<char>('a' + k - 1);
  if (c.text.find(name) == c.text.npos) return;
  const char type = c.types[k];
  const std::string opcode = opcode_of(c.text);
  if (type == 'p') {
    Case v = c;
    v.text = replace(c.text, name, "!" + name);
    v.want = [want = c.want, k](U a, U b, U x) {
      return want(k == 1 ? !a : a, k == 2 ? !b : b, k == 3 ? !x : x);
    };
    try_form("predicate.negated", opcode, v);
    for (const Constant& n :
         {Constant{"predicate.constant", "1", 1}, Constant{"predicate.constant", "0", 0},
          Constant{"predicate.constant", "-1", 1}, Constant{"predicate.constant", "!0", 1}})
      try_form(n.form, opcode, with_constant(c, k, n.text, n.value));
    return;
  }
  for (const Constant& n : kIntegerConstants)
    try_form(std::string("integer.") + n.form, opcode, with_constant(c, k, n.text, n.value));
  for (const FloatConstant& n : kFloatConstants) {
    const U bits =
        type == 'd' ? std::bit_cast<U>(n.value) : std::bit_cast<uint32_t>(static_cast<float>(n.value));
    try_form(std::string("float.") + n.form, opcode, with_constant(c, k, n.text, bits));
  }
  const std::string bits = bits_of(type);
  Case element = c;
  element.text = "{ .reg .v4 ." + bits + " four; mov." + bits + " four.x, 99; mov." + bits + " four.z, " +
                 name + "; mov." + bits + " four.w, 98; " + replace(c.text, name, "four.z") + " }";
  try_form("vector_element", opcode, element);
  if (type == 'd') return;
  // The low part of a wider register, with ones above it.
  Case wider = c;
  const std::string wide = type == 'h' ? "32" : "64";
  wider.text = "{ .reg .b" + wide + " wide; " +
               (type == 'h' ? ".reg .b16 ones; mov.b16 ones, -1; mov.b32 wide, {" + name + ", ones}; "
                            : "mov.b64 wide, {" + name + ", -1}; ") +
               replace(c.text, name, "wide") + " }";
  try_form("wider_register", opcode, wider);
}

void destination_forms(const Case& c) {
  const char type = c.types[0];
  const std::string opcode = opcode_of(c.text);
  if (type == 'p') {
    if (c.text.find("$p,") == c.text.npos) return;
    Case v = c;  // both results; the second is the complement where there is no boolean operation
    v.text = "{ .reg .pred q; " + replace(c.text, "$p,", "$p|q,") + " }";
    try_form("second_result", opcode, v);
    v.text = replace(c.text, "$p,", "$p|_,");
    try_form("sink", opcode, v);
    v.text = "mov.pred $p, 0; " + replace(c.text, "$p,", "_|_,");
    v.want = [](U, U, U) { return U{0}; };
    try_form("sink", opcode, v);
    return;
  }
  if (c.text.find("$d,") == c.text.npos) return;
  const std::string bits = bits_of(type);
  Case element = c;
  element.text =
      "{ .reg .v2 ." + bits + " two; " + replace(c.text, "$d", "two.y") + " mov." + bits + " $d, two.y; }";
  try_form("vector_element", opcode, element);
  Case sink = c;
  sink.text = "mov." + bits + " $d, 77; " + replace(c.text, "$d,", "_,");
  sink.want = [](U, U, U) { return kUntouched; };
  try_form("sink", opcode, sink);
}

void guard_forms(const Case& c) {
  if (c.text[0] == '{' || c.text.find(';') != c.text.size() - 1 || c.types[0] == 'p' ||
      c.text.find("$d") == c.text.npos)
    return;
  Case v = c;
  const std::string opcode = opcode_of(c.text);
  const std::string before = std::string("mov.") + bits_of(c.types[0]) + " $d, 77; ";
  v.guard = Guard::kOdd;
  v.text = before + "@%p3 " + c.text;
  try_form("guard", opcode, v);
  v.guard = Guard::kEven;
  v.text = before + "@!%p3 " + c.text;
  try_form("guard.negated", opcode, v);
}

}  // namespace

void must_be_illegal(const std::string& form, const std::string& why, const std::string& module) {
  trials->add(form, why, module);
}

void check_operand_forms(const Case& c) {
  // One logic table or type of memory is as good as another.
  if (!trials->seen.insert(c.text.substr(0, c.text[0] == '{' ? c.text.npos : c.text.find(' ')) + c.types)
           .second)
    return;
  for (size_t k = 1; k < c.types.size(); ++k) source_forms(c, k);
  destination_forms(c);
  guard_forms(c);
}

}  // namespace tessera::softgpu::exec
