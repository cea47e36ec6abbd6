#include "interpose/operations/loaded_library.h"

#include <link.h>

#include "base/errno_guard.h"
#include "base/loader.h"

namespace tessera::library {

[[gnu::noinline]] bool OnceFound::look(bool (*find)(const void* context), const void* context) {
  uint32_t state = kNotLooked;
  if (!state_.compare_exchange_strong(state, kLooking, std::memory_order_relaxed)) return false;
  const base::ErrnoGuard keep_errno;
  const bool found = find(context);
  state_.store(found ? kFound : kNotFound, std::memory_order_release);  // pairs with have()
  return found;
}

void* library_of(const void* function) {
  const base::Loader loader = base::loader();
  Dl_info info;
  void* found = nullptr;
  if (!loader.dladdr1 || !loader.dlmopen) return nullptr;  // musl
  if (!function || loader.dladdr1(function, &info, &found, RTLD_DL_LINKMAP) == 0 || !found) return nullptr;
  // The map is no handle yet: of a library that came with another one, the loader has not made what dlsym() walks.
  const auto* map = static_cast<const link_map*>(found);
  Lmid_t space = LM_ID_BASE;
  if (loader.dlinfo(found, RTLD_DI_LMID, &space) != 0) return nullptr;
  return loader.dlmopen(space, map->l_name, RTLD_NOLOAD | RTLD_LAZY);
}

void* opened_library(const char* soname) {
  return base::loader().dlopen(soname, RTLD_NOLOAD | RTLD_LAZY);
}

void* symbol_of(void* library, const char* symbol) {
  return library ? base::loader().dlsym(library, symbol) : nullptr;
}

}  // namespace tessera::library
