// Records of kernels and images, under one mutex that the hot path never takes.
#include <pthread.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <string_view>

#include "base/kernel_key.h"
#include "base/raw_log.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/trace.h"
#include "interpose/state/config.h"
#include "interpose/state/lock.h"
#include "interpose/state/process.h"
#include "interpose/track/cluster.h"
#include "interpose/track/reasons.h"
#include "interpose/track/track.h"
#include "kernels/slice/slice.h"

namespace tessera::track {
namespace {

using state::KernelRecord;
using state::kNoVariant;
constexpr auto kRelaxed = std::memory_order_relaxed;

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // guards g_images and writes to state::g_kernels

struct Owner {  // one loaded module or library; a list, since programs load tens of them
  void* handle;
  bool is_library;
  std::shared_ptr<Image> image;  // shared by a library and its modules
  const void* library;           // whose module it is; null: nobody's
  CUcontext context;             // that it ends with, of a module
  uint64_t load;                 // its number among all loads
  Owner* next;
};
constinit Owner* g_owners = nullptr;  // under g_mutex; leaked at exit
constinit uint64_t g_loads = 0;       // the same

Owner* owner_of(void* handle) {
  for (Owner* o = g_owners; o; o = o->next)
    if (o->handle == handle) return o;
  return nullptr;
}

void set_kernel(const void* handle, KernelRecord* record) {
  const uint64_t key = reinterpret_cast<uint64_t>(handle);
  uint32_t at = state::kernel_slot_of(key);
  state::KernelSlot* free = nullptr;
  for (uint32_t i = 0; i < 16; i++, at = (at + 1) % state::kKernelSlots) {
    state::KernelSlot& slot = state::g_kernels[at];
    const uint64_t seen = slot.handle.load(kRelaxed);
    if (seen == key) {  // handle recycled by the driver
      slot.record.store(record, std::memory_order_release);
      state::begin_epoch();
      gate::forget_names();
      return;
    }
    if (seen <= 1 && !free) free = &slot;
    if (seen == 0) break;
  }
  if (!free) return;  // neighbourhood full: the kernel stays unknown, gated by its default and never cut
  free->record.store(record,
                     std::memory_order_release);  // of an emptied slot: who sees its old handle may read it
  free->handle.store(key, std::memory_order_release);  // pairs with find_kernel
}

void drop_kernels(const void* owner) {
  for (state::KernelSlot& slot : state::g_kernels) {
    if (slot.handle.load(kRelaxed) <= 1) continue;
    const KernelRecord* record = slot.record.load(kRelaxed);
    if (record && record->loaded.is_of(owner)) slot.handle.store(1, std::memory_order_release);
  }
  state::begin_epoch();
  gate::forget_names();
}

// An image, and the modules of a library. The driver uses their handles again.
void forget_owner(const void* owner) {
  drop_kernels(owner);
  for (Owner** at = &g_owners; *at;) {
    Owner* const gone = *at;
    if (gone->handle != owner && gone->library != owner) {
      at = &gone->next;
      continue;
    }
    *at = gone->next;
    delete gone;  // its image may be shared with a module of the library
  }
}

// The context that this thread's modules end with.
CUcontext current_owner() {
  CUcontext context = nullptr;
  return driver_api::real().cuCtxGetCurrent(&context) == CUDA_SUCCESS && context ? state::owner_of(context)
                                                                                 : nullptr;
}

const KernelFacts* facts_of(const Image& image, const char* name) {
  const auto at = std::ranges::lower_bound(image.kernels, std::string_view(name), {}, &KernelFacts::name);
  return at != image.kernels.end() && at->name == name ? &*at : nullptr;
}

state::LoadedKernel loaded_kernel(const Owner* owner, const KernelFacts* facts, const char* name) {
  state::LoadedKernel k;
  k.name = name;
  k.image_hash = owner ? owner->image->hash : 0;
  k.hash = base::kernel_hash(k.image_hash, name, strlen(name));
  k.never_hold = owner && owner->image->collective;
  k.sibling = owner && owner->image->source;
  k.has_variant = k.sibling || (facts && facts->has_variant);
  k.resource_class = facts ? facts->resource_class : 0;
  return k;
}

ipc::abi::LaunchOutcome whole_outcome(const Owner* owner, const KernelFacts* facts, bool has_variant) {
  if (has_variant) return ipc::abi::kOutcomePossible;
  if (!state::config().slice && !(owner && owner->image->outcome == ipc::abi::kOutcomeLibrary))
    return ipc::abi::kOutcomeOff;
  if (facts && facts->refusal != slice::Refusal::kNone) return outcome_of(facts->refusal);
  return owner ? owner->image->outcome : ipc::abi::kOutcomeOther;
}

constexpr size_t kSuffixBytes = sizeof slice::kVariantSuffix - 1;

// A kernel of the record's image by name, as launches take it: a CUkernel stands in for its function there
// (cuda.h, cuLaunchKernel). Null if there is none.
CUfunction launchable(const KernelRecord& kernel, const char* name) {
  const auto& real = driver_api::real();
  CUfunction found = nullptr;
  const CUresult result =
      kernel.loaded.owner_is_library
          ? real.cuLibraryGetKernel(reinterpret_cast<CUkernel*>(&found),
                                    static_cast<CUlibrary>(kernel.loaded.owner), name)
          : real.cuModuleGetFunction(&found, static_cast<CUmodule>(kernel.loaded.owner), name);
  return result == CUDA_SUCCESS ? found : nullptr;
}

// The same for attribute calls, which are not documented to take a CUkernel.
CUfunction function_of(const KernelRecord& kernel, CUfunction handle) {
  if (!kernel.loaded.owner_is_library || !handle) return handle;
  CUfunction function = nullptr;
  const CUresult result =
      driver_api::real().cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(handle));
  return result == CUDA_SUCCESS ? function : nullptr;
}

// The clusters of blocks that the function itself fixes, into the record; false: no such shape. Drivers that
// know no clusters have none.
bool read_cluster(KernelRecord& kernel, CUfunction original) {
  const auto attribute = [&](int id) {
    int value = 0;
    const CUresult result = driver_api::real().cuFuncGetAttribute(&value, CUfunction_attribute(id), original);
    return result == CUDA_SUCCESS ? value : 0;
  };
  int shape[3];
  for (int axis = 0; axis < 3; axis++)
    shape[axis] = attribute(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + axis);
  uint64_t packed = 0;
  if (!pack_cluster(shape, attribute(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) > 0, &packed)) return false;
  kernel.variant.cluster.store(packed, kRelaxed);
  return true;
}

// Gives the variant the attributes that the program set on the original; false: it cannot have them.
bool mirror_attributes(KernelRecord& kernel, CUfunction original, CUfunction variant) {
  const auto& real = driver_api::real();
  if (!original || !variant || !read_cluster(kernel, original)) return false;
  for (const CUfunction_attribute attribute :
       {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE}) {
    int value = -1, has = -1;
    if (real.cuFuncGetAttribute(&value, attribute, original) != CUDA_SUCCESS || value < 0) continue;
    if (real.cuFuncGetAttribute(&has, attribute, variant) == CUDA_SUCCESS && has == value) continue;
    if (real.cuFuncSetAttribute(variant, attribute, value) != CUDA_SUCCESS) return false;
  }
  if (const uint32_t set = kernel.settings.cache_config.load(kRelaxed))
    if (real.cuFuncSetCacheConfig(variant, CUfunc_cache(set - 1)) != CUDA_SUCCESS) return false;
  if (const uint32_t set = kernel.settings.shared_mem_config.load(kRelaxed))
    if (real.cuFuncSetSharedMemConfig(variant, CUsharedconfig(set - 1)) != CUDA_SUCCESS) return false;
  return true;
}

CUfunction variant_of(const KernelRecord& kernel) {
  char name[1024];
  const size_t bytes = strlen(kernel.loaded.name);
  if (bytes + kSuffixBytes >= sizeof name) return nullptr;
  memcpy(name, kernel.loaded.name, bytes);
  memcpy(name + bytes, slice::kVariantSuffix, kSuffixBytes + 1);
  return launchable(kernel, name);
}

// Blocks of the variant that run at once if launched like this in clusters; 0: not in clusters, or not known.
// How clusters fit is the driver's knowledge: they do not span GPCs, and those have different sizes.
uint32_t cluster_wave(const KernelRecord& kernel, const gate::LaunchCall& launch, CUfunction variant) {
  admission::Cluster cluster;
  if (!cluster_of(launch, kernel, &cluster) || cluster.blocks() == 1) return 0;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {cluster.shape[0], cluster.shape[1], cluster.shape[2]};
  CUlaunchConfig config{};
  config.gridDimX = launch.grid[0], config.gridDimY = launch.grid[1], config.gridDimZ = launch.grid[2];
  config.blockDimX = launch.block[0], config.blockDimY = launch.block[1], config.blockDimZ = launch.block[2];
  config.sharedMemBytes = launch.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int n = 0;
  if (driver_api::real().cuOccupancyMaxActiveClusters(&n, variant, &config) != CUDA_SUCCESS || n <= 0)
    return 0;
  return uint32_t(uint64_t(n) * cluster.blocks());
}

// Asks for the sibling if nobody did; it answers some launches later.
bool sibling_ready(KernelRecord& kernel, CUcontext context) {
  const uint32_t state = kernel.variant.sibling_state.load(std::memory_order_acquire);  // pairs with work()
  if (state == kSiblingNone) {
    std::shared_ptr<const SiblingSource> source;
    {
      const state::Lock lock(g_mutex);
      if (const Owner* o = owner_of(kernel.loaded.owner)) source = o->image->source;
    }
    sibling_wanted(kernel, std::move(source), context);
  }
  return state == kSiblingReady && kernel.variant.sibling_context.load(kRelaxed) == context;
}

}  // namespace

