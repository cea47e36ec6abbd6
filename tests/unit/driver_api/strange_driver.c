/* A driver whose lookup answers what no sane one would; only the first form of cuGetProcAddress. */
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuLaunchKernel(void) { return 0; }
extern __typeof(cuLaunchKernel) cuMemcpy __attribute__((alias("cuLaunchKernel"), visibility("default")));
static int hidden(void) { return 0; }

EXPORT int cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  (void)version, (void)flags;
  *function = 0;
  if (strcmp(name, "absent") == 0) return 500;
  if (strcmp(name, "null") == 0) return 0;
  const int shared = strcmp(name, "cuFuncGetModule") == 0 || strcmp(name, "cuMemcpy") == 0 ||
                     strcmp(name, "cuLaunchKernel") == 0;
  *function = shared ? (void*)cuLaunchKernel : (void*)hidden;
  return 0;
}
