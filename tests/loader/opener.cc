// Reaches cuBLAS without being linked with it:   opener WAY LIBRARY   prints the answer of cublasSgemm_v2, or that there
// is no such function.
#include <dlfcn.h>

#include <cstring>

#include "operations/hook.h"
#include "tests/loader/calls.h"

namespace {

using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                const float*, const float*, int, const float*, int, const float*, float*,
                                int);
constexpr char kName[] = "cublasSgemm_v2", kVersion[] = "libcublas.so.13";

int print(void* function) {
  if (function)
    printf("%d\n", loader::call(reinterpret_cast<Gemm>(function)));
  else
    puts("none");
  return 0;
}

// The hook that libtessera_ops.so gives for an address, as a helper of the loader asks; without that library, the
// address itself.
void* hook_of(void* real) {
  const auto get =
      reinterpret_cast<tessera::operations::GetHook>(dlsym(RTLD_DEFAULT, tessera::operations::kGetHookName));
  if (!get) return real;
  if (get("cublasNothing", real) || get(kName, nullptr)) return nullptr;  // names and addresses of nothing
  return get(kName, real);
}

int print_extension(void* library) {
  void* run = library ? dlsym(library, "run_extension") : nullptr;
  if (!run) return fprintf(stderr, "%s\n", dlerror()), 1;
  printf("%d\n", reinterpret_cast<int (*)()>(run)());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || !loader::make_page()) return 2;
  const char* path = argv[2];
  const auto is = [&](const char* way) { return strcmp(argv[1], way) == 0; };
  if (is("absent")) return print(dlsym(RTLD_DEFAULT, kName));
  if (is("absent_version")) return print(dlvsym(RTLD_DEFAULT, kName, kVersion));
  if (is("dlsym")) return print(dlsym(dlopen(path, RTLD_NOW), kName));
  if (is("dlvsym")) return print(dlvsym(dlopen(path, RTLD_NOW), kName, kVersion));
  if (is("hooked")) return print(hook_of(dlsym(dlopen(path, RTLD_NOW), kName)));
  if (is("hooked_namespace")) return print(hook_of(dlsym(dlmopen(LM_ID_NEWLM, path, RTLD_NOW), kName)));
  if (is("hooked_second")) {  // of two copies the first is served, the other must stay with itself
    void* const second = dlsym(dlmopen(LM_ID_NEWLM, path, RTLD_NOW), kName);
    void* const hook = hook_of(dlsym(dlopen(path, RTLD_NOW), kName));
    return print(hook && hook_of(second) == hook ? nullptr : second);
  }
  if (is("default")) return dlopen(path, RTLD_NOW | RTLD_GLOBAL), print(dlsym(RTLD_DEFAULT, kName));
  if (is("default_version"))
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL), print(dlvsym(RTLD_DEFAULT, kName, kVersion));
  if (is("local")) return print_extension(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  if (is("lazy")) return print_extension(dlopen(path, RTLD_LAZY | RTLD_LOCAL));
  if (is("deepbind")) return print_extension(dlopen(path, RTLD_NOW | RTLD_DEEPBIND));
  if (is("namespace")) return print_extension(dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
  if (is("reopened")) {  // closed and opened again: addresses may have changed
    void* first = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (print_extension(first) != 0 || dlclose(first) != 0) return 1;
    return print_extension(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  }
  return 2;
}
