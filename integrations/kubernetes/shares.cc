#include "integrations/kubernetes/shares.h"

#include <charconv>
#include <nlohmann/json.hpp>

namespace tessera::kubernetes {
namespace {

constexpr unsigned kUsualWeight = 100, kMostWeight = 10'000;  // docs/configuration.md

}  // namespace

base::Result<Share> parse_share(const std::string& text) {
  Share share;
  const size_t equals = text.find('=');
  const char* end = text.data() + text.size();
  if (equals != std::string::npos && equals != 0) {
    share.level = text.substr(0, equals);
    const auto [rest, failed] = std::from_chars(text.data() + equals + 1, end, share.count);
    if (failed == std::errc() && rest == end && share.count >= 1 && share.count <= kMostShares) return share;
  }
  return base::error(base::Code::kInvalid, "share '" + text + "' is not LEVEL=COUNT with a count from 1 to " +
                                               std::to_string(kMostShares) + ", e.g. best-effort=4");
}

std::vector<std::string> device_ids(const Share& share) {
  std::vector<std::string> ids;
  for (unsigned i = 0; i < share.count; i++) ids.push_back(share.level + "-" + std::to_string(i));
  return ids;
}

base::Result<Edits> edits_of(const std::string& specification, const std::string& level) {
  const auto all = nlohmann::json::parse(specification);
  std::string names;
  for (const auto& device : all["devices"]) {
    const std::string name = device["name"];
    names += (names.empty() ? "" : ", ") + name;
    if (name != level) continue;
    Edits edits;
    for (const std::string variable : device["containerEdits"]["env"]) {
      const size_t equals = variable.find('=');
      edits.variables[variable.substr(0, equals)] = variable.substr(equals + 1);
    }
    for (const auto& mount : all["containerEdits"]["mounts"])
      edits.mounts[mount["containerPath"]] = mount["hostPath"];
    return edits;
  }
  return base::error(base::Code::kInvalid, "level '" + level + "' is none of: " + names);
}

std::string weight_of(size_t shares) {
  return std::to_string(std::min<size_t>(shares * kUsualWeight, kMostWeight));
}

}  // namespace tessera::kubernetes
