// Every export of the vendor's runtime that this one does not implement: present, so that programs load, and
// answering cudaErrorNotSupported. The list is generated (gen_exports.py) as "all exports minus what the
// other files define". Signature-free on purpose: arguments are ignored, and this file must not see the real
// declarations.

namespace tessera::softgpu::runtime {
int not_supported();  // remembers cudaErrorNotSupported for this thread and returns it; defined in misc.cc
}

extern "C" {
#define TS_UNSUPPORTED(name)                           \
  int name() {                                         \
    return tessera::softgpu::runtime::not_supported(); \
  }
#include "softgpu/runtime/unsupported.def"
}
