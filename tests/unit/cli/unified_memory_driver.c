/* A driver with three GPUs: one with memory of its own, one that shares the host's and has no figure for it (GB10), and one
   whose memory holds pages of the host (GH200). */
#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

EXPORTED int cuDeviceGetCount(int* count) {
  *count = 3;
  return 0;
}

EXPORTED int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

EXPORTED int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = (unsigned char)device;
  return 0;
}

EXPORTED int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = (attribute == 18 /* CU_DEVICE_ATTRIBUTE_INTEGRATED */ && device == 1) ||
           (attribute == 100 /* CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES */ && device != 0);
  return 0;
}

EXPORTED int cuDeviceTotalMem_v2(unsigned long* bytes, int device) {
  if (device == 1) return 801; /* CUDA_ERROR_NOT_SUPPORTED */
  *bytes = 1ul << 30;
  return 0;
}
