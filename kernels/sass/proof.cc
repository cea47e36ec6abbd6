#include "kernels/sass/proof.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "kernels/sass/graph.h"

namespace tessera::sass {
namespace {

class Comparison {
 public:
  Comparison(const Program& original, const Program& variant, bool thorough)
      : original_(original), variant_(variant), thorough_(thorough) {}

  std::string run(const image::KernelCode& original, const image::KernelCode& variant,
                  const VariantParameters& parameters) {
    Surroundings around{&original, variant.param_base, original.param_bytes,
                        nullptr,   thorough_,          original.required_threads};
    a_ = build_graph(original_, around, &values_);
    around.code = &variant;
    around.parameters = &parameters;
    b_ = build_graph(variant_, around, &values_);
    if (!a_.refusal.empty()) return a_.refusal;
    if (!b_.refusal.empty()) return "variant " + b_.refusal;
    compared_ = true;
    if (std::string s = same_ways(); !s.empty()) return s;
    values_.classify();
    for (Graph* g : {&a_, &b_})
      for (auto& effects : g->effects) sort_stores(&effects);
    for (uint32_t b = 0; b < original_.n_compared; b++)
      if (std::string s = same_effects(a_.effects[b], b_.effects[b]); !s.empty()) return s;
    return {};
  }
  // After run(). Both programs are understood.
  bool compared() const { return compared_; }
  const Facts& of_original() const { return a_.facts; }
  const Facts& of_variant() const { return b_.facts; }

 private:
  std::string at(const Program& p, uint32_t i) const {
    char text[64];
    snprintf(text, sizeof text, "0x%04x %s", p.at[i], p.instructions[i].opcode->name);
    return text;
  }

  // Block by block the same ways through the code.
  std::string same_ways() const {
    const size_t n = std::min(original_.n_compared, variant_.n_compared);
    for (size_t b = 0; b < n; b++)
      if (original_.blocks[b].ways != variant_.blocks[b].ways)
        return at(original_, original_.blocks[b].end - 1) + ": the variant goes on elsewhere";
    if (original_.n_compared != variant_.n_compared) return "the variant has other basic blocks";
    return {};
  }

  // Stores of one run at one base under one guard: the order does not matter if no byte is written twice.
  void sort_stores(std::vector<Effect>* effects) {
    const auto same_base = [&](const Effect& x, const Effect& y) {
      if (!x.is_store || !y.is_store || x.run != y.run || x.label[1] != y.label[1]) return false;
      if (x.base_words != y.base_words) return false;
      for (size_t k = 0; k < x.base_words; k++)
        if (values_.class_of(x.operands[k]) != values_.class_of(y.operands[k])) return false;
      return values_.class_of(x.operands.back()) == values_.class_of(y.operands.back());
    };
    for (size_t begin = 0; begin < effects->size();) {
      size_t end = begin + 1;
      while (end < effects->size() && same_base((*effects)[begin], (*effects)[end])) end++;
      std::vector<Effect> sorted(effects->begin() + std::ptrdiff_t(begin),
                                 effects->begin() + std::ptrdiff_t(end));
      std::sort(sorted.begin(), sorted.end(),
                [](const Effect& x, const Effect& y) { return x.offset < y.offset; });
      bool apart = true;
      for (size_t e = 1; e < sorted.size(); e++)
        apart = apart && int64_t(sorted[e - 1].offset) + sorted[e - 1].bytes <= sorted[e].offset;
      if (apart) std::move(sorted.begin(), sorted.end(), effects->begin() + std::ptrdiff_t(begin));
      begin = end;
    }
  }

  std::string same_effects(const std::vector<Effect>& a, const std::vector<Effect>& b) {
    for (size_t e = 0; e < std::min(a.size(), b.size()); e++) {
      if (a[e].label != b[e].label)
        return at(original_, a[e].instruction) + ": the variant has " + at(variant_, b[e].instruction) +
               " in its place";
      const auto &x = a[e].operands, &y = b[e].operands;
      for (size_t k = 0; k < std::max(x.size(), y.size()); k++)
        if (k >= x.size() || k >= y.size() || values_.class_of(x[k]) != values_.class_of(y[k]))
          return cause(a[e], k < x.size() ? x[k] : Value(), b[e], k < y.size() ? y[k] : Value());
    }
    if (a.size() > b.size()) return at(original_, a[b.size()].instruction) + ": not in the variant";
    if (a.size() < b.size())
      return "variant " + at(variant_, b[a.size()].instruction) + ": not in the original";
    return {};
  }

