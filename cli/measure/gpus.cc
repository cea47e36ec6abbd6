#include "cli/measure/gpus.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "profiles/gpu_description.h"

namespace tessera::cli {
namespace {

// The number in "sm_90"; 0 = not of that form.
unsigned sm_number(const std::string& name) {
  unsigned sm = 0;
  if (!name.starts_with("sm_")) return 0;
  const char* end = name.data() + name.size();
  const auto [rest, failed] = std::from_chars(name.data() + 3, end, sm);
  return failed == std::errc() && rest == end && sm >= 10 && sm < 1000 ? sm : 0;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return text;
}

}  // namespace

std::vector<std::string> gpu_folders(const Layout& layout) {
  return {layout.share + "/gpus", TESSERA_GPUS_FOLDER};
}

base::Result<NamedGpu> find_gpu(const std::string& given, const std::vector<std::string>& folders) {
  const std::string name = lower_case(given);
  if (const unsigned sm = sm_number(name)) return NamedGpu{name, sm};
  std::set<std::string> known;
  std::error_code none;
  for (const std::string& folder : folders)
    for (const auto& file : std::filesystem::directory_iterator(folder, none)) {
      if (file.path().extension() != ".toml") continue;
      known.insert(file.path().stem());
      if (file.path().stem() != name) continue;
      const auto gpu = profiles::load_gpu_description(file.path());
      if (!gpu) return gpu.error();
      return NamedGpu{gpu->name, gpu->cc_major * 10 + gpu->cc_minor};
    }
  std::string list;
  for (const std::string& k : known) list += k + ", ";
  return base::error(base::Code::kInvalid, "no GPU '" + given + "': " + list + "or a number such as sm_90");
}

}  // namespace tessera::cli
