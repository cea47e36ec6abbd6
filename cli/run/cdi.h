// `tessera cdi`: a CDI specification (Container Device Interface, cncf-tags/container-device-interface, SPEC.md) of
// shared devices, one for each level: `podman run --device tessera.dev/gpu=high ...`. What it adds to a container is what
// `tessera run` adds to a program; the image needs nothing. The libraries come by /etc/ld.so.preload, which is mounted: what
// a container has in LD_PRELOAD stays, and comes first. A file of that name in the image is hidden.
#pragma once

#include <array>
#include <string>

#include "base/result.h"
#include "cli/run/layout.h"

namespace tessera::cli {

// Versions of the specification that were released. What is written here has been in it since the first: a reader takes
// a file that names its own version or an older one, and refuses a newer one whatever is in it.
inline constexpr std::array kCdiVersions = {"0.3.0", "0.4.0", "0.5.0", "0.6.0",
                                            "0.7.0", "0.8.0", "1.0.0", "1.1.0"};

struct CdiOptions {
  std::string output;        // "" = standard output
  std::string gpu = "auto";  // or "soft"
  std::string version = kCdiVersions.front();
  std::string socket =
      "/run/tessera/tesserad.sock";  // its folder is mounted, so that a restarted daemon is found
};

base::Result<std::string> cdi_specification(const CdiOptions& options, const Layout& layout);  // JSON
int cdi(const CdiOptions& options);                                                            // exit status

}  // namespace tessera::cli
