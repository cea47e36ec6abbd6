/* A driver from before cuGetProcAddress, with two names that nobody else has. */
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)(flags & 0); }
__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) { return *version = 5000, 0; }
__attribute__((visibility("default"))) int cuMemsetD8(void) { return 0; }
__attribute__((visibility("default"))) int cuMemsetD8_v2(void) { return 0; }
__attribute__((visibility("default"))) int cuMemsetD8_v2_ptds(void) { return 0; }
__attribute__((visibility("default"))) int cuFromTheFuture(void) { return 0; }
__attribute__((visibility("default"))) int cuAncient(void) { return 0; }
__attribute__((visibility("default"))) int curious(void) { return 0; }
