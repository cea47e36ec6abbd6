#include "kernels/slice/stability.h"

#include <algorithm>

#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;

constexpr Name kFloats[] = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"};
constexpr Name kTensorFloats[] = {"f16",  "bf16", "tf32", "f32",  "f64",
                                  "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"};
constexpr Name kRoundings[] = {"rn", "rz", "rm", "rp", "rna", "rs"};
constexpr Name kApproximations[] = {"sin", "cos", "ex2", "lg2", "tanh"};
constexpr Name kInexact[] = {"div", "sqrt", "rcp", "rsqrt"};  // correctly rounded only if they say how
constexpr Name kSums[] = {"add", "sub"};

template <size_t N>
bool one_of(Name name, const Name (&list)[N]) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}
template <size_t N>
bool has_any(const Instruction& i, const Name (&list)[N]) {
  return std::any_of(i.modifiers.begin(), i.modifiers.end(), [&](Name m) { return one_of(m, list); });
}

// tcgen05.mma names its types by one word: all are floating-point but i8.
bool names_float_kind(const Instruction& i) {
  return std::any_of(i.modifiers.begin(), i.modifiers.end(),
                     [](Name m) { return std::string_view(m).starts_with("kind::") && m != "kind::i8"; });
}

// The instability of one instruction by itself; contraction needs two.
Instability alone(const Node& node) {
  const Instruction& i = *node.instruction;
  if (!node.opcode) return Instability::kUnknown;
  if (node.opcode->op_class == OpClass::kTensor && i.opcode != "ldmatrix" && i.opcode != "stmatrix")
    return has_any(i, kTensorFloats) || names_float_kind(i) ? Instability::kTensor : Instability::kNone;
  if (!has_any(i, kFloats)) return Instability::kNone;
  if (i.has("approx") || i.has("full") || one_of(i.opcode, kApproximations)) return Instability::kApproximate;
  if (one_of(i.opcode, kInexact) && !has_any(i, kRoundings)) return Instability::kApproximate;
  return Instability::kNone;
}

bool may_fuse(const Instruction& i) {
  return has_any(i, kFloats) && !has_any(i, kRoundings);
}

BitStability unstable(Instability reason, const Instruction* i, std::string detail) {
  BitStability b;
  b.reason = reason;
  b.detail = std::move(detail);
  b.line = i ? i->at.line : 0;
  return b;
}

}  // namespace

const char* instability_text(Instability reason) {
  static constexpr const char* kTexts[] = {
#define TS_ROW(id, text) text,
      TS_INSTABILITIES(TS_ROW)
#undef TS_ROW
  };
  return kTexts[size_t(reason)];
}

BitStability bit_stable_when_recompiled(const ptx::Module& module, Name kernel) {
  Closure closure(module);
  const FunctionFacts* root = closure.facts(kernel);
  if (!root) return unstable(Instability::kUnknown, nullptr, "not defined in this module");
  const Instruction *product = nullptr, *sum = nullptr;  // of the kernel with all that it calls: inlined
  for (const FunctionFacts* f : reached(*root)) {
    // Indirect calls, functions of other modules and forms that the analysis gives up on.
    if (f->own.refusal == Refusal::kIndirectCall || f->flow.gave_up)
      return unstable(Instability::kUnknown, nullptr,
                      f->own.detail.empty() ? std::string(f->function->name) : f->own.detail);
    for (const Node& node : f->flow.nodes) {
      const Instruction& i = *node.instruction;
      const Instability reason = alone(node);
      if (reason != Instability::kNone) return unstable(reason, &i, at(i));
      if (!may_fuse(i)) continue;
      if (i.opcode == "mul" && !product) product = &i;
      if (one_of(i.opcode, kSums) && !sum) sum = &i;
    }
  }
  if (product && sum)
    return unstable(Instability::kContractible, product, at(*product) + " with " + at(*sum));
  return {};
}

}  // namespace tessera::slice
