// Hooks of images and the kernels in them: loading, unloading, looking up, enumerating, attributes. They keep
// the books of interpose/track around the driver's own call, whose result is always what the program gets.
// `load(bytes)` with our text instead of the program's image is tried first where there is such a text; the
// original is the fallback, and the only one for protected clients. Slow path; any thread of the program.
#include <stdlib.h>

#include "base/errno_guard.h"
#include "interpose/gate/device_gate.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/memory.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/track/graphs.h"
#include "interpose/track/track.h"

namespace {

using namespace tessera;
using driver_api::real;
using state::live;

// `original()` loads what the program asked for, `ours(text)` the same with variants.
template <class Owner, class Original, class Ours>
CUresult load_image(Owner* owner, std::shared_ptr<track::Image>&& image, bool is_library, Original&& original,
                    Ours&& ours) {
  const gate::Blocked waits;
  CUresult result = CUDA_ERROR_UNKNOWN;
  if (image && !image->text.empty()) {
    result = ours(image->text.c_str());
    if (result != CUDA_SUCCESS)
      for (auto& kernel : image->kernels) kernel.has_variant = false;
  }
  if (result != CUDA_SUCCESS) result = hooks::with_memory(original);
  if (result == CUDA_SUCCESS && owner) track::image_loaded(*owner, is_library, std::move(image));
  return result;
}

// The driver answers through option values: a try that fails must not have changed what the program passed.
class JitValues {
 public:
  static constexpr unsigned kMost = 64;
  JitValues(void** values, unsigned n) : program_(values), n_(n) {
    for (unsigned i = 0; values && i < n && i < kMost; i++) copy_[i] = values[i];
  }
  bool usable() const { return n_ <= kMost; }
  void** values() { return program_ ? copy_ : nullptr; }
  CUresult answered(CUresult result) {
    for (unsigned i = 0; result == CUDA_SUCCESS && program_ && i < n_; i++) program_[i] = copy_[i];
    return result;
  }

 private:
  void** program_;
  unsigned n_;
  void* copy_[kMost];
};

// The driver keeps a pointer to such an image instead of a copy.
bool keeps_pointer(const CUlibraryOption* options, unsigned n) {
  for (unsigned i = 0; options && i < n; i++)
    if (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED) return true;
  return false;
}

template <class Original>
CUresult load_library(CUlibrary* library, std::shared_ptr<track::Image> image, CUjit_option* jit,
                      void** jit_values, unsigned n_jit, CUlibraryOption* options, void** values, unsigned n,
                      Original&& original) {
  JitValues mine(jit_values, n_jit);
  if (image && !mine.usable()) track::load_as_it_is(*image);
  if (image) image->keep_text = keeps_pointer(options, n);
  return load_image(library, std::move(image), true, original, [&](const char* text) {
    return mine.answered(
        real().cuLibraryLoadData(library, text, jit, mine.values(), n_jit, options, values, n));
  });
}

bool best_effort() {
  return live() && state::config().priority == 0;
}

}  // namespace

extern "C" CUresult hook_cuModuleLoad(CUmodule* module, const char* path) noexcept {
  const auto original = [&] { return real().cuModuleLoad(module, path); };
  if (!live()) return original();
  const base::ErrnoGuard keep_errno;
  return load_image(module, track::inspect_file(path, __builtin_return_address(0)), false, original,
                    [&](const char* text) { return real().cuModuleLoadData(module, text); });
}
extern "C" CUresult hook_cuModuleLoadData(CUmodule* module, const void* image) noexcept {
  const auto original = [&] { return real().cuModuleLoadData(module, image); };
  if (!live()) return original();
  const base::ErrnoGuard keep_errno;
  return load_image(module, track::inspect(image, __builtin_return_address(0)), false, original,
                    [&](const char* text) { return real().cuModuleLoadData(module, text); });
}
extern "C" CUresult hook_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned n,
                                            CUjit_option* options, void** values) noexcept {
  const auto original = [&] { return real().cuModuleLoadDataEx(module, image, n, options, values); };
  if (!live()) return original();
  const base::ErrnoGuard keep_errno;
  JitValues mine(values, n);
  auto looked_at = track::inspect(image, __builtin_return_address(0));
  if (looked_at && !mine.usable()) track::load_as_it_is(*looked_at);
  return load_image(module, std::move(looked_at), false, original, [&](const char* text) {
    return mine.answered(real().cuModuleLoadDataEx(module, text, n, options, mine.values()));
  });
}
extern "C" CUresult hook_cuModuleLoadFatBinary(CUmodule* module, const void* image) noexcept {
  const auto original = [&] { return real().cuModuleLoadFatBinary(module, image); };
  if (!live()) return original();
  const base::ErrnoGuard keep_errno;
  // Our text is PTX, which this entry point does not take.
  return load_image(module, track::inspect(image, __builtin_return_address(0)), false, original,
                    [&](const char* text) { return real().cuModuleLoadData(module, text); });
}
extern "C" CUresult hook_cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit,
                                           void** jit_values, unsigned n_jit, CUlibraryOption* options,
                                           void** values, unsigned n) noexcept {
  const auto original = [&] {
    return real().cuLibraryLoadData(library, code, jit, jit_values, n_jit, options, values, n);
  };
  if (!live()) return original();
  const base::ErrnoGuard keep_errno;
  return load_library(library, track::inspect(code, __builtin_return_address(0)), jit, jit_values, n_jit,
                      options, values, n, original);
}
extern "C" CUresult hook_cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* jit,
                                               void** jit_values, unsigned n_jit, CUlibraryOption* options,
                                               void** values, unsigned n) noexcept {
  const auto original = [&] {
    return real().cuLibraryLoadFromFile(library, path, jit, jit_values, n_jit, options, values, n);
  };
  if (!live()) return original();
  const base::ErrnoGuard keep_errno;
  return load_library(library, track::inspect_file(path, __builtin_return_address(0)), jit, jit_values, n_jit,
                      options, values, n, original);
}

