/* Has the names that an interposer has, and does nothing: a preloaded one must not disturb the test's shell. */
#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
EXPORTED int cuLaunchKernel(void) { return 0; }
EXPORTED int cudaMalloc(void** address, unsigned long bytes) {
  *address = 0;
  return bytes == 0 ? 0 : 2;
}
/* As sanitizers have it. */
EXPORTED __attribute__((weak)) void* dlopen(const char* file, int flags) {
  (void)file;
  (void)flags;
  return 0;
}
