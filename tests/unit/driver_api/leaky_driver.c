/* A driver linked without -Bsymbolic: its call of its own export goes through a relocation that others can capture. */
__attribute__((visibility("default"))) int cuInit(unsigned flags) { return (int)(flags & 0); }
__attribute__((visibility("default"))) int cuCtxGetDevice(int* device) { return *device = 0, 0; }
__attribute__((visibility("default"))) int cuCtxGetFlags(unsigned* flags) {
  int device;
  *flags = 0;
  return cuCtxGetDevice(&device);
}
