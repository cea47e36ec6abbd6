/* A driver whose constructor calls an entry point, found as a careless library finds it: in the global scope. */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) int answer_in_constructor = -1;
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)(flags & 0); }

__attribute__((constructor)) static void call_back(void) {
  int (*init)(unsigned);
  *(void**)&init = dlsym(dlopen(NULL, RTLD_NOW), "cuInit");
  if (init != NULL && init != cuInit) answer_in_constructor = init(0);
}
