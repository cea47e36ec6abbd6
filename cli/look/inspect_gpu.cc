// `tessera inspect --gpu NAME FILE`: which share of the kernels can be cut there.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/printable.h"
#include "cli/look/cut_share.h"
#include "cli/look/inspect.h"
#include "cli/measure/gpus.h"
#include "cli/run/proved_variants.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

json as_json(const CutShare& share, const InspectOptions& options, const NamedGpu& gpu) {
  json out = {{"file", options.file},
              {"gpu", {{"name", gpu.name}, {"sm", gpu.sm}}},
              {"bit_stability", options.bit_stability},
              {"n_kernels", share.kernels.size()},
              {"n_can_be_cut", share.n_cut()},
              {"share", share.kernels.empty() ? 0 : double(share.n_cut()) / double(share.kernels.size())},
              {"sentence", cut_share_sentence(share, gpu.name, gpu.sm)},
              {"helps", cut_share_remedies(share, gpu.sm)},
              {"not_for_this_gpu", share.not_for_gpu},
              {"unread", share.unread},
              {"outcomes", json::object()},
              {"kernels", json::array()}};
  for (size_t i = 0; i < kCutOutcomes; i++) out["outcomes"][outcome_name(CutOutcome(i))] = share.counts[i];
  for (const CutShare::Kernel& k : share.kernels)
    if (options.kernel.empty() || k.name == options.kernel)
      out["kernels"].push_back({{"name", k.name}, {"outcome", outcome_name(k.outcome)}});
  return out;
}

bool print(const CutShare& share, const InspectOptions& options, const NamedGpu& gpu) {
  bool found = options.kernel.empty();
  for (const CutShare::Kernel& k : share.kernels) {
    if (k.name != options.kernel) continue;
    found = true;
    printf("%s: %s\n", base::printable(k.name).c_str(), outcome_text(k.outcome));
  }
  if (!options.kernel.empty()) return found;
  puts(cut_share_sentence(share, gpu.name, gpu.sm).c_str());
  for (const std::string& remedy : cut_share_remedies(share, gpu.sm)) printf("  %s\n", remedy.c_str());
  for (const std::string& why : share.unread)
    printf("  cannot be looked into: %s\n", base::printable(why).c_str());
  return true;
}

}  // namespace

int inspect_on_gpu(std::span<const uint8_t> bytes, const InspectOptions& options) {
  const auto fail = [&](const std::string& why) {
    fprintf(stderr, "tessera inspect: %s\n", why.c_str());
    return 1;
  };
  const auto gpu = find_gpu(options.gpu, gpu_folders(find_layout()));
  if (!gpu) return fail(gpu.error().text);
  const cache::Store cache = user_cache();
  const auto share = cut_share(bytes, {.sm = gpu->sm,
                                       .file_name = options.file.substr(options.file.rfind('/') + 1),
                                       .relaxed = options.bit_stability == "relaxed",
                                       .allow_order_dependent = options.allow_order_dependent,
                                       .cache = &cache});
  if (!share) return fail(options.file + ": " + share.error().text);
  if (options.json)
    puts(base::json_text(as_json(*share, options, *gpu), 2).c_str());
  else if (!print(*share, options, *gpu))
    return fail(options.file + ": no kernel '" + options.kernel + "' that runs there");
  return 0;
}

}  // namespace tessera::cli
