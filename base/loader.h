// The loader's own functions, read from the symbol table of the C library: other libraries override dlopen and dlsym, and
// answer our questions by what leads back to us. Returned by value, nothing is kept. Slow; any thread.
#pragma once

#include <dlfcn.h>

namespace tessera::base {

// Null where the process has no such function: musl lacks them.
#pragma weak dlmopen
#pragma weak dlvsym
#pragma weak dladdr1

// If the C library is not found, they are what the process has under these names.
struct Loader {
  decltype(&::dlopen) dlopen = &::dlopen;
  decltype(&::dlmopen) dlmopen = &::dlmopen;
  decltype(&::dlclose) dlclose = &::dlclose;
  decltype(&::dlsym) dlsym = &::dlsym;
  decltype(&::dlvsym) dlvsym = &::dlvsym;
  decltype(&::dlinfo) dlinfo = &::dlinfo;
  decltype(&::dladdr) dladdr = &::dladdr;
  decltype(&::dladdr1) dladdr1 = &::dladdr1;
};
Loader loader();

}  // namespace tessera::base
