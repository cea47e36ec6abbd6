// The driver calls for a sibling module: loading it, checking that it is a copy, unloading it. There is no state.
// The sibling thread calls them; whoever ends an image or a context unloads. Never called under a lock.
#pragma once

#include <optional>

#include "interpose/state/kernels.h"
#include "interpose/track/reasons.h"
#include "interpose/track/sibling_text.h"

namespace tessera::track {

struct Sibling {
  state::KernelRecord* kernel = nullptr;
  CUcontext context = nullptr;
  CUmodule module = nullptr;  // one of the two
  CUlibrary library = nullptr;
};

// Loads `text` in this context, and writes into the record how the variant is launched. Why not; nothing if it is
// loaded.
std::optional<Reason> load_sibling(state::KernelRecord& kernel, CUcontext context, const SiblingText& text,
                                   Sibling* out);
void unload_sibling(const Sibling& sibling);

}  // namespace tessera::track
