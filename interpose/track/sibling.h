// Sibling modules hold variants of kernels whose original is machine code, or one of thousands in an image
// (docs/slicing.md). The original's module is never touched. A thread of its own compiles the variant when a
// launch first wants to be cut, into one more module of the same context (or one more library). Until then
// launches go whole; if the variant is refused, they go whole for ever.
//
// The thread ("tessera-jit") is started by the first such launch. It enters the driver only while no capture
// is open, under the relaxed capture mode (a capture that begins meanwhile is not disturbed), and never while
// a context is being destroyed. An image or context that ends waits for a compilation in it, and its
// siblings go first. Memory is bounded: number of siblings, bytes of PTX kept.
#pragma once

#include <memory>
#include <string>

#include "interpose/state/kernels.h"
#include "kernels/cache/proved.h"
#include "kernels/image/image.h"

namespace tessera::track {

// PTX that the original was compiled from, kept as long as its image is loaded. Counts its bytes.
struct SiblingSource {
  std::string ptx;
  image::Entry entry;  // that it lay in: target and options
  bool compiled_here;  // the original by the driver, as the sibling will be: bits are the same (D13)
  cache::ProvedVariants proved;  // machine code of variants whose arithmetic is the original's
  SiblingSource(std::string text, image::Entry from, bool original_compiled_here,
                cache::ProvedVariants proved_variants);
  ~SiblingSource();
  SiblingSource(const SiblingSource&) = delete;
  static bool has_room(size_t bytes);  // for one more
};

enum SiblingState : uint32_t { kSiblingNone = 0, kSiblingAsked, kSiblingReady, kSiblingRefused };

// Launching thread: asks for the kernel's sibling in this context. Cheap; never waits for a compilation.
void sibling_wanted(state::KernelRecord& kernel, std::shared_ptr<const SiblingSource> source,
                    CUcontext context) noexcept;

// Around the driver's own calls. Owner: module or library about to be unloaded. Context: about to be
// destroyed, reset or released; null = any.
void siblings_unload(void* owner) noexcept;
void siblings_pause(CUcontext context) noexcept;
void siblings_resume(CUcontext context, bool ended) noexcept;

bool siblings_idle() noexcept;  // nothing asked for that is not answered
uint32_t siblings_alive() noexcept;

}  // namespace tessera::track