extern "C" CUresult hook_cuModuleUnload(CUmodule module) noexcept {
  if (live()) track::siblings_unload(module), track::graphs_lose_what_they_name();
  const uint64_t load = live() ? track::load_of(module) : 0;
  const gate::Blocked waits;
  const CUresult result = real().cuModuleUnload(module);
  if (result == CUDA_SUCCESS && live()) track::image_unloaded(module, load);
  return result;
}
extern "C" CUresult hook_cuLibraryUnload(CUlibrary library) noexcept {
  if (live()) track::siblings_unload(library), track::graphs_lose_what_they_name();
  const uint64_t load = live() ? track::load_of(library) : 0;
  const gate::Blocked waits;
  const CUresult result = real().cuLibraryUnload(library);
  if (result == CUDA_SUCCESS && live()) track::image_unloaded(library, load);
  return result;
}

extern "C" CUresult hook_cuModuleGetFunction(CUfunction* function, CUmodule module,
                                             const char* name) noexcept {
  const CUresult result = real().cuModuleGetFunction(function, module, name);
  if (result == CUDA_SUCCESS && live()) track::kernel_found(*function, module, false, name);
  return result;
}
extern "C" CUresult hook_cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) noexcept {
  const CUresult result = real().cuLibraryGetKernel(kernel, library, name);
  if (result == CUDA_SUCCESS && live()) track::kernel_found(*kernel, library, true, name);
  return result;
}
extern "C" CUresult hook_cuLibraryGetModule(CUmodule* module, CUlibrary library) noexcept {
  const CUresult result = real().cuLibraryGetModule(module, library);
  if (result == CUDA_SUCCESS && live()) track::module_of_library(*module, library);
  return result;
}
extern "C" CUresult hook_cuFuncGetModule(CUmodule* module, CUfunction function) noexcept {
  const CUresult result = real().cuFuncGetModule(module, function);
  if (result == CUDA_SUCCESS && live()) track::module_of_function(*module, function);
  return result;
}
extern "C" CUresult hook_cuKernelGetFunction(CUfunction* function, CUkernel kernel) noexcept {
  const gate::Blocked waits;  // the first time of a kernel
  const CUresult result = real().cuKernelGetFunction(function, kernel);
  if (result == CUDA_SUCCESS && live()) track::kernel_function(kernel, *function);
  return result;
}

static bool is_library(CUmodule) {
  return false;
}
static bool is_library(CUlibrary) {
  return true;
}
static unsigned kernels_in(CUmodule module) {
  unsigned n = 0;
  return real().cuModuleGetFunctionCount(&n, module) == CUDA_SUCCESS ? n : 0;
}
static unsigned kernels_in(CUlibrary library) {
  unsigned n = 0;
  return real().cuLibraryGetKernelCount(&n, library) == CUDA_SUCCESS ? n : 0;
}

