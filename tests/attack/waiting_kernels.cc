// Random kernels of which each block waits for a word that another block writes: none may be accepted for
// cutting. A kernel is put together of five parts, each in many forms: how the address is made, how the word
// is read, how what was read comes to a branch, which branch ends the wait, and what loops and functions are
// around it. Nothing runs; the verdict is asked for with order dependence allowed, so that only the wait can
// be the reason. Found: an accepted kernel, or one that is refused for another reason, which would test
// nothing.
#include <functional>
#include <string>
#include <vector>

#include "kernels/ptx/parser.h"
#include "kernels/slice/slice.h"
#include "tests/attack/attack.h"

namespace tessera::attack {
namespace {

constexpr uint64_t kLeastKernels = 3'000;  // however slow the machine is

constexpr const char* kFunctions = R"(
.func (.param .b32 seen) poll(.param .b64 at)
{
  .reg .b64 %rd<2>; .reg .b32 %r<2>;
  ld.param.b64 %rd1, [at];
  ld.global.u32 %r1, [%rd1];
  st.param.b32 [seen], %r1;
  ret;
}
.func (.param .b64 out) same(.param .b64 in)
{
  .reg .b64 %rd<2>;
  ld.param.b64 %rd1, [in];
  st.param.b64 [out], %rd1;
  ret;
}
.func leave_if(.param .b32 seen)
{
  .reg .b32 %r<2>; .reg .pred %p<2>;
  ld.param.b32 %r1, [seen];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 exit;
  ret;
}
.func wait_for(.param .b64 at)
{
  .reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p<2>;
  ld.param.b64 %rd1, [at];
W:
  ld.global.u32 %r1, [%rd1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra W;
  ret;
}
)";

// One kernel in the making. `before` stands in front of the loop, `body` in it, `back` at its end.
class Kernel {
 public:
  explicit Kernel(std::mt19937_64& random) : random_(random) {}

  std::string text();
  std::string forms() const { return forms_; }  // which ones were chosen

 private:
  using Make = std::function<void()>;

  uint64_t below(uint64_t n) { return random_() % n; }
  std::string r() { return "%r" + std::to_string(++n_r_); }
  std::string rd() { return "%rd" + std::to_string(++n_rd_); }
  std::string p() { return "%p" + std::to_string(++n_p_); }
  std::string label() { return "N" + std::to_string(++n_labels_); }
  std::string number(uint64_t n) { return std::to_string(n); }
  static void line(std::string& to, const std::string& text) { to += "  " + text + ";\n"; }
  void in(const std::string& text) { line(body_, text); }
  void pre(const std::string& text) { line(before_, text); }
  void end(const std::string& text) { line(back_, text); }
  // A counter of this width that each pass raises.
  std::string counter(unsigned bits = 32, const std::string& step = "1") {
    const std::string i = bits == 32 ? r() : rd(), type = "u" + number(bits);
    pre("mov." + type + " " + i + ", 0");
    end("add." + type + " " + i + ", " + i + ", " + step);
    return i;
  }
  std::string word(const std::string& index) {  // the address of base[index], a register of 32 bits
    const std::string offset = rd(), at = rd();
    in("mul.wide.u32 " + offset + ", " + index + ", 4");
    in("add.s64 " + at + ", " + base_ + ", " + offset);
    return at;
  }
  template <size_t N>
  void choose(const char* part, const Make (&forms)[N]) {
    const size_t n = below(N);
    forms_ += std::string(forms_.empty() ? "" : " ") + part + number(n);
    forms[n]();
  }

  void address();
  void load();
  void transport();
  void leave();
  void noise();

