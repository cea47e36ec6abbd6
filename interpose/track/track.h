// Slow-path bookkeeping: images and the kernels in them, contexts, streams, captures. May allocate; runs in
// the program's threads inside its own (slow) calls. Writes what the gate reads: kernel records, marker
// memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "interpose/gate/launch.h"
#include "interpose/track/sibling.h"
#include "kernels/slice/slice.h"

namespace tessera::track {

// One kernel of a loaded image, as the analysis saw it.
struct KernelFacts {
  std::string name;
  uint32_t n_params = 0, param_bytes = 0, origin_offset = 0;
  bool has_variant = false;     // in the loaded text
  bool ascending_row = false;   // the variant waits for lower blocks (slice::KernelReport::look_back)
  slice::Refusal refusal = {};  // kNone if it may be cut
  uint32_t resource_class = 0;  // abi::ResourceClass, estimated from its PTX (classify.h)
};

// An image that a program asked to load, after analysis. `text` replaces the program's image if it is not empty.
struct Image {
  uint64_t hash = 0;        // of the program's bytes; 0 = not read
  bool collective = false;  // NCCL, NVSHMEM: never hold its kernels
  std::string text;         // PTX with variants, or a container with it and the options of the program's
  bool keep_text = false;   // the driver was told that the image stays where it is
  std::vector<KernelFacts> kernels;  // by name
  // Launches count here whose kernels have no variant and were not refused one by one.
  ipc::abi::LaunchOutcome outcome = ipc::abi::kOutcomeOther;
  std::vector<uint64_t> never_cut;  // hashes of kernels, of any image, that waited when they were cut
  std::shared_ptr<const SiblingSource> source;  // of machine code, for sibling modules; null if there is none
};

// An image of NCCL or NVSHMEM was loaded.
extern constinit std::atomic<bool> g_has_collectives;
// A managed variable is in some image that was loaded, or the program asked for the address of one. Of images only those of
// a parkable program are looked at.
extern constinit std::atomic<bool> g_has_managed_variables;
inline void has_managed_variables() {
  g_has_managed_variables.store(true, std::memory_order_relaxed);
}

// `text` for best-effort clients only; of protected ones the kernels are merely classified. On any failure an
// empty image (load the original). Never throws.
std::shared_ptr<Image> inspect(const void* bytes, const void* caller) noexcept;
// The same for an image that the driver is asked to read from a file. Unreadable or not a regular file: null;
// the driver says what is wrong with it.
std::shared_ptr<Image> inspect_file(const char* path, const void* caller) noexcept;
void load_as_it_is(Image& image) noexcept;  // takes our text back

// Kernels that the watchdog released, in this start or an earlier one (kernels/cache/never_cut.h). Touch the
// disk.
std::vector<uint64_t> never_cut() noexcept;
void never_cut_again(uint64_t kernel_hash) noexcept;

// Kernels of loaded images with and without a variant; the helper publishes them (a load may precede the
// attach).
extern constinit std::atomic<uint64_t> g_cut_kernels, g_refused_kernels;

// Refusals by group, and releases of the watchdog, into the region. Helper thread.
void publish_refusals(ipc::abi::SignalLine& signals) noexcept;

// Handles. A module and a library have one Image each; kernels are recorded when the program looks them up.
void image_loaded(void* owner, bool is_library, std::shared_ptr<Image> image) noexcept;
uint64_t load_of(void* owner) noexcept;  // which one it is of all loads; 0: not known
// By then another load may have its handle.
void image_unloaded(void* owner, uint64_t load) noexcept;
void modules_end_with(CUcontext context) noexcept;  // destroyed or reset; null: every context. Libraries stay
void module_of_library(CUmodule module, CUlibrary library) noexcept;
void module_of_function(CUmodule module, CUfunction function) noexcept;  // perhaps of a library
void kernel_found(const void* handle, void* owner, bool is_library, const char* name) noexcept;
// Not taken into the books: what they say of another kernel that had the handle is forgotten. `name` may be null.
void kernel_not_kept(const void* handle, const void* owner, const char* name) noexcept;
void kernel_function(CUkernel kernel, CUfunction function) noexcept;
// The program changed the original (function or kernel handle): the variant follows before its next launch.
void attribute_set(const void* handle, const CUfunc_cache* cache, const CUsharedconfig* shared) noexcept;
// The variant of a launch that may be cut, made ready for `context`: its handle, with the original's attributes.
// Null: there is none, or not yet. In the caller's thread; enters the driver.
CUfunction resolve_variant(state::KernelRecord& kernel, const gate::LaunchCall& launch,
                           CUcontext context) noexcept;
// A slice of this kernel did not end by itself (interpose/slice/trial.h): counted, told, and remembered.
void slice_hung(state::KernelRecord& kernel) noexcept;
bool is_variant_name(const char* name);
uint32_t variants_in(void* owner) noexcept;  // kernels that we added to this image

// Marker memory and sampling events for the current context, once; outside capture only. Cheap when done.
void prepare_context() noexcept;
// Destroyed or reset; null = every context. Accounts of streams that live on are kept (gate::forget_accounts).
void context_ended(CUcontext context, uint64_t kept = 0) noexcept;

// Open captures by stream (a count alone would drift: a capture also ends with its stream).
CUcontext capture_begins(
    driver_api::StreamArg stream) noexcept;  // before the driver's call: that of the stream
void capture_began(driver_api::StreamArg stream, CUresult result, CUcontext context) noexcept;
// Or is still open: `result` says. `graph`: what came of it.
void capture_ended(driver_api::StreamArg stream, CUresult result, CUgraph graph) noexcept;
bool has_capture(CUstream stream) noexcept;
// Destroyed. By now another stream may have its handle, and a capture: `had_capture` is of before.
void stream_gone(CUstream stream, bool had_capture) noexcept;
void captures_end_with(CUcontext context) noexcept;  // null: every context
void capture_ends_with_thread() noexcept;            // that of its default stream, which nobody else can name

}  // namespace tessera::track
