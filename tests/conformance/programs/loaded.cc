// Every name through dlopen and dlsym, of both names of the library: found or not, and the same by both.
#include <dlfcn.h>

#include "driver_api/cuda.h"
#include "tests/conformance/programs/print.h"

int main() {
  void* versioned = dlopen("libcuda.so.1", RTLD_NOW);
  void* plain = dlopen("libcuda.so", RTLD_LAZY | RTLD_GLOBAL);
  std::printf("%d %d\n", versioned != nullptr, plain != nullptr);
  if (versioned == nullptr || plain == nullptr) return 1;
  int found = 0;
#define TS_CU(symbol, base, since, stream, ret, params, args)                                   \
  if (void* p = dlsym(versioned, #symbol); p != nullptr) {                                      \
    ++found;                                                                                    \
    if (dlsym(plain, #symbol) != p) std::printf("%s differs between the two names\n", #symbol); \
  } else {                                                                                      \
    std::printf("%s not found\n", #symbol);                                                     \
  }
#include "driver_api/entries.def"
  std::printf("%d found, nonsense %d\n", found, dlsym(versioned, "cuNoSuchFunction") != nullptr);
  const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(plain, "cuInit"));
  SAY(init(0));
  SAY(dlclose(plain));
  SAY(init(0));  // the other handle still holds it
}