// Not while a capture is open (loading may be lazy).
CUfunction resolve_variant(KernelRecord& kernel, const gate::LaunchCall& launch, CUcontext context) noexcept {
  if (kernel.loaded.sibling && !sibling_ready(kernel, context)) return nullptr;
  CUfunction variant = kernel.variant.handle.load(std::memory_order_acquire);
  if (variant == kNoVariant || !state::enter_driver()) return nullptr;
  const auto& real = driver_api::real();
  const uint32_t changes = kernel.settings.changes.load(std::memory_order_acquire);  // before they are read
  if (!variant) variant = variant_of(kernel);
  if (!variant || !mirror_attributes(kernel, function_of(kernel, launchable(kernel, kernel.loaded.name)),
                                     function_of(kernel, variant))) {
    variant = kNoVariant;
    count_refusal(RunTimeReason::kAttributes);
  }
  int per_sm = 0;
  if (variant != kNoVariant && kernel.variant.blocks_per_sm.load(kRelaxed) == 0 &&
      real.cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, variant, int(launch.threads()),
                                                       launch.shared_bytes) == CUDA_SUCCESS &&
      per_sm > 0)
    kernel.variant.blocks_per_sm.store(uint32_t(per_sm), kRelaxed);
  if (variant != kNoVariant && kernel.variant.cluster_wave.load(kRelaxed) == 0)
    kernel.variant.cluster_wave.store(cluster_wave(kernel, launch, variant), kRelaxed);
  state::leave_driver();
  kernel.variant.handle.store(variant, kRelaxed);
  kernel.variant.mirrored.store(changes, std::memory_order_release);  // pairs with ready_variant: the shape
  kernel.variant.mirrored_context.store(context, std::memory_order_release);  // pairs with ready_variant
  return variant == kNoVariant ? nullptr : variant;
}

