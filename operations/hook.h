// How another library of Tessera has calls of a program bound to the hooks of libtessera_ops.so, where the loader does
// not do it by itself: a C interface, functions looked up by name. Any thread; nothing is allocated.
#pragma once

struct link_map;  // <link.h>

namespace tessera::operations {

// Exported by libtessera_ops.so as tessera_ops_hook. `symbol`: a name that cuBLAS, cublasLt or cuDNN exports; `real`: its
// address, where the caller would have gone, which stays valid. The answer is where to go instead: it calls `real`. Null:
// leave the caller alone. So for a name that has no hook, and for a second address under a name: a hook calls one only.
using GetHook = void* (*)(const char* symbol, void* real);
inline constexpr char kGetHookName[] = "tessera_ops_hook";

// Exported as tessera_ops_forget. `library` is about to be unmapped: hooks forget its addresses, and take those that it
// has when it comes back.
using ForgetLibrary = void (*)(const link_map* library);
inline constexpr char kForgetLibraryName[] = "tessera_ops_forget";

}  // namespace tessera::operations
