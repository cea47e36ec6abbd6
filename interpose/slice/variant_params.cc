#include "interpose/slice/variant_params.h"

#include <cstring>

namespace tessera::cut {
namespace {

constexpr uint32_t kMostPadding = 16;

// `extra` launches: {BUFFER_POINTER, p, BUFFER_SIZE, &n, END} in either order.
bool parse_extra(void** extra, const void** buffer, size_t* bytes) {
  *buffer = nullptr;
  *bytes = 0;
  for (int i = 0; i < 8 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      *buffer = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *bytes = *static_cast<const size_t*>(extra[i + 1]);
    else
      return false;
  }
  return *buffer && *bytes;
}

}  // namespace

bool VariantParams::prepare(const gate::LaunchCall& launch, const state::KernelRecord& kernel) {
  const state::VariantForm& form = kernel.form;
  memcpy(origin_.grid, launch.grid, sizeof origin_.grid);
  if (form.n_globals > slice::kMaxPassedGlobals) return false;
  for (uint32_t i = 0; i < form.n_globals; i++)
    globals_[i] = form.globals[i].load(std::memory_order_relaxed);  // published with the variant's handle
  if (!launch.params && form.n_params != 0) return take_buffer(launch, form);
  if (form.n_params > kMaxParams) return false;
  for (uint32_t i = 0; i < form.n_params; i++) pointers_[i] = launch.params[i];
  pointers_[form.n_params] = &origin_;
  pointers_[form.n_params + 1] = globals_;  // not read if there are none
  return true;
}

bool VariantParams::take_buffer(const gate::LaunchCall& launch, const state::VariantForm& form) {
  const void* source = nullptr;
  size_t bytes = 0;
  if (!launch.extra || !parse_extra(launch.extra, &source, &bytes)) return false;
  origin_offset_ = form.origin_offset;
  // The origin begins at the first multiple of 4 behind the parameters; a structure of the program's may be
  // padded beyond that. Anything else is for the driver to judge.
  if (bytes + 3 < origin_offset_ || bytes >= origin_offset_ + kMostPadding) return false;
  if (origin_offset_ > kMaxParamBytes) return false;
  const size_t used = bytes < origin_offset_ ? bytes : origin_offset_;
  memcpy(buffer_, source, used);
  memset(buffer_ + used, 0, origin_offset_ - used);
  buffer_bytes_ = origin_offset_ + sizeof origin_;
  if (const uint32_t n = form.n_globals; n != 0) {
    memset(buffer_ + buffer_bytes_, 0, form.globals_offset - buffer_bytes_);
    memcpy(buffer_ + form.globals_offset, globals_, n * sizeof *globals_);
    buffer_bytes_ = form.globals_offset + n * sizeof *globals_;
  }
  by_pointer_ = false;
  void* const extra[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer_, CU_LAUNCH_PARAM_BUFFER_SIZE,
                          &buffer_bytes_, CU_LAUNCH_PARAM_END};
  memcpy(extra_, extra, sizeof extra_);
  return true;
}

void VariantParams::set_origin(const uint32_t at[3]) {
  memcpy(origin_.origin, at, sizeof origin_.origin);
  if (!by_pointer_) memcpy(buffer_ + origin_offset_, &origin_, sizeof origin_);
}

}  // namespace tessera::cut