void slice_hung(KernelRecord& kernel) noexcept {
  count_refusal(RunTimeReason::kWatchdog);
  kernel.variant.whole_outcome.store(outcome_of(RunTimeReason::kWatchdog), kRelaxed);
  base::raw_log(base::LogLevel::kError,
                "kernel %s: a slice did not end; the rest was launched, not cut again", kernel.loaded.name);
  if (kernel.loaded.image_hash) never_cut_again(kernel.loaded.hash);
}

void image_loaded(void* owner, bool is_library, std::shared_ptr<Image> image) noexcept {
  if (!owner) return;
  image_unloaded(owner, load_of(owner));  // a handle that is used again
  if (!image) return;
  const state::DaemonLink* link = state::g_state.link.load(std::memory_order_acquire);
  for (const KernelFacts& k : image->kernels)
    std::atomic_ref(k.has_variant ? link->usage->cut_kernels : link->usage->refused_kernels)
        .fetch_add(1, kRelaxed);
  if (!image->keep_text) image->text = std::string();  // the driver has copied it
  auto* entry =
      new (std::nothrow) Owner{owner, is_library, std::move(image), nullptr, current_owner(), 0, nullptr};
  if (!entry) return;
  const state::Lock lock(g_mutex);
  entry->load = ++g_loads;
  entry->next = g_owners;
  g_owners = entry;
}

uint64_t load_of(void* owner) noexcept {
  const state::Lock lock(g_mutex);
  const Owner* o = owner_of(owner);
  return o ? o->load : 0;
}

void image_unloaded(void* owner, uint64_t load) noexcept {
  const state::Lock lock(g_mutex);
  const Owner* o = owner_of(owner);
  if ((o ? o->load : 0) == load) forget_owner(owner);
}

