// Tells the library that answers a program which reaches the driver in a given way: prints "shim", "driver" or "nobody".
//
// usage: reach WAY DRIVER MODULE
// Without arguments: the ways. DRIVER: the driver's file. MODULE: reach_module, which is linked with the
// driver.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "driver_api/cuda.h"

namespace {

struct Inputs {
  const char* driver = "";
  const char* module = "";
};

// "libcuda.so.535.261.03" is what "libcuda.so.1" leads to; the version is not this program's subject.
std::string owner(void* function) {
  Dl_info where;
  if (function == nullptr || dladdr(function, &where) == 0) return "nobody";
  const std::string path = where.dli_fname;
  const std::string file = path.substr(path.rfind('/') + 1);
  return file.rfind("libcuda.so", 0) == 0 ? "driver" : file == "libtessera.so" ? "shim" : file;
}

void* in(void* library, const char* symbol = "cuLaunchKernel") {
  return library == nullptr ? nullptr : dlsym(library, symbol);
}

// The function that a module calls which was linked with the driver.
void* of_module(const char* module, int flags) {
  void* ask = in(dlopen(module, RTLD_NOW | flags), "reach_module_function");
  return ask == nullptr ? nullptr : reinterpret_cast<void* (*)()>(ask)();
}

// A name that the driver gave itself a table for; `symbol` is hooked or not.
void* by_lookup(const char* symbol) {
  void* lookup = in(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
  void* found = nullptr;
  if (lookup == nullptr) return nullptr;
  reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t, void*)>(lookup)(symbol, &found, 12000,
                                                                                      0, nullptr);
  return found;
}

struct Way {
  const char* name;
  void* (*function)(const Inputs&);
};
constexpr Way kWays[] = {
    {"linked", [](const Inputs& i) { return of_module(i.module, RTLD_LOCAL); }},
    {"linked, library opened RTLD_DEEPBIND",
     [](const Inputs& i) { return of_module(i.module, RTLD_DEEPBIND); }},
    {"dlopen libcuda.so.1", [](const Inputs&) { return in(dlopen("libcuda.so.1", RTLD_NOW)); }},
    {"dlopen libcuda.so.1, RTLD_LAZY", [](const Inputs&) { return in(dlopen("libcuda.so.1", RTLD_LAZY)); }},
    {"dlopen libcuda.so.1, RTLD_GLOBAL",
     [](const Inputs&) { return in(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)); }},
    {"dlopen libcuda.so.1, RTLD_DEEPBIND",
     [](const Inputs&) { return in(dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND)); }},
    {"dlopen libcuda.so.1, closed and opened again",
     [](const Inputs&) {
       void* first = dlopen("libcuda.so.1", RTLD_NOW);
       if (first != nullptr) dlclose(first);
       return in(dlopen("libcuda.so.1", RTLD_NOW));
     }},
    {"dlopen libcuda.so", [](const Inputs&) { return in(dlopen("libcuda.so", RTLD_NOW)); }},
    {"dlopen libcuda.so.1, RTLD_NOLOAD",
     [](const Inputs&) { return in(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)); }},
    {"dlsym RTLD_DEFAULT", [](const Inputs&) { return dlsym(RTLD_DEFAULT, "cuLaunchKernel"); }},
    {"dlvsym",
     [](const Inputs&) {
       void* library = dlopen("libcuda.so.1", RTLD_NOW);
       return library == nullptr ? nullptr : dlvsym(library, "cuLaunchKernel", "libcuda.so.1");
     }},
    {"cuGetProcAddress of a hooked name", [](const Inputs&) { return by_lookup("cuLaunchKernel"); }},
    {"cuGetProcAddress of another name", [](const Inputs&) { return by_lookup("cuDeviceGetName"); }},
    {"dlopen by absolute path", [](const Inputs& i) { return in(dlopen(i.driver, RTLD_NOW)); }},
    {"dlmopen libcuda.so.1",
     [](const Inputs&) { return in(dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)); }},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Way& way : kWays) {
    if (argc < 2) {
      std::printf("%s\n", way.name);
    } else if (std::strcmp(way.name, argv[1]) == 0) {
      const Inputs inputs{argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : ""};
      std::printf("%s\n", owner(way.function(inputs)).c_str());
      return 0;
    }
  }
  return argc < 2 ? 0 : 2;
}
