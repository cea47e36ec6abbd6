// Calls each function of the fake cuDNN, with arguments that are told by their place alone, and prints what it answers:
//   linked            as it was linked with the library
//   dlsym LIBRARY     looked up by name
#include <dlfcn.h>

#include <cstring>

#include "tests/loader/calls.h"
#include "tests/loader/cudnn/cudnn_types.h"

#define TS_CALL(symbol, base, params, args, what) extern "C" int symbol params;
#include "interpose/operations/cudnn_calls.def"

int main(int argc, char** argv) {
  if (argc < 2 || !loader::make_page()) return 2;
  void* library = argc == 3 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (argc == 3 && !library) return 2;
#define TS_CALL(symbol, base, params, args, what)                                                      \
  {                                                                                                    \
    auto* function = library ? reinterpret_cast<decltype(&symbol)>(dlsym(library, #symbol)) : &symbol; \
    printf("%s %d\n", #symbol, loader::call(function));                                                \
  }
#include "interpose/operations/cudnn_calls.def"
  return 0;
}
