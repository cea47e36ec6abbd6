// Parameters of a variant's launch: the program's own, then the origin of the slice, then the addresses of
// variables that a sibling takes. One form per kind of launch (kernelParams, extra). On the launching thread's
// stack, about 7 KiB; allocation-free.
#pragma once

#include "interpose/gate/launch.h"
#include "interpose/state/kernels.h"
#include "kernels/slice/globals.h"

namespace tessera::cut {

class VariantParams {
 public:
  // False: the launch has a form that cannot be passed on.
  bool prepare(const gate::LaunchCall& launch, const state::KernelRecord& kernel);
  void set_origin(const uint32_t at[3]);
  // The parameters of a launch of the variant; they point into this object.
  void** params() { return by_pointer_ ? pointers_ : nullptr; }
  void** extra() { return by_pointer_ ? nullptr : extra_; }

 private:
  static constexpr uint32_t kMaxParams = 256;       // more pointers than this and the launch is not cut
  static constexpr uint32_t kMaxParamBytes = 4096;  // of `extra` launches that are rebuilt

  bool take_buffer(const gate::LaunchCall& launch, const state::VariantForm& form);

  slice::SliceOrigin origin_{};
  uint64_t globals_[slice::kMaxPassedGlobals];
  void* pointers_[kMaxParams + 2];
  alignas(16) unsigned char buffer_[kMaxParamBytes + sizeof(slice::SliceOrigin) + sizeof(uint64_t) +
                                    sizeof globals_];
  size_t buffer_bytes_ = 0;
  void* extra_[5];
  uint32_t origin_offset_ = 0;
  bool by_pointer_ = true;
};

}  // namespace tessera::cut
