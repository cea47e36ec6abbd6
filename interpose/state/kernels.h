// Kernel records: what a CUfunction or CUkernel handle stands for. Fixed hash table, read without a lock by
// every gated launch; written by interpose/track under its mutex. Records live for ever (a few dozen bytes
// per kernel that was looked up); a slot whose module was unloaded is emptied, its record stays.
#pragma once

#include "base/hash.h"
#include "interpose/state/state.h"

namespace tessera::state {

// In place of a variant's handle: tried and failed, or refused for good.
inline CUfunction const kNoVariant = reinterpret_cast<CUfunction>(uintptr_t{1});

// Facts that the loader of its image found out. Constant.
struct LoadedKernel {
  uint64_t hash = 0;        // image and name (base::kernel_hash); stable across processes
  uint64_t image_hash = 0;  // 0: image not read, then `hash` says nothing to other processes
  const char* name = "";    // never freed
  void* owner = nullptr;    // CUmodule or CUlibrary
  bool owner_is_library = false;
  const void* library = nullptr;  // whose module the owner is; null: nobody's
  bool has_variant = false;       // the loaded image holds name + suffix, or a sibling will
  bool sibling = false;           // the variant lives in a module of its own (interpose/track/sibling.h)
  bool never_hold = false;        // kernel of a communicator library
  uint32_t resource_class = 0;    // abi::ResourceClass, estimated from its PTX; 0 = unknown
  // Ends with it.
  bool is_of(const void* image) const { return image && (owner == image || library == image); }
};

// How the variant wants to be launched. Written once: by the loader, or by the thread that compiles the sibling
// before it says so (VariantState::sibling_state). Only the addresses change, when another context gets a sibling.
struct VariantForm {
  uint32_t n_params = 0;        // of the original
  uint32_t origin_offset = 0;   // of SliceOrigin in the variant's parameter block
  uint32_t n_globals = 0;       // addresses that the variant takes, too (kernels/slice/globals.h)
  uint32_t globals_offset = 0;  // of these in its parameter block
  std::atomic<uint64_t>* globals = nullptr;  // n_globals; those of sibling_context; never freed
  bool ascending_row = false;  // waits for lower blocks: cut in one row only, and watched at each launch
};

// Whether it may be launched now, and where. Written by whoever makes it ready (interpose/track: the launch that
// needs it, or the sibling thread), by a launch that finds that it may not, and when a context ends. What the
// program sets on the original, the variant gets before its next launch; per context.
struct VariantState {
  std::atomic<CUfunction> handle{nullptr};           // resolved at the first cut; kNoVariant
  std::atomic<uint32_t> sibling_state{0};            // track::SiblingState
  std::atomic<CUcontext> sibling_context{nullptr};   // the one that it was compiled in
  std::atomic<CUcontext> mirrored_context{nullptr};  // where it was made equal to the original
  std::atomic<uint32_t> mirrored{0};                 // of KernelSettings::changes those that it has
  std::atomic<uint32_t> blocks_per_sm{0};            // its occupancy as first launched; 0 = not known
  std::atomic<uint64_t> cluster{0};  // shape that the function fixes (interpose/track/cluster.h); 0 = none
  // The outcome of launches that go whole: kOutcomePossible unless it is known that there will be no variant.
  std::atomic<abi::LaunchOutcome> whole_outcome{abi::kOutcomePossible};
  std::atomic<uint32_t> cluster_wave{0};  // blocks at once, as first launched in clusters; 0 = not known
};

// Attributes that the program sets on the original: written by the hooks of attributes.
struct KernelSettings {
  std::atomic<uint32_t> changes{0};
  std::atomic<uint32_t> cache_config{0}, shared_mem_config{0};  // 1 + what was set; these cannot be asked
};

// History of its cut launches: written by the launching threads (interpose/slice).
struct CutHistory {
  std::atomic<uint32_t> refused{0};     // launches in a row of which the driver refused the first slice
  std::atomic<bool> whole_told{false};  // ascending_row: a launch went whole, and the reason was told
  std::atomic<uint64_t> proven_shapes[8] = {};  // of launches whose slices all ended (trial.h)
};

struct KernelRecord {
  const LoadedKernel loaded{};
  VariantForm form;
  VariantState variant;
  KernelSettings settings;
  CutHistory cuts;
  std::atomic<uint32_t> learnt_class{
      0};  // from the daemon's table, 0 = not known; written by the helper thread

  uint32_t resource_class() const {
    // One word; a launch that reads the earlier class is one that came before.
    const uint32_t learnt = learnt_class.load(std::memory_order_relaxed);
    return learnt ? learnt : loaded.resource_class;
  }
};

inline constexpr uint32_t kKernelSlots = 8192;
struct KernelSlot {
  std::atomic<uint64_t> handle;  // 0 free, 1 emptied
  std::atomic<KernelRecord*>
      record;  // null: the handle is another kernel's by now, of which nothing is known
};
extern constinit KernelSlot g_kernels[kKernelSlots];

inline uint32_t kernel_slot_of(uint64_t handle) {
  return base::slot_of(handle, 13);
}
static_assert(kKernelSlots == 1u << 13);

inline KernelRecord* find_kernel(CUfunction function) {
  const uint64_t handle = reinterpret_cast<uint64_t>(function);
  for (uint32_t i = 0, at = kernel_slot_of(handle); i < 16; i++, at = (at + 1) % kKernelSlots) {
    const uint64_t seen = g_kernels[at].handle.load(std::memory_order_acquire);  // pairs with set_kernel
    // acquire: of a handle that is used again the record is exchanged alone
    if (seen == handle) return g_kernels[at].record.load(std::memory_order_acquire);
    if (seen == 0) return nullptr;
  }
  return nullptr;
}

}  // namespace tessera::state