  // An effect has an operand that differs: down both expressions at once, along what differs, to where both are not the
  // same operation any more.
  std::string cause(const Effect& effect, const Value& operand, const Effect& other, const Value& its) {
    const std::unordered_map<uint32_t, uint32_t> of_original(a_.atoms.begin(), a_.atoms.end()),
        of_variant(b_.atoms.begin(), b_.atoms.end());
    uint32_t found = effect.instruction, instead = other.instruction;
    std::set<std::pair<uint32_t, uint32_t>> seen;
    std::vector<std::pair<Value, Value>> open = {{operand, its}};
    while (!open.empty()) {
      const auto [x, y] = std::move(open.back());
      open.pop_back();
      const auto xa = only_in(x, y), ya = only_in(y, x);
      if (xa && of_original.contains(*xa)) found = of_original.at(*xa);
      if (ya && of_variant.contains(*ya)) instead = of_variant.at(*ya);
      if (!xa || !ya || !values_.same_operation(*xa, *ya)) break;
      if (!seen.insert({*xa, *ya}).second) continue;
      const auto &a = values_.operands(*xa), &b = values_.operands(*ya);
      for (size_t k = a.size(); k-- > 0;)
        if (k < b.size() && values_.class_of(a[k]) != values_.class_of(b[k])) open.emplace_back(a[k], b[k]);
    }
    return at(original_, found) + ": the variant has " + at(variant_, instead) + " instead, for " +
           at(original_, effect.instruction);
  }
  std::optional<uint32_t> only_in(const Value& x, const Value& y) const {
    std::unordered_set<uint32_t> classes;
    for (const Term& t : y.terms())
      for (const uint32_t atom : t.atoms) classes.insert(values_.class_of_atom(atom));
    for (const Term& t : x.terms())
      for (const uint32_t atom : t.atoms)
        if (!classes.contains(values_.class_of_atom(atom))) return atom;
    return std::nullopt;
  }

  const Program &original_, &variant_;
  const bool thorough_;
  bool compared_ = false;
  Values values_;
  Graph a_, b_;
};

}  // namespace

Proof prove(const image::KernelCode& original, const image::KernelCode& variant,
            const VariantParameters& parameters) {
  Proof out;
  const auto refuse = [&](std::string why) {
    out.difference = std::move(why);
    return out;
  };
  const bool has_parameters = original.param_bytes != 0;
  if (original.sm != variant.sm || (has_parameters && original.param_base != variant.param_base))
    return refuse("another target");
  if (!original.relocations.empty() || !variant.relocations.empty())
    return refuse("an instruction that a loader fills in");
  // Such a function is not in the file, so nobody knows what it reads. Newer compilers call some for tensor maps.
  for (const image::ConstantBank& bank : original.banks)
    for (const image::Relocation& r : bank.relocations)
      if (r.symbol.starts_with("__cuda_syscall_"))
        return refuse("calls " + r.symbol + ", which only the driver has");
  const uint64_t origin = parameters.origin_offset, end = origin + sizeof(uint32_t[6]);
  const uint64_t globals = parameters.globals_offset, n = parameters.variables.size();
  if (origin < original.param_bytes || origin % 4 || end > variant.param_bytes ||
      (n != 0 && (globals < end || globals % 8 || globals + 8 * n > variant.param_bytes)))
    return refuse("parameters in other places");
  // Facts about both programs take time to find and to use, so only those kernels pay for them that need them: first none;
  // then loops that are counted, to take arrays in registers apart; then branches that a warp takes together, too.
  enum { kPlain, kLoops, kBranches, kAttempts };
  Facts of_original, of_variant;
  for (int attempt = kPlain; attempt < kAttempts; attempt++) {
    const auto a = read_program(original.code, original.sm, of_original),
               b = read_program(variant.code, variant.sm, of_variant);
    if (attempt == kPlain && !a) return refuse(a.error().text);
    if (attempt == kPlain && !b) return refuse("variant " + b.error().text);
    if (!a || !b) break;
    if (attempt == kPlain) out.instructions = uint32_t(a->instructions.size());
    Comparison comparison(*a, *b, attempt != kPlain);
    out.difference = comparison.run(original, variant, parameters);
    if (out.difference.empty() || !comparison.compared()) break;
    if (attempt == kPlain)
      of_original.loops = comparison.of_original().loops, of_variant.loops = comparison.of_variant().loops;
    else
      of_original.branches = comparison.of_original().branches,
      of_variant.branches = comparison.of_variant().branches;
  }
  out.proved = out.difference.empty();
  return out;
}

}  // namespace tessera::sass
