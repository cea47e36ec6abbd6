#include "tests/unit/softgpu_exec/instruction_case.h"

#include <limits>
#include <random>
#include <sstream>

#include "tests/unit/softgpu_exec/harness.h"

namespace tessera::softgpu::exec {
namespace {

unsigned bytes_of(char c) {
  return c == 'h' ? 2 : c == 'd' ? 8 : 4;
}

}  // namespace

const char* bits_of(char c) {
  return c == 'h' ? "b16" : c == 'd' ? "b64" : "b32";
}

std::string replace(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

// The whole module; %p3 is true in odd threads.
std::string kernel_text(const Case& c) {
  const char d = c.types[0] == 'p' ? 'w' : c.types[0];
  std::string s = ptx_header() +
                  ".visible .entry k(.param .u64 pd, .param .u64 pa, .param .u64 pb, .param .u64 pc, "
                  ".param .u32 pn)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n";
  s += std::string(".reg .") + bits_of(d) + " %d;\n";
  for (size_t i = 1; i < c.types.size(); ++i) {
    const char name = static_cast<char>('a' + i - 1);
    s += std::string(".reg .") + bits_of(c.types[i]) + " %" + name + "x;\n";
    if (c.types[i] == 'p') s += std::string(".reg .pred %") + name + "p;\n";
  }
  s += "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.u32 %r4, %r1, %r2, %r3;\n"
       "ld.param.u32 %r5, [pn];\nsetp.ge.u32 %p1, %r4, %r5;\n@%p1 bra DONE;\n"
       "and.b32 %r6, %r4, 1;\nsetp.ne.u32 %p3, %r6, 0;\n";
  const char* params[] = {"pa", "pb", "pc"};
  for (size_t i = 1; i < c.types.size(); ++i)
    s += std::string("ld.param.u64 %rd1, [") + params[i - 1] + "];\nmul.wide.u32 %rd2, %r4, " +
         std::to_string(bytes_of(c.types[i])) + ";\nadd.s64 %rd1, %rd1, %rd2;\nld.global." +
         bits_of(c.types[i]) + " %" + static_cast<char>('a' + i - 1) + "x, [%rd1];\n";
  std::string text = c.text;
  text = replace(text, "$d", "%d");
  text = replace(text, "$p", "%p2");
  for (size_t i = 1; i < c.types.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i - 1));
    if (c.types[i] == 'p') s += "setp.ne.b32 %" + name + "p, %" + name + "x, 0;\n";
    text = replace(text, "$" + name, "%" + name + (c.types[i] == 'p' ? "p" : "x"));
  }
  s += text + "\n";
  if (c.types[0] == 'p') s += "selp.b32 %d, 1, 0, %p2;\n";
  s += "ld.param.u64 %rd1, [pd];\nmul.wide.u32 %rd2, %r4, " + std::to_string(bytes_of(d)) +
       ";\nadd.s64 %rd1, %rd1, %rd2;\nst.global." + bits_of(d) + " [%rd1], %d;\nDONE:\nret;\n}\n";
  return s;
}

namespace {

std::vector<U> edges(char type, char values) {
  if (type == 'p') return {0, 1};
  std::vector<U> v;
  if (values == 'f') {
    if (type == 'h')
      v = {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x3c00, 0xbc00, 0x3c01,
           0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x4248, 0xc500, 0x1400};
    else if (type == 'd')
      for (double x : {0.0, -0.0, 1.0, -1.0, 0.5, 3.25, -7.125, 1e300, -1e300, 1e-300, 5e-324, HUGE_VAL,
                       -HUGE_VAL, double{NAN}, 2147483647.5, -2147483648.5, 4294967296.0, 1e19, 0.1})
        v.push_back(std::bit_cast<U>(x));
    else
      for (float x : {0.0f,  -0.0f,         1.0f,   -1.0f,  0.5f,        2.5f,      3.5f,       -7.125f,
                      1e38f, -3e38f,        1e-38f, 1e-45f, -1e-40f,     HUGE_VALF, -HUGE_VALF, NAN,
                      0.1f,  2147483648.0f, -4e9f,  255.5f, 0.99999994f, 1.0000001f})
        v.push_back(std::bit_cast<uint32_t>(x));
  } else {
    v = {0,
         1,
         2,
         3,
         7,
         31,
         32,
         33,
         63,
         64,
         127,
         128,
         255,
         0x7fff,
         0x8000,
         0xffff,
         0x7fffffff,
         0x80000000,
         0xffffffff,
         0x123456789abcdef0,
         0x7fffffffffffffff,
         0x8000000000000000,
         0xffffffffffffffff};
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 6; ++i) {
    U x = random();
    if (values == 'f' && type == 'w')
      x = std::bit_cast<uint32_t>(
          std::ldexp(static_cast<float>(static_cast<int32_t>(x)), static_cast<int>(x >> 40 & 31) - 46));
    if (values == 'f' && type == 'd')
      x = std::bit_cast<U>(std::ldexp(static_cast<double>(static_cast<int64_t>(x)), -60));
    v.push_back(x);
  }
  const U mask = bytes_of(type) == 8 ? ~U{0} : (U{1} << (8 * bytes_of(type))) - 1;
  for (U& x : v) x &= mask;
  return v;
}

void store(std::vector<char>& to, size_t i, unsigned bytes, U value) {
  std::memcpy(to.data() + i * bytes, &value, bytes);
}

}  // namespace

