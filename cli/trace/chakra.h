// A trace as execution traces of MLCommons Chakra (docs/trace.md), one for each client that launched something. Pure.
#pragma once

#include <vector>

#include "cli/trace/model.h"
#include "simulator/chakra.h"

namespace tessera::cli {

// Kernels and copies are nodes that depend on what was before them in their stream, on events that it waits for, and on
// the host; what the host does after a call that waited is a node that depends on what it waited for.
std::vector<simulator::chakra::Trace> to_chakra(const Trace& trace);

}  // namespace tessera::cli