  std::mt19937_64& random_;
  std::string before_, body_, back_, forms_;
  std::string base_, at_, seen_;  // the words; where is polled; what was read, not 0 = go on
  std::string repeat_ = "L";      // where the next pass begins
  unsigned n_r_ = 0, n_rd_ = 0, n_p_ = 0, n_labels_ = 0;
};

// `at_`: the same words again and again, some of other blocks.
void Kernel::address() {
  const Make forms[] = {
      [&] { at_ = base_; },
      [&] {  // the next block's
        const std::string c = r();
        in("mov.u32 " + c + ", %ctaid.x");
        in("add.u32 " + c + ", " + c + ", 1");
        at_ = word(c);
      },
      [&] {  // a ring
        const std::string i = counter(), m = r();
        in("and.b32 " + m + ", " + i + ", " + number((uint64_t{2} << below(6)) - 1));
        at_ = word(m);
      },
      [&] {
        const std::string i = counter(), m = r();
        in("rem.u32 " + m + ", " + i + ", " + number(2 + below(9)));
        at_ = word(m);
      },
      [&] {  // two words in turn
        const std::string t = rd();
        pre("mov.u64 " + t + ", 0");
        end("xor.b64 " + t + ", " + t + ", 4");
        at_ = rd();
        in("add.s64 " + at_ + ", " + base_ + ", " + t);
      },
      [&] {  // the end of a list, which others move on
        at_ = rd();
        in("ld.global.u64 " + at_ + ", [" + base_ + "+64]");
      },
      [&] {
        const std::string t = r(), got = r();
        in("mov.u32 " + t + ", %laneid");
        in("shfl.sync.idx.b32 " + got + ", " + t + ", 0, 31, -1");
        at_ = word(got);
      },
      [&] {
        const std::string mask = r(), n = r();
        in("activemask.b32 " + mask);
        in("popc.b32 " + n + ", " + mask);
        at_ = word(n);
      },
      [&] {  // made by a branch
        const std::string c = r(), q = p(), skip = label();
        at_ = rd();
        in("mov.u32 " + c + ", %clock");
        in("and.b32 " + c + ", " + c + ", 1");
        in("setp.eq.u32 " + q + ", " + c + ", 0");
        in("mov.u64 " + at_ + ", " + base_);
        in("@" + q + " bra " + skip);
        in("add.s64 " + at_ + ", " + base_ + ", 4");
        body_ += skip + ":\n";
      },
      [&] {
        const std::string t = r(), q = p(), other = rd();
        at_ = rd();
        in("mov.u32 " + t + ", %tid.x");
        in("setp.eq.u32 " + q + ", " + t + ", 0");
        in("add.s64 " + other + ", " + base_ + ", 4");
        in("selp.b64 " + at_ + ", " + base_ + ", " + other + ", " + q);
      },
      [&] {  // comes round after a few passes
        const std::string i = counter(32, number(uint64_t{1} << (25 + below(7))));
        at_ = word(i);
      },
      [&] {  // a stride that may be 0
        const std::string s = rd();
        pre("ld.param.u64 " + s + ", [stride]");
        at_ = rd();
        pre("mov.u64 " + at_ + ", " + base_);
        end("add.s64 " + at_ + ", " + at_ + ", " + s);
      },
      [&] {  // goes on only where it has seen the word
        const std::string q = p(), last = r();
        at_ = rd();
        pre("mov.u64 " + at_ + ", " + base_);
        in("ld.global.u32 " + last + ", [" + at_ + "]");
        in("setp.ne.u32 " + q + ", " + last + ", 0");
        end("@" + q + " add.s64 " + at_ + ", " + at_ + ", 4");
      },
      [&] {  // there and back
        at_ = rd();
        pre("mov.u64 " + at_ + ", " + base_);
        in("add.s64 " + at_ + ", " + at_ + ", 4");
        end("add.s64 " + at_ + ", " + at_ + ", -4");
      },
      [&] {
        const std::string i = counter(), h = "%h1", wide = rd();
        in("cvt.u16.u32 " + h + ", " + i);
        in("cvt.u64.u16 " + wide + ", " + h);
        at_ = rd();
        in("add.s64 " + at_ + ", " + base_ + ", " + wide);
      },
      [&] {
        at_ = rd();
        in("st.shared.u64 [box], " + base_);
        in("bar.sync 0");
        in("ld.shared.u64 " + at_ + ", [box]");
      },
      [&] {
        at_ = rd();
        in("st.local.u64 [own], " + base_);
        in("ld.local.u64 " + at_ + ", [own]");
      },
      [&] {
        at_ = rd();
        body_ += "  { .param .b64 a; .param .b64 b; st.param.b64 [a], " + base_ +
                 "; call (b), same, (a); ld.param.b64 " + at_ + ", [b]; }\n";
      },
      [&] {  // in halves
        const std::string lo = r(), hi = r();
        at_ = rd();
        in("mov.b64 {" + lo + ", " + hi + "}, " + base_);
        in("add.cc.u32 " + lo + ", " + lo + ", 4");
        in("addc.u32 " + hi + ", " + hi + ", 0");
        in("mov.b64 " + at_ + ", {" + lo + ", " + hi + "}");
      },
      [&] {
        const std::string i = counter(), m = r();
        in("min.u32 " + m + ", " + i + ", " + number(below(9)));
        at_ = word(m);
      },
      [&] {
        const std::string i = counter(), s = r(), m = r();
        pre("ld.param.u32 " + s + ", [stride]");
        in("mul.lo.u32 " + m + ", " + i + ", " + s);
        at_ = word(m);
      },
      [&] {
        const std::string i = counter(), m = r();
        in("bfe.u32 " + m + ", " + i + ", 0, " + number(1 + below(5)));
        at_ = word(m);
      },
      [&] {  // two pointers that change places
        const std::string other = rd(), keep = rd();
        at_ = rd();
        pre("mov.u64 " + at_ + ", " + base_);
        pre("add.s64 " + other + ", " + base_ + ", 4");
        end("mov.u64 " + keep + ", " + at_);
        end("mov.u64 " + at_ + ", " + other);
        end("mov.u64 " + other + ", " + keep);
      },
      [&] {
        const std::string i = counter(), m = r();
        in("mad.lo.u32 " + m + ", " + i + ", 268435456, 0");
        at_ = word(m);
      },
      [&] {
        const std::string i = counter(), m = r();
        in("shl.b32 " + m + ", " + i + ", " + number(24 + below(7)));
        at_ = word(m);
      },
      [&] {
        const std::string i = counter(), m = r();
        in("sub.u32 " + m + ", " + i + ", " + i);
        at_ = word(m);
      },
      [&] {  // only some passes raise it
        const std::string t = r(), q = p();
        at_ = rd();
        pre("mov.u64 " + at_ + ", " + base_);
        in("mov.u32 " + t + ", %tid.x");
        in("setp.gt.u32 " + q + ", " + t + ", 3");
        end("@" + q + " add.s64 " + at_ + ", " + at_ + ", 4");
      },
      [&] {  // and back to the first after a few
        const std::string i = counter(), q = p();
        at_ = rd();
        pre("mov.u64 " + at_ + ", " + base_);
        end("add.s64 " + at_ + ", " + at_ + ", 4");
        end("setp.eq.u32 " + q + ", " + i + ", 8");
        end("@" + q + " mov.u64 " + at_ + ", " + base_);
      },
      [&] {
        const std::string i = r();
        pre("mov.u32 " + i + ", 0");
        end("add.sat.s32 " + i + ", " + i + ", 64");
        at_ = word(i);
      },
      [&] {  // four passes round the address space
        at_ = rd();
        pre("mov.u64 " + at_ + ", " + base_);
        end("add.s64 " + at_ + ", " + at_ + ", 4611686018427387904");
      },
      [&] {  // a literal step, but the pointer is read anew
        const std::string i = counter(64, "4"), from = rd();
        at_ = rd();
        in("ld.global.u64 " + from + ", [" + base_ + "+64]");
        in("add.s64 " + at_ + ", " + from + ", " + i);
      },
      [&] {  // up and down cancel out
        const std::string up = counter(64, "4"), down = counter(64, "-4"), both = rd();
        at_ = rd();
        in("add.s64 " + both + ", " + up + ", " + down);
        in("add.s64 " + at_ + ", " + base_ + ", " + both);
      },
      [&] {  // an inner loop sweeps over some words, again in each pass
        const std::string i = r(), q = p(), l = label(), v = r(), all = r();
        in("mov.u32 " + i + ", 0");
        in("mov.u32 " + all + ", 1");
        body_ += l + ":\n";
        const std::string at = word(i);
        in("ld.global.u32 " + v + ", [" + at + "]");
        in("min.u32 " + all + ", " + all + ", " + v);
        in("add.u32 " + i + ", " + i + ", 1");
        in("setp.lt.u32 " + q + ", " + i + ", 8");
        in("@" + q + " bra " + l);
        seen_ = all;
      },
  };
  choose("address", forms);
}

void Kernel::load() {
  if (!seen_.empty()) return;  // the address form has read
  seen_ = r();
  const std::string q = p();
  auto plain = [&](const std::string& op) { in(op + " " + seen_ + ", [" + at_ + "]"); };
  const Make forms[] = {
      [&] { plain("ld.global.u32"); },
      [&] { plain("ld.u32"); },
      [&] { plain("ld.global.cg.u32"); },
      [&] { plain("ld.global.cs.u32"); },
      [&] { plain("ld.global.lu.u32"); },
      [&] { plain("ld.global.ca.u32"); },
      [&] { plain("ld.volatile.global.u32"); },
      [&] { plain("ld.relaxed.gpu.global.u32"); },
      [&] { plain("ld.acquire.sys.global.u32"); },
      [&] { plain("ld.global.cv.u32"); },
      [&] { plain("ldu.global.u32"); },
      [&] { plain("ld.global.u8"); },
      [&] { plain("ld.global.L1::no_allocate.u32"); },
      [&] { in("ld.global.v2.u32 {" + r() + ", " + seen_ + "}, [" + at_ + "]"); },
      [&] { in("ld.global.u32 " + seen_ + ", [" + at_ + "+" + number(4 * below(5)) + "]"); },
      [&] { in("atom.global.add.u32 " + seen_ + ", [" + at_ + "], 0"); },
      [&] { in("atom.global.or.b32 " + seen_ + ", [" + at_ + "], 0"); },
      [&] { in("atom.global.exch.b32 " + seen_ + ", [" + at_ + "], 0"); },
      [&] { in("atom.global.cas.b32 " + seen_ + ", [" + at_ + "], 0, 0"); },
      [&] {
        body_ += "  { .param .b64 a; .param .b32 b; st.param.b64 [a], " + at_ +
                 "; call (b), poll, (a); ld.param.b32 " + seen_ + ", [b]; }\n";
      },
      [&] {
        in("cp.async.ca.shared.global [box], [" + at_ + "], 4");
        in("cp.async.wait_all");
        in("ld.shared.u32 " + seen_ + ", [box]");
      },
      [&] {
        const std::string x = r(), tex = rd();
        in("ld.param.u64 " + tex + ", [texture]");
        in("cvt.u32.u64 " + x + ", " + at_);
        in("tex.1d.v4.s32.s32 {" + seen_ + ", " + r() + ", " + r() + ", " + r() + "}, [" + tex + ", {" + x +
           "}]");
      },
      [&] {
        const std::string x = r(), surface = rd();
        in("ld.param.u64 " + surface + ", [texture]");
        in("cvt.u32.u64 " + x + ", " + at_);
        in("suld.b.1d.b32.trap {" + seen_ + "}, [" + surface + ", {" + x + "}]");
      },
      [&] {  // each pass another texel, of which there are few
        const std::string x = counter(), surface = rd();
        in("ld.param.u64 " + surface + ", [texture]");
        in("suld.b.1d.b32.clamp {" + seen_ + "}, [" + surface + ", {" + x + "}]");
      },
      [&] {  // by some threads only
        in("mov.u32 " + seen_ + ", 0");
        const std::string t = r();
        in("mov.u32 " + t + ", %tid.x");
        in("setp.eq.u32 " + q + ", " + t + ", 0");
        in("@" + q + " ld.global.u32 " + seen_ + ", [" + at_ + "]");
      },
  };
  choose("load", forms);
}

// The value that was read goes another way to the instruction that looks at it.
void Kernel::transport() {
  const std::string from = seen_, to = r(), q = p();
  auto nonzero = [&] { in("setp.ne.u32 " + q + ", " + from + ", 0"); };
  const Make forms[] = {
      [&] { in("mov.u32 " + to + ", " + from); },
      [&] {
        in("st.shared.u32 [box+8], " + from);
        in("bar.sync 0");
        in("ld.shared.u32 " + to + ", [box+8]");
      },
      [&] {
        in("st.local.u32 [own+8], " + from);
        in("ld.local.u32 " + to + ", [own+8]");
      },
      [&] { in("shfl.sync.idx.b32 " + to + ", " + from + ", 0, 31, -1"); },
      [&] {
        nonzero();
        in("vote.sync.ballot.b32 " + to + ", " + q + ", -1");
      },
      [&] { in("redux.sync.max.u32 " + to + ", " + from + ", -1"); },
      [&] {
        nonzero();
        in("bar.red.popc.u32 " + to + ", 0, " + q);
      },
      [&] {
        in("mad.lo.u32 " + to + ", " + from + ", 3, 0");
        in("shl.b32 " + to + ", " + to + ", 1");
      },
      [&] {
        nonzero();
        in("selp.u32 " + to + ", 1, 0, " + q);
      },
      [&] {  // by the way that a branch takes
        const std::string skip = label();
        nonzero();
        in("mov.u32 " + to + ", 0");
        in("@!" + q + " bra " + skip);
        in("mov.u32 " + to + ", 1");
        body_ += skip + ":\n";
      },
      [&] {
        nonzero();
        in("mov.u32 " + to + ", 0");
        in("@" + q + " mov.u32 " + to + ", 1");
      },
      [&] {  // by the carry
        const std::string sum = r();
        in("add.cc.u32 " + sum + ", " + from + ", -1");
        in("addc.u32 " + to + ", 0, 0");
      },
      [&] {
        const std::string wide = rd(), other = r();
        in("mov.b64 " + wide + ", {" + from + ", 0}");
        in("mov.b64 {" + to + ", " + other + "}, " + wide);
      },
      [&] {
        body_ += "  { .param .b64 a; .param .b64 b; .reg .b64 w; cvt.u64.u32 w, " + from +
                 "; st.param.b64 [a], w; call (b), same, (a); ld.param.b64 w, [b]; cvt.u32.u64 " + to +
                 ", w; }\n";
      },
      [&] {
        in("atom.shared.max.u32 " + r() + ", [box+8], " + from);
        in("bar.sync 0");
        in("ld.shared.u32 " + to + ", [box+8]");
      },
      [&] {  // by who is left in the warp
        const std::string skip = label(), mask = r();
        nonzero();
        in("mov.u32 " + to + ", 1");
        in("@" + q + " bra " + skip);
        in("activemask.b32 " + mask);
        in("and.b32 " + to + ", " + mask + ", 0");
        body_ += skip + ":\n";
      },
      [&] {  // by global memory
        in("st.global.u32 [" + base_ + "+4096], " + from);
        in("ld.global.u32 " + to + ", [" + base_ + "+4096]");
      },
      [&] {  // by who arrives at a barrier
        nonzero();
        in("@" + q + " mbarrier.arrive.shared.b64 " + rd() + ", [box+16]");
        in("mbarrier.test_wait.parity.shared.b64 " + p() + ", [box+16], 0");
        in("selp.u32 " + to + ", 1, 0, %p" + number(n_p_));
      },
      [&] {  // by a loop that runs as often
        const std::string l = label(), i = r(), bound = r();
        in("mov.u32 " + i + ", 0");
        in("min.u32 " + bound + ", " + from + ", 5");
        body_ += l + ":\n";
        in("setp.lt.u32 " + q + ", " + i + ", " + bound);
        in("add.u32 " + i + ", " + i + ", 1");
        in("@" + q + " bra " + l);
        in("add.u32 " + to + ", " + i + ", -1");
      },
  };
  choose("by", forms);
  seen_ = to;
}

void Kernel::leave() {
  const std::string q = p();
  const Make forms[] = {
      [&] {
        in("setp.ne.u32 " + q + ", " + seen_ + ", 0");
        in("@" + q + " bra OUT");
        back_ += "  bra " + repeat_ + ";\n";
      },
      [&] {
        line(back_, "setp.eq.u32 " + q + ", " + seen_ + ", 0");
        line(back_, "@" + q + " bra " + repeat_);
      },
      [&] {
        in("setp.ne.u32 " + q + ", " + seen_ + ", 0");
        in("@" + q + " ret");
        back_ += "  bra " + repeat_ + ";\n";
      },
      [&] {
        in("setp.ne.u32 " + q + ", " + seen_ + ", 0");
        in("@" + q + " exit");
        back_ += "  bra " + repeat_ + ";\n";
      },
      [&] {
        body_ += "  { .param .b32 a; st.param.b32 [a], " + seen_ + "; call leave_if, (a); }\n";
        back_ += "  bra " + repeat_ + ";\n";
      },
      [&] {
        const std::string one = r(), go = label();
        in("min.u32 " + one + ", " + seen_ + ", 1");
        body_ += "T: .branchtargets " + go + ", OUT;\n  brx.idx " + one + ", T;\n" + go + ":\n";
        back_ += "  bra " + repeat_ + ";\n";
      },
      [&] {  // together with what is always so
        const std::string always = p(), both = p();
        in("setp.ne.u32 " + q + ", " + seen_ + ", 0");
        in("setp.ge.u32 " + always + ", " + seen_ + ", 0");
        in("and.pred " + both + ", " + q + ", " + always);
        line(back_, "not.pred " + both + ", " + both);
        line(back_, "@" + both + " bra " + repeat_);
      },
      [&] {  // a counter that counts only what was seen
        const std::string n = r();
        pre("mov.u32 " + n + ", 0");
        in("setp.ne.u32 " + q + ", " + seen_ + ", 0");
        in("@" + q + " add.u32 " + n + ", " + n + ", 1");
        const std::string few = p();
        line(back_, "setp.lt.u32 " + few + ", " + n + ", " + number(1 + below(3)));
        line(back_, "@" + few + " bra " + repeat_);
      },
      [&] {  // an inner loop out of which the way leads
        const std::string i = r(), inner = label(), few = p();
        in("setp.ne.u32 " + q + ", " + seen_ + ", 0");
        in("mov.u32 " + i + ", 0");
        body_ += inner + ":\n";
        in("@" + q + " bra OUT");
        in("add.u32 " + i + ", " + i + ", 1");
        in("setp.lt.u32 " + few + ", " + i + ", 4");
        in("@" + few + " bra " + inner);
        back_ += "  bra " + repeat_ + ";\n";
      },
  };
  choose("exit", forms);
}

// Additions that many loops have.
void Kernel::noise() {
  for (uint64_t n = below(3); n > 0; --n) {
    switch (below(6)) {
      case 0:
        in("membar.gl");
        break;
      case 1:
        in("nanosleep.u32 100");
        break;
      case 2: {  // a loop over other data
        const std::string i = counter(64, "4"), at = rd(), v = r();
        in("add.s64 " + at + ", " + base_ + ", " + i);
        in("@%p0 ld.global.u32 " + v + ", [" + at + "+65536]");
        break;
      }
      case 3: {
        const std::string x = r();
        in("mov.u32 " + x + ", %tid.x");
        in("xor.b32 " + x + ", " + x + ", 5");
        break;
      }
      case 4: {  // two ways that meet again
        const std::string t = r(), q = p(), skip = label();
        in("mov.u32 " + t + ", %tid.x");
        in("setp.lt.u32 " + q + ", " + t + ", 16");
        in("@" + q + " bra " + skip);
        in("add.u32 " + t + ", " + t + ", 1");
        body_ += skip + ":\n";
        break;
      }
      default: {
        const std::string i = r(), q = p(), l = label();
        in("mov.u32 " + i + ", 0");
        body_ += l + ":\n";
        in("add.u32 " + i + ", " + i + ", 1");
        in("setp.lt.u32 " + q + ", " + i + ", 4");
        in("@" + q + " bra " + l);
      }
    }
  }
}

std::string Kernel::text() {
  base_ = rd();
  enum { kPlain, kOneThread, kInLoop, kCallee, kTwoEntries, kBackEdges, kAround };
  const uint64_t around = below(kAround);
  forms_ = "around" + number(around);
  std::string whole;
  if (around == kCallee) {
    body_ = "  { .param .b64 a; st.param.b64 [a], " + base_ + "; call wait_for, (a); }\n";
    noise();
    whole = before_ + body_;
  } else {
    noise();
    address();
    noise();
    load();
    if (below(2)) transport();
    if (below(4) == 0) transport();
    if (around == kBackEdges) {  // a pass may end early, which changes nothing
      const std::string t = r(), q = p();
      in("mov.u32 " + t + ", %clock");
      in("setp.eq.u32 " + q + ", " + t + ", 7");
      in("@" + q + " bra L");
    }
    leave();
    whole = before_;
    if (around == kOneThread) {
      const std::string t = r(), q = p();
      line(whole, "mov.u32 " + t + ", %tid.x");
      line(whole, "setp.ne.u32 " + q + ", " + t + ", 0");
      line(whole, "@" + q + " bra OUT");
    }
    std::string loop = body_ + back_;
    if (around == kTwoEntries) {
      const std::string t = r(), q = p();
      line(whole, "mov.u32 " + t + ", %tid.x");
      line(whole, "setp.eq.u32 " + q + ", " + t + ", 1");
      line(whole, "@" + q + " bra M");
      loop = "M:\n" + loop;
    }
    whole += "L:\n" + loop + "OUT:\n";
    if (around == kInLoop) {  // once for each piece of work
      const std::string i = r(), q = p();
      whole = "  mov.u32 " + i + ", 0;\nWORK:\n" + whole;
      line(whole, "add.u32 " + i + ", " + i + ", 1");
      line(whole, "setp.lt.u32 " + q + ", " + i + ", 9");
      line(whole, "@" + q + " bra WORK");
    }
  }
  auto registers = [&](const char* type, const char* name, unsigned n) {
    return std::string("  .reg .") + type + " %" + name + "<" + number(n + 1) + ">;\n";
  };
  const std::string c = r(), own = rd(), offset = rd();
  return std::string(".version 8.0\n.target sm_90\n.address_size 64\n.shared .align 8 .b8 box[32];\n") +
         kFunctions + ".visible .entry k(.param .u64 words, .param .u64 stride, .param .u64 texture)\n{\n" +
         registers("pred", "p", n_p_) + registers("b16", "h", 1) + registers("b32", "r", n_r_) +
         registers("b64", "rd", n_rd_) + "  .local .align 8 .b8 own[32];\n" + "  ld.param.u64 " + base_ +
         ", [words];\n  cvta.to.global.u64 " + base_ + ", " + base_ + ";\n  setp.eq.u64 %p0, " + base_ +
         ", 0;\n" + whole +
         // The other blocks wait for this.
         "  mov.u32 " + c + ", %ctaid.x;\n  mul.wide.u32 " + offset + ", " + c + ", 4;\n  add.s64 " + own +
         ", " + base_ + ", " + offset + ";\n  st.global.u32 [" + own + "], 1;\n  ret;\n}\n";
}

}  // namespace
}  // namespace tessera::attack

int main(int argc, char** argv) {
  using namespace tessera;  // NOLINT
  attack::Run run("waiting_kernels", argc, argv);
  for (uint64_t n = 0; (n < attack::kLeastKernels && run.few_findings()) || run.goes_on(); ++n) {
    attack::Kernel kernel(run.random());
    const std::string text = kernel.text();
    auto module = ptx::parse(text);
    if (!module.ok()) {
      run.found("kernel " + std::to_string(n) + " is not PTX: " + module.error().text + "\n" + text);
      continue;
    }
    const auto report = slice::analyse(*module, {.allow_order_dependent = true}).at(0);
    const slice::Refusal why = report.verdict.refusal;
    if (why != slice::Refusal::kInterBlockWait && why != slice::Refusal::kLockLoop) {
      run.found("kernel " + std::to_string(n) + " waits (" + kernel.forms() + "), and the verdict is " +
                slice::refusal_name(why) + " " + report.verdict.detail + "\n" + text);
    }
    run.ran();
  }
  return run.finish();
}