Outcome outcome_of(const Case& c, std::string* why) {
  TestModule m(kernel_text(c));
  if (!m.ok() || !m.program->kernel("k")) {
    *why = m.ok() ? m.program->refused().at("k") : m.error;
    return Outcome::kRefused;
  }
  // Operand combinations: all pairs; the third walks along.
  std::vector<U> lists[3];
  for (size_t k = 1; k < c.types.size(); ++k) {
    lists[k - 1] = edges(c.types[k], c.values == 's' ? 'i' : c.values);
    if (c.values == 's' && k > 1 && c.types[k] != 'p')
      lists[k - 1] = {0, 1, 5, 8, 16, 31, 32, 33, 40, 63, 64, 100, 255};
    if (c.unread == k) lists[k - 1].resize(1);
  }
  std::vector<std::array<U, 3>> inputs;
  const size_t nb = std::max<size_t>(lists[1].size(), 1);
  for (size_t i = 0; i < lists[0].size(); ++i)
    for (size_t j = 0; j < nb; ++j) {
      const size_t thirds = lists[2].empty() ? 1 : 3;
      for (size_t k = 0; k < thirds; ++k)
        inputs.push_back({lists[0][i], lists[1].empty() ? 0 : lists[1][j],
                          lists[2].empty() ? 0 : lists[2][(i * 5 + j * 3 + k * 7) % lists[2].size()]});
    }
  const size_t n = inputs.size();
  const unsigned db = c.types[0] == 'p' ? 4 : bytes_of(c.types[0]);
  DeviceArray<char> d(n * db);
  std::vector<std::unique_ptr<DeviceArray<char>>> arrays;
  Params params;
  params.add(d.address());
  for (size_t k = 1; k < 4; ++k) {
    const unsigned bytes = k < c.types.size() ? bytes_of(c.types[k]) : 4;
    std::vector<char> data(n * bytes);
    for (size_t i = 0; i < n; ++i) store(data, i, bytes, inputs[i][k - 1]);
    arrays.push_back(std::make_unique<DeviceArray<char>>(data));
    params.add(arrays.back()->address());
  }
  params.add(static_cast<uint32_t>(n));
  const Fault f = m.run("k", {static_cast<uint32_t>((n + 95) / 96), 1, 1}, {96, 1, 1}, params);
  if (f.kind != FaultKind::kNone) {
    *why = "fault: " + f.text;
    return Outcome::kWrong;
  }
  unsigned wrong = 0;
  for (size_t i = 0; i < n && wrong < 3; ++i) {
    U got = 0;
    std::memcpy(&got, d.data() + i * db, db);
    const U mask = db == 8 ? ~U{0} : (U{1} << (8 * db)) - 1;
    const bool skipped = c.guard != Guard::kNone && (c.guard == Guard::kOdd) != (i % 2 == 1);
    const U want = (skipped ? kUntouched : c.want(inputs[i][0], inputs[i][1], inputs[i][2])) & mask;
    if (got == want) continue;
    if (c.relative > 0) {
      const double g =
          db == 8 ? std::bit_cast<double>(got) : std::bit_cast<float>(static_cast<uint32_t>(got));
      const double w =
          db == 8 ? std::bit_cast<double>(want) : std::bit_cast<float>(static_cast<uint32_t>(want));
      if ((g != g && w != w) || (std::isfinite(w) && std::fabs(g - w) <= c.relative * std::fabs(w))) continue;
    }
    ++wrong;
    std::ostringstream line;
    line << std::hex << "a " << inputs[i][0] << " b " << inputs[i][1] << " c " << inputs[i][2] << ": got "
         << got << " want " << want << "\n";
    *why += line.str();
  }
  return wrong ? Outcome::kWrong : Outcome::kRight;
}

void check(const Case& c) {
  SCOPED_TRACE(c.text);
  std::string why;
  EXPECT_EQ(outcome_of(c, &why), Outcome::kRight) << why;
  check_operand_forms(c);
}

}  // namespace tessera::softgpu::exec
