/* A driver from before cuGetProcAddress. */
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)(flags & 0); }
__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) { return *version = 5000, 0; }
