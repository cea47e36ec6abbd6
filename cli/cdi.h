// `tessera cdi`: a CDI specification (Container Device Interface, cncf-tags/container-device-interface, SPEC.md) of
// shared devices, one for each level: `podman run --device tessera.dev/gpu=high ...`. What it adds to a container is what
// `tessera run` adds to a program; the image needs nothing. Asks for version 0.3.0 only, so that every runtime takes it.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/layout.h"

namespace tessera::cli {

struct CdiOptions {
  std::string output;        // "" = standard output
  std::string gpu = "auto";  // or "soft"
  std::string socket =
      "/run/tessera/tesserad.sock";  // its folder is mounted, so that a restarted daemon is found
};

base::Result<std::string> cdi_specification(const CdiOptions& options, const Layout& layout);  // JSON
int cdi(const CdiOptions& options);                                                            // exit status

}  // namespace tessera::cli