void modules_end_with(CUcontext context) noexcept {
  const state::Lock lock(g_mutex);
  const auto ends = [&](const Owner& o) { return !o.is_library && (!context || o.context == context); };
  for (Owner* o = g_owners; o;) {
    const void* const gone = ends(*o) ? o->handle : nullptr;
    o = o->next;
    if (gone) forget_owner(gone);
  }
}

void module_of_library(CUmodule module, CUlibrary library) noexcept {
  const CUcontext context = current_owner();
  const state::Lock lock(g_mutex);
  if (const Owner* known = owner_of(module); known && known->library == library) return;
  forget_owner(module);  // a handle that is used again
  const Owner* o = owner_of(library);
  if (!o) return;
  if (auto* entry = new (std::nothrow) Owner{module, false, o->image, library, context, ++g_loads, g_owners})
    g_owners = entry;
}

void module_of_function(CUmodule module, CUfunction function) noexcept {
  const KernelRecord* record = state::find_kernel(function);
  if (record && record->loaded.owner_is_library)
    module_of_library(module, static_cast<CUlibrary>(record->loaded.owner));
}

void kernel_found(const void* handle, void* owner, bool is_library, const char* name) noexcept {
  if (!handle || !name) return;
  const state::Lock lock(g_mutex);
  const KernelRecord* known = state::find_kernel(static_cast<CUfunction>(const_cast<void*>(handle)));
  if (known && known->loaded.owner == owner && strcmp(known->loaded.name, name) == 0) return;  // asked again
  const Owner* o = owner_of(owner);
  const KernelFacts* facts = o ? facts_of(*o->image, name) : nullptr;
  const char* kept = strdup(name);
  if (!kept) return;  // the kernel stays unknown
  state::LoadedKernel loaded = loaded_kernel(o, facts, kept);
  loaded.owner = owner;
  loaded.library = o ? o->library : nullptr;
  loaded.owner_is_library = is_library;
  const bool waited = loaded.has_variant && std::ranges::count(o->image->never_cut, loaded.hash);
  if (waited) {
    loaded.has_variant = loaded.sibling = false;
    count_refusal(RunTimeReason::kWatchdog);
  }
  auto* record = new (std::nothrow) KernelRecord{.loaded = loaded};
  if (!record) return;
  if (facts) {
    record->form.n_params = facts->n_params;
    record->form.origin_offset = facts->origin_offset;
    record->form.ascending_row = facts->ascending_row;
  }
  if (waited) record->variant.handle.store(kNoVariant, kRelaxed);
  record->variant.whole_outcome.store(
      waited ? outcome_of(RunTimeReason::kWatchdog) : whole_outcome(o, facts, loaded.has_variant), kRelaxed);
  record->learnt_class.store(gate::learnt_class(loaded.hash), kRelaxed);
  // A recycled handle: the old record stays for launches that hold it, the slot gets the new one.
  set_kernel(handle, record);
}

void kernel_not_kept(const void* handle, const void* owner, const char* name) noexcept {
  const state::Lock lock(g_mutex);
  const KernelRecord* known = state::find_kernel(static_cast<CUfunction>(const_cast<void*>(handle)));
  if (known && (!name || known->loaded.owner != owner || strcmp(known->loaded.name, name) != 0))
    set_kernel(handle, nullptr);
}

void kernel_function(CUkernel kernel, CUfunction function) noexcept {
  const state::Lock lock(g_mutex);
  if (KernelRecord* record = state::find_kernel(reinterpret_cast<CUfunction>(kernel)))
    set_kernel(function, record);
}

void attribute_set(const void* handle, const CUfunc_cache* cache, const CUsharedconfig* shared) noexcept {
  KernelRecord* record = state::find_kernel(static_cast<CUfunction>(const_cast<void*>(handle)));
  if (!record) return;
  if (cache) record->settings.cache_config.store(1 + uint32_t(*cache), kRelaxed);
  if (shared) record->settings.shared_mem_config.store(1 + uint32_t(*shared), kRelaxed);
  record->settings.changes.fetch_add(1, std::memory_order_release);  // pairs with resolve_variant
}

bool is_variant_name(const char* name) {
  const size_t bytes = strlen(name);
  return bytes > kSuffixBytes && strcmp(name + bytes - kSuffixBytes, slice::kVariantSuffix) == 0;
}

uint32_t variants_in(void* owner) noexcept {
  const state::Lock lock(g_mutex);
  const Owner* o = owner_of(owner);
  uint32_t n = 0;
  for (size_t i = 0; o && i < o->image->kernels.size(); i++) n += o->image->kernels[i].has_variant;
  return n;
}

}  // namespace tessera::track
