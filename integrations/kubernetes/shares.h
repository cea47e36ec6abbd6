// The resources of a node: for each level an extended resource, `tessera.dev/high` or `tessera.dev/best-effort`, with
// its number of shares, and the additions to a container that has one. Pure. They come from the CDI specification
// (cli/run/cdi.h), so that a pod gets the same as a container of podman.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::kubernetes {

inline constexpr unsigned kMostShares = 100;

struct Share {        // of "high=1"
  std::string level;  // a device of the CDI specification
  unsigned count = 0;
};

base::Result<Share> parse_share(const std::string& text);

inline std::string resource_name(const Share& share) {
  return "tessera.dev/" + share.level;
}
std::vector<std::string> device_ids(const Share& share);  // "high-0", ...

// The additions to a container whose runtime knows nothing of CDI.
struct Edits {
  std::map<std::string, std::string> variables;
  std::map<std::string, std::string> mounts;  // read-only: a path of the container, and the node's
};

// `specification`: as cdi_specification() gives it. Error: the level is not in it; the text lists those that are.
base::Result<Edits> edits_of(const std::string& specification, const std::string& level);

// A container that asks for several shares of a level weighs as much as several containers.
std::string weight_of(size_t shares);

}  // namespace tessera::kubernetes
