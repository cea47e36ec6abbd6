// Hooks of the class allocate.
#include "interpose/hooks/memory.h"

#include "interpose/hooks/hooks.h"

#define TS_HOOK_allocate(symbol, base, since, stream, ret, params, args)                                  \
  extern "C" ret hook_##symbol params noexcept {                                                          \
    return tessera::hooks::with_memory([&]() -> ret { return tessera::driver_api::real().symbol args; }); \
  }
#include "driver_api/hooks.def"
