#include "interpose/track/sibling_load.h"

#include <new>

#include "driver_api/ask.h"
#include "interpose/track/parameter_count.h"

namespace tessera::track {
namespace {

using state::KernelRecord;
constexpr auto kRelaxed = std::memory_order_relaxed;

// The variant is a copy of this original: same parameters but for the added one, same shared memory.
bool is_copy(CUfunction original, CUfunction variant, uint32_t n_params) {
  const auto& real = driver_api::real();
  if (!original || !variant || !real.cuFuncGetParamInfo) return false;
  size_t offset = 0, bytes = 0, own_offset = 0, own_bytes = 0;
  const std::optional<size_t> count = parameter_count(real.cuFuncGetParamCount, original);
  if (count ? *count != n_params
            : real.cuFuncGetParamInfo(original, n_params, &offset, &bytes) == CUDA_SUCCESS)
    return false;
  for (uint32_t i = 0; i < n_params; i++)
    if (real.cuFuncGetParamInfo(original, i, &offset, &bytes) != CUDA_SUCCESS ||
        real.cuFuncGetParamInfo(variant, i, &own_offset, &own_bytes) != CUDA_SUCCESS ||
        offset != own_offset || bytes != own_bytes)
      return false;
  int theirs = -1, own = -2;
  return real.cuFuncGetAttribute(&theirs, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, original) == CUDA_SUCCESS &&
         real.cuFuncGetAttribute(&own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, variant) == CUDA_SUCCESS &&
         theirs == own;
}

// In the sibling thread, the context current. Null: the driver refuses, or it is no copy.
CUfunction load(const KernelRecord& kernel, const SiblingText& text, Sibling* out) {
  const auto& real = driver_api::real();
  CUfunction original = nullptr, variant = nullptr, handle = nullptr;
  if (kernel.loaded.owner_is_library) {
    CUkernel theirs = nullptr, own = nullptr;
    if (!driver_api::made(out->library, real.cuLibraryLoadData, text.image.data(), nullptr, nullptr, 0u,
                          nullptr, nullptr, 0u))
      return nullptr;
    if (real.cuLibraryGetKernel(&own, out->library, text.variant_name.c_str()) != CUDA_SUCCESS ||
        real.cuLibraryGetKernel(&theirs, static_cast<CUlibrary>(kernel.loaded.owner), kernel.loaded.name) !=
            CUDA_SUCCESS ||
        real.cuKernelGetFunction(&variant, own) != CUDA_SUCCESS ||
        real.cuKernelGetFunction(&original, theirs) != CUDA_SUCCESS)
      return nullptr;
    handle = reinterpret_cast<CUfunction>(own);
  } else {
    if (!driver_api::made(out->module, real.cuModuleLoadData, text.image.data())) return nullptr;
    if (real.cuModuleGetFunction(&variant, out->module, text.variant_name.c_str()) != CUDA_SUCCESS ||
        real.cuModuleGetFunction(&original, static_cast<CUmodule>(kernel.loaded.owner), kernel.loaded.name) !=
            CUDA_SUCCESS)
      return nullptr;
    handle = variant;
  }
  // Attributes of a function make a lazily loading driver load it: not in somebody's launch.
  return is_copy(original, variant, text.n_params) ? handle : nullptr;
}

// Addresses of the variables in the original's module, in the current context; they last as long as it does.
// A driver that finds none, or another object of that name, refuses.
bool find_globals(const KernelRecord& kernel, const SiblingText& text, uint64_t* out) {
  const auto& real = driver_api::real();
  for (const slice::PassedVariable& v : text.globals) {
    CUdeviceptr at = 0;
    size_t bytes = 0;
    const CUresult result =
        kernel.loaded.owner_is_library
            ? real.cuLibraryGetGlobal(&at, &bytes, static_cast<CUlibrary>(kernel.loaded.owner),
                                      v.name.c_str())
            : real.cuModuleGetGlobal_v2(&at, &bytes, static_cast<CUmodule>(kernel.loaded.owner),
                                        v.name.c_str());
    if (result != CUDA_SUCCESS || at == 0 || bytes != v.bytes) return false;
    *out++ = at;
  }
  return true;
}

// For launches that see the variant that is stored after this. In another context only the addresses change:
// the text is the same, and the rest may be read meanwhile.
bool keep_globals(KernelRecord& kernel, const SiblingText& text, const uint64_t* addresses) {
  const auto n = uint32_t(text.globals.size());
  if (n != 0 && !kernel.form.globals) {
    kernel.form.globals = new (std::nothrow) std::atomic<uint64_t>[n];
    if (!kernel.form.globals) return false;
    kernel.form.globals_offset = text.globals_offset;
    kernel.form.n_globals = n;
  }
  for (uint32_t i = 0; i < n; i++) kernel.form.globals[i].store(addresses[i], kRelaxed);
  return true;
}

}  // namespace

void unload_sibling(const Sibling& s) {
  const auto& real = driver_api::real();
  if (s.library) real.cuLibraryUnload(s.library);
  if (!s.module) return;
  CUcontext ignored = nullptr;
  if (real.cuCtxPushCurrent_v2(s.context) != CUDA_SUCCESS) return;
  real.cuModuleUnload(s.module);
  real.cuCtxPopCurrent_v2(&ignored);
}

std::optional<Reason> load_sibling(KernelRecord& kernel, CUcontext context, const SiblingText& text,
                                   Sibling* out) {
  const auto& real = driver_api::real();
  *out = {&kernel, context, nullptr, nullptr};
  if (real.cuCtxSetCurrent(context) != CUDA_SUCCESS) return RunTimeReason::kSiblingFailed;
  uint64_t addresses[slice::kMaxPassedGlobals];
  const bool found = find_globals(kernel, text, addresses);
  const CUfunction variant = found ? load(kernel, text, out) : nullptr;
  if (!variant) unload_sibling(*out);
  real.cuCtxSetCurrent(nullptr);
  if (!variant) return found ? RunTimeReason::kSiblingFailed : RunTimeReason::kVariableAddress;
  if (!keep_globals(kernel, text, addresses)) {
    unload_sibling(*out);
    return RunTimeReason::kSiblingFailed;
  }
  // Asked for again in another context it is the same, and launches may read it.
  if (kernel.form.origin_offset == 0) {
    kernel.form.n_params = text.n_params;
    kernel.form.origin_offset = text.origin_offset;
    kernel.form.ascending_row = text.ascending_row;
  }
  kernel.variant.sibling_context.store(context, kRelaxed);
  kernel.variant.mirrored_context.store(nullptr, kRelaxed);
  kernel.variant.handle.store(variant, kRelaxed);
  return std::nullopt;
}

}  // namespace tessera::track
