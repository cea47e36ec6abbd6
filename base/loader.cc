#include "base/loader.h"

#include <link.h>

#include "base/exports.h"

namespace tessera::base {
namespace {

struct Search {
  const char* soname;
  Exports found;
};

int is_wanted(dl_phdr_info* object, size_t, void* context) {
  auto* search = static_cast<Search*>(context);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    if (header.p_type != PT_DYNAMIC) continue;
    const Exports exports(object->dlpi_addr,
                          reinterpret_cast<const ElfW(Dyn)*>(object->dlpi_addr + header.p_vaddr));
    if (!equal(exports.soname(), search->soname)) continue;
    search->found = exports;
    return 1;
  }
  return 0;
}

Exports loaded_object(const char* soname) {
  Search search{soname, {}};
  dl_iterate_phdr(is_wanted, &search);
  return search.found;
}

template <class Function>
void take(const Exports& library, const char* name, Function* function) {
  if (void* own = library.find(name, nullptr)) *function = reinterpret_cast<Function>(own);
}

// Before glibc 2.34 they were in the first of these, since then in the second.
constexpr const char* kHomes[] = {"libdl.so.2", "libc.so.6"};

}  // namespace

Loader loader() {
  Loader out;
  for (const char* soname : kHomes) {
    const Exports library = loaded_object(soname);
    take(library, "dlopen", &out.dlopen);
    take(library, "dlmopen", &out.dlmopen);
    take(library, "dlclose", &out.dlclose);
    take(library, "dlsym", &out.dlsym);
    take(library, "dlvsym", &out.dlvsym);
    take(library, "dlinfo", &out.dlinfo);
    take(library, "dladdr", &out.dladdr);
    take(library, "dladdr1", &out.dladdr1);
  }
  return out;
}

}  // namespace tessera::base
