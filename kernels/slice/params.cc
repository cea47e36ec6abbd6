#include <algorithm>

#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

uint64_t round_up(uint64_t value, uint64_t align) {
  return align ? (value + align - 1) / align * align : value;
}

}  // namespace

ParamLayout layout_params(const ptx::Function& entry) {
  ParamLayout layout;
  for (const ptx::Variable& v : entry.params) {
    uint64_t align = v.align ? v.align : std::max<uint64_t>(1, uint64_t{ptx::type_bytes(v.type)} * v.vector);
    uint64_t size = v.type == ptx::Type::kOther ? 8 : v.size_bytes();  // .texref and the like: a handle
    layout.end = round_up(layout.end, v.type == ptx::Type::kOther ? 8 : align);
    if (__builtin_add_overflow(layout.end, size, &layout.end) || layout.end > UINT32_MAX)
      layout.end = UINT32_MAX;
  }
  layout.origin_offset = round_up(layout.end, alignof(SliceOrigin));
  return layout;
}

// PTX ISA 5.1.6.1: 32,764 bytes since PTX 8.1 on sm_70 and later, else 4,352 of which cudart passes 4,096.
uint64_t param_limit_bytes(const ptx::Module& module) {
  unsigned sm = 0;
  for (ptx::Name target : module.target) {
    if (target.starts_with("sm_"))
      for (char c : target.substr(3))
        sm = c >= '0' && c <= '9' ? sm * 10 + static_cast<unsigned>(c - '0') : sm;
  }
  bool large =
      sm >= 70 && (module.version_major > 8 || (module.version_major == 8 && module.version_minor >= 1));
  return large ? 32764 : 4096;
}

}  // namespace tessera::slice
