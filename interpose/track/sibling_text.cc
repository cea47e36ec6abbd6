#include "interpose/track/sibling_text.h"

#include <exception>

#include "base/raw_log.h"
#include "interpose/track/reasons.h"
#include "kernels/image/write.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/globals.h"
#include "kernels/slice/stability.h"

namespace tessera::track {
namespace {

// Debug information refers to what is left out; an alias is a name that is not followed.
bool is_plain(const ptx::Module& module) {
  for (ptx::Name word : module.target)
    if (word == "debug") return false;
  for (const ptx::Item& item : module.items)
    if (item.kind == ptx::Item::Kind::kRaw && item.text.starts_with(".alias")) return false;
  return true;
}

SiblingText refused(const char* kernel, Reason reason, const std::string& detail) {
  base::raw_log(base::LogLevel::kDebug, "kernel %s: %s %s", kernel, name_of(reason), detail.c_str());
  SiblingText out;
  out.refusal = reason;
  return out;
}

// Machine code of the variant, and the text that it was compiled from. Nothing: it was made from another text.
std::string proved_image(const SiblingSource& source, const char* kernel, const std::string& ptx) {
  for (const cache::ProvedVariant& v : source.proved) {
    if (v.kernel != kernel || !(v.text == cache::text_key(ptx))) continue;
    auto code = image::read({reinterpret_cast<const uint8_t*>(v.code.data()), v.code.size()});
    auto text = image::read({reinterpret_cast<const uint8_t*>(ptx.data()), ptx.size()});
    if (!code || !text || code->size() != 1 || text->size() != 1) return {};
    (*code)[0].compression = "none";
    (*text)[0].options = source.entry.options;
    const image::LoadedEntry both[] = {std::move((*code)[0]), std::move((*text)[0])};
    const auto container = image::write_container(both);
    return container ? std::string(container->begin(), container->end()) : std::string();
  }
  return {};
}

SiblingText make(const SiblingSource& source, const char* kernel, bool relaxed, bool any_order) {
  auto module = ptx::parse(source.ptx);
  if (!module) return refused(kernel, RunTimeReason::kNotParsed, module.error().text);
  const ptx::Function* original = module->find(kernel);
  if (!original || !original->is_entry || !original->has_body)
    return refused(kernel, RunTimeReason::kNotParsed, "not in the image's PTX");
  if (!is_plain(*module))
    return refused(kernel, slice::GlobalsObstacle::kUnknown, "debug information or aliases");
  const slice::PassedGlobals globals = slice::passed_globals(*module, original->name);
  if (!globals.possible()) return refused(kernel, globals.obstacle, globals.detail);
  const slice::BitStability bits = slice::bit_stable_when_recompiled(*module, original->name);

  const slice::KernelReport report =
      slice::make_sibling(*module, kernel, globals, {.allow_order_dependent = any_order});
  if (!report.verdict.may_cut()) return refused(kernel, report.verdict.refusal, report.verdict.detail);
  SiblingText out;
  out.n_params = report.n_params;
  out.origin_offset = report.origin_offset;
  out.ascending_row = !report.look_back.empty();
  out.globals_offset = globals.offset;
  out.globals = globals.passed;
  std::string ptx = ptx::print(*module);
  out.image = proved_image(source, kernel, ptx);
  if (out.image.empty()) {
    if (!bits.stable() && !relaxed) return refused(kernel, RunTimeReason::kBitStability, bits.detail);
    out.image = image::compiled_as(source.entry, std::move(ptx));
  }
  out.variant_name = std::string(kernel) + slice::kVariantSuffix;
  return out;
}

}  // namespace

SiblingText sibling_text(const SiblingSource& source, const char* kernel, bool relaxed,
                         bool any_order) noexcept try {
  return make(source, kernel, relaxed, any_order);
} catch (const std::exception& e) {
  base::raw_log(base::LogLevel::kError, "kernel not cut: %s", e.what());
  return {};
} catch (...) {
  return {};
}

}  // namespace tessera::track
