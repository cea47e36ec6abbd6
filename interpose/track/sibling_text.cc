#include "interpose/track/sibling_text.h"

#include <exception>
#include <unordered_set>

#include "base/raw_log.h"
#include "interpose/track/reasons.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/slice.h"
#include "kernels/slice/stability.h"

namespace tessera::track {
namespace {

using ptx::Item;
using ptx::Name;
using Names = std::unordered_set<Name>;

void names_in(const ptx::Operand& operand, Names* out) {
  if (!operand.name.empty()) out->insert(operand.name);
  for (const ptx::Operand& child : operand.children) names_in(child, out);
}

void names_in(const std::vector<ptx::Statement>& body, Names* out) {
  for (const ptx::Statement& s : body) {
    for (const ptx::Operand& operand : s.instruction.operands) names_in(operand, out);
    names_in(s.scope, out);
  }
}

Name name_of(const Item& item) {
  if (item.kind == Item::Kind::kFunction) return item.function->name;
  return item.kind == Item::Kind::kVariable ? item.variable.name : Name{};
}

// Leaves `root` and what it names, directly or through what that names.
void keep_only(ptx::Module& module, Name root) {
  Names wanted{root};
  for (size_t before = 0; before != wanted.size();) {
    before = wanted.size();
    for (const Item& item : module.items)
      if (item.kind == Item::Kind::kFunction && wanted.count(item.function->name))
        names_in(item.function->body, &wanted);
  }
  std::erase_if(module.items, [&](const Item& item) {
    if (item.kind == Item::Kind::kRaw) return !item.text.starts_with(".file");
    return wanted.count(name_of(item)) == 0;
  });
}

// What would be a second object in a second module.
bool has_state(const ptx::Module& module) {
  for (const Item& item : module.items)
    if (item.kind == Item::Kind::kVariable && item.variable.space != ptx::Space::kShared) return true;
  return false;
}

// Debug information refers to what is left out; an alias is a name that is not followed.
bool is_plain(const ptx::Module& module) {
  for (Name word : module.target)
    if (word == "debug") return false;
  for (const Item& item : module.items)
    if (item.kind == Item::Kind::kRaw && item.text.starts_with(".alias")) return false;
  return true;
}

SiblingText refused(const char* kernel, const char* reason, const std::string& detail) {
  base::raw_log(base::LogLevel::kDebug, "kernel %s: %s %s", kernel, reason, detail.c_str());
  SiblingText out;
  out.refusal = reason;
  return out;
}

SiblingText make(std::string_view text, const char* kernel, bool relaxed) {
  auto module = ptx::parse(text);
  if (!module) return refused(kernel, reasons::kNotParsed, module.error().text);
  const ptx::Function* original = module->find(kernel);
  if (!original || !original->is_entry || !original->has_body)
    return refused(kernel, reasons::kNotParsed, "not in the image's PTX");
  if (!is_plain(*module)) return refused(kernel, reasons::kModuleState, "debug information or aliases");
  const slice::ModuleState state = slice::module_state(*module, original->name);
  if (!state.none() || state.printf_buffer || state.device_heap) {
    const std::string first = state.globals.empty() ? std::string() : std::string(state.globals[0]);
    return refused(kernel, reasons::kModuleState, state.detail.empty() ? first : state.detail);
  }
  const slice::BitStability bits = slice::bit_stable_when_recompiled(*module, original->name);
  if (!bits.stable() && !relaxed) return refused(kernel, reasons::kBitStability, bits.detail);

  const std::string variant = std::string(kernel) + slice::kVariantSuffix;
  keep_only(*module, original->name);
  SiblingText out;
  for (const slice::KernelReport& k : slice::add_variants(*module)) {
    if (k.kernel != kernel) continue;
    if (!k.verdict.may_cut())
      return refused(kernel, slice::refusal_name(k.verdict.refusal), k.verdict.detail);
    out.n_params = k.n_params;
    out.param_bytes = k.param_bytes;
    out.origin_offset = k.origin_offset;
  }
  keep_only(*module, variant);
  if (!module->find(variant) || has_state(*module))
    return refused(kernel, reasons::kModuleState, "more than the kernel itself is needed");
  out.ptx = ptx::print(*module);
  out.variant_name = variant;
  return out;
}

}  // namespace

SiblingText sibling_text(std::string_view text, const char* kernel, bool relaxed) noexcept try {
  return make(text, kernel, relaxed);
} catch (const std::exception& e) {
  base::raw_log(base::LogLevel::kError, "kernel not cut: %s", e.what());
  SiblingText out;
  out.refusal = reasons::kNotParsed;
  return out;
} catch (...) {
  return {};
}

}  // namespace tessera::track
