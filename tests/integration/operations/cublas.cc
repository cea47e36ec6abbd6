// A libcublas.so.13 whose product is what its caller says: the handle is a function that is called with C.
extern "C" __attribute__((visibility("default"))) int cublasSgemm_v2(void* handle, int, int, int, int, int,
                                                                     const float*, const float*, int,
                                                                     const float*, int, const float*,
                                                                     float* c, int) {
  reinterpret_cast<void (*)(float*)>(handle)(c);
  return 0;
}