static void enumerated(const void* handle, void* owner, bool library, const char* name) {
  // Not more than a part of the table: programs list thousands of kernels and launch a few. What is not in
  // the books is gated by its size, and cut once it is looked up by name.
  static std::atomic<unsigned> seen{0};
  if (!name || seen.load(std::memory_order_relaxed) >= state::kKernelSlots / 4)
    return track::kernel_not_kept(handle, owner, name);
  seen.fetch_add(1, std::memory_order_relaxed);
  track::kernel_found(handle, owner, library, name);
}

// Enumeration does not show what we added: ask for all, hand out the program's own. They are launched like
// those that were asked for by name.
template <class Handle, class Owner, class Ask, class NameOf>
static CUresult enumerate(Handle* out, unsigned wanted, Owner owner, Ask&& ask, NameOf&& name_of) {
  const uint32_t added = best_effort() ? track::variants_in(owner) : 0;
  if (added == 0 || wanted == 0 || !out) {
    const CUresult result = ask(out, wanted);
    if (result != CUDA_SUCCESS || !out || !live()) return result;
    const unsigned there = kernels_in(owner);  // beyond them nothing was written
    for (unsigned i = 0; i < wanted && i < there; i++) {
      const char* name = nullptr;
      if (name_of(&name, out[i]) != CUDA_SUCCESS) name = nullptr;
      enumerated(out[i], owner, is_library(owner), name);
    }
    return result;
  }
  const unsigned all = wanted + added;
  Handle* buffer = static_cast<Handle*>(calloc(all, sizeof(Handle)));  // NOLINT: a handle is a pointer
  if (!buffer) return ask(out, wanted);
  const CUresult result = ask(buffer, all);
  unsigned kept = 0;
  for (unsigned i = 0; result == CUDA_SUCCESS && i < all && kept < wanted; i++) {
    const char* name = nullptr;
    if (!buffer[i] || (name_of(&name, buffer[i]) == CUDA_SUCCESS && name && track::is_variant_name(name)))
      continue;
    enumerated(buffer[i], owner, is_library(owner), name);
    out[kept++] = buffer[i];
  }
  free(buffer);
  return result;
}
extern "C" CUresult hook_cuModuleEnumerateFunctions(CUfunction* functions, unsigned n,
                                                    CUmodule module) noexcept {
  return enumerate(
      functions, n, module,
      [&](CUfunction* out, unsigned k) { return real().cuModuleEnumerateFunctions(out, k, module); },
      [](const char** name, CUfunction f) { return real().cuFuncGetName(name, f); });
}
extern "C" CUresult hook_cuLibraryEnumerateKernels(CUkernel* kernels, unsigned n,
                                                   CUlibrary library) noexcept {
  return enumerate(
      kernels, n, library,
      [&](CUkernel* out, unsigned k) { return real().cuLibraryEnumerateKernels(out, k, library); },
      [](const char** name, CUkernel k) { return real().cuKernelGetName(name, k); });
}
extern "C" CUresult hook_cuModuleGetFunctionCount(unsigned* count, CUmodule module) noexcept {
  const CUresult result = real().cuModuleGetFunctionCount(count, module);
  if (result == CUDA_SUCCESS && best_effort()) *count -= track::variants_in(module);
  return result;
}
extern "C" CUresult hook_cuLibraryGetKernelCount(unsigned* count, CUlibrary library) noexcept {
  const CUresult result = real().cuLibraryGetKernelCount(count, library);
  if (result == CUDA_SUCCESS && best_effort()) *count -= track::variants_in(library);
  return result;
}

// Attributes of kernels.
static CUresult attribute_set(CUresult result, const void* kernel, const CUfunc_cache* cache = nullptr,
                              const CUsharedconfig* shared = nullptr) {
  if (result == CUDA_SUCCESS && live()) track::attribute_set(kernel, cache, shared);
  return result;
}
extern "C" CUresult hook_cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute,
                                            int value) noexcept {
  return attribute_set(real().cuFuncSetAttribute(f, attribute, value), f);
}
extern "C" CUresult hook_cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                              CUdevice device) noexcept {
  return attribute_set(real().cuKernelSetAttribute(attribute, value, kernel, device), kernel);
}
extern "C" CUresult hook_cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config) noexcept {
  return attribute_set(real().cuFuncSetCacheConfig(f, config), f, &config);
}
extern "C" CUresult hook_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config,
                                                CUdevice device) noexcept {
  return attribute_set(real().cuKernelSetCacheConfig(kernel, config, device), kernel, &config);
}
extern "C" CUresult hook_cuFuncSetSharedMemConfig(CUfunction f, CUsharedconfig config) noexcept {
  return attribute_set(real().cuFuncSetSharedMemConfig(f, config), f, nullptr, &config);
}
