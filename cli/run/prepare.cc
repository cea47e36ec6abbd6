// `tessera prepare FILE`: machine code and the PTX that it was made from lie side by side; whether a variant of that PTX
// gives the same bits, the proof says. It compares with the code that is shipped, so that it does not matter who
// compiled that, nor with what.
#include <ctype.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/user_file.h"
#include "cli/look/inspect.h"
#include "cli/run/keep_ptx.h"
#include "cli/run/proved_variants.h"
#include "kernels/image/image.h"
#include "kernels/image/origin.h"
#include "kernels/image/vendor.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
constexpr uint64_t kMostFileBytes = uint64_t(4) << 30;
constexpr uint64_t kMiB = uint64_t(1) << 20;

// The option changes the code that is made. Options come out of a file, so no other one is handed on; the proof will tell.
bool is_known(const std::string& option) {
  static const std::regex kKnown(
      "-(arch|m|O[0-4]|-?maxrregcount|-opt-level|-?fmad|-?dlcm|-?dscm|-?allow-expensive-opt.*)"
      "(=[A-Za-z0-9_]+)?");
  return std::regex_match(option, kKnown);
}
bool is_value(const std::string& word) {
  return word[0] != '-' && std::ranges::all_of(word, [](char c) { return isalnum(uint8_t(c)) || c == '_'; });
}

// As the machine code was compiled, if it says so.
VariantCompiler compiler_of(const std::string& ptxas, const image::Entry& cubin,
                            std::span<const uint8_t> code) {
  VariantCompiler out{ptxas, {}, "variant.ptx", "variant.cubin"};
  std::istringstream options(image::toolchain_of(code).options);
  bool takes_value = false;
  for (std::string word; options >> word;) {
    const bool known = is_known(word);
    if (known || (takes_value && is_value(word))) out.arguments.push_back(word);
    takes_value = known && word.find('=') == word.npos && !word.starts_with("-O");
  }
  if (out.arguments.empty()) out.arguments.push_back("-arch=" + target_of(cubin));
  for (const std::string& a : {out.input, std::string("-o"), out.output}) out.arguments.push_back(a);
  return out;
}

class Preparation {
 public:
  Preparation(std::string ptxas, cache::Store store) : ptxas_(std::move(ptxas)), store_(std::move(store)) {}

  void container(const std::vector<image::Entry>& entries) {
    for (const image::Entry& e : entries) {
      if (e.kind != image::EntryKind::kCubin || e.relocatable) continue;
      const auto code = image::load(e);
      const image::Entry* source = code ? image::source_of(entries, e, *code) : nullptr;
      const auto ptx = source ? image::load(*source)
                              : base::Result<std::vector<uint8_t>>(
                                    base::error(base::Code::kNotFound, "no PTX that it was made from"));
      if (!ptx) {
        unread_.push_back(target_of(e) + ": " + (code ? ptx.error().text : code.error().text));
        continue;
      }
      machine_code(e, *code, {reinterpret_cast<const char*>(ptx->data()), ptx->size()});
    }
  }

  int report(const PrepareOptions& options) const {
    if (options.json) {
      json out = {{"file", options.file},     {"n_kernels", kernels_.size()}, {"n_proved", n_proved()},
                  {"kernels", json::array()}, {"without_source", unread_},    {"problems", problems_}};
      for (const auto& [where, k] : kernels_)
        out["kernels"].push_back(
            {{"name", k.name}, {"target", where}, {"proved", k.why_not.empty()}, {"why_not", k.why_not}});
      puts(base::json_text(out, 2).c_str());
    } else {
      for (const auto& [where, k] : kernels_)
        printf("%s %s: %s\n", where.c_str(), base::printable(k.name).c_str(),
               k.why_not.empty() ? "proved" : ("stays whole, " + base::printable(k.why_not)).c_str());
      for (const std::string& u : unread_) printf("%s\n", base::printable(u).c_str());
      printf("%zu of %zu kernels have a proved variant.\n", n_proved(), kernels_.size());
    }
    for (const std::string& p : problems_) fprintf(stderr, "tessera prepare: %s\n", p.c_str());
    return problems_.empty() ? 0 : 1;
  }

 private:
  size_t n_proved() const {
    size_t n = 0;
    for (const auto& [where, k] : kernels_) n += k.why_not.empty();
    return n;
  }

  void machine_code(const image::Entry& entry, const std::vector<uint8_t>& code, std::string_view ptx) {
    constexpr size_t kMostBytes = size_t(32) << 20;  // of the cache, for one image
    ProvedSet proved =
        prove_variants(code, compile_variants(ptx, compiler_of(ptxas_, entry, code)), kMostBytes);
    for (ProvedKernel& k : proved.kernels) kernels_.emplace_back(target_of(entry), std::move(k));
    if (proved.variants.empty()) return;
    const std::string_view bytes(reinterpret_cast<const char*>(code.data()), code.size());
    if (auto saved = store_.save(cache::proved_key(bytes), cache::encode_proved(proved.variants));
        !saved.ok())
      problems_.push_back(saved.error().text);
  }

  const std::string ptxas_;
  const cache::Store store_;
  std::vector<std::pair<std::string, ProvedKernel>> kernels_;  // target, kernel
  std::vector<std::string> unread_, problems_;
};

}  // namespace

cache::Store user_cache() {
  constexpr uint64_t kDefaultMiB = 256;
  const std::string limit = own_environment("TESSERA_CACHE_MAX_MB");
  return {cache_folder(), (limit.empty() ? kDefaultMiB : strtoull(limit.c_str(), nullptr, 10)) * kMiB};
}

int prepare(const PrepareOptions& options) {
  const auto fail = [&](const std::string& why) {
    fprintf(stderr, "tessera prepare: %s\n", why.c_str());
    return 1;
  };
  if (image::vendor_library(options.file.substr(options.file.rfind('/') + 1)))
    return fail(options.file + " is a library of NVIDIA's, which is never modified");
  const auto file = base::read_user_file(options.file, kMostFileBytes);
  if (!file) return fail(file.error().text);
  const auto ptxas = find_ptxas("ptxas");
  if (!ptxas) return fail(ptxas.error().text);
  if (cache_folder().empty()) return fail("no folder for caches: HOME is not set");
  if (own_environment("TESSERA_CACHE_MAX_MB") == "0") return fail("the cache is off: TESSERA_CACHE_MAX_MB=0");
  const auto parts = image::parts({reinterpret_cast<const uint8_t*>(file->data()), file->size()});
  if (!parts) return fail(options.file + ": " + parts.error().text);
  Preparation preparation(*ptxas, user_cache());
  bool any = false;
  std::string why = "holds no GPU code";
  for (const auto part : *parts) {
    const auto entries = image::list(part);
    any = any || entries.ok();
    if (entries)
      preparation.container(*entries);
    else
      why = entries.error().text;
  }
  if (!any) return fail(options.file + ": " + why);
  return preparation.report(options);
}

}  // namespace tessera::cli
