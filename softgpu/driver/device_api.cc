// cuInit, versions, and what a program can ask about the device.
#include <cstdio>
#include <cstring>
#include <string>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

constexpr CUdevice kDevice = 0;

CUresult check_device(CUdevice device) {
  return device == kDevice ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

int attribute(int number) {
  int value = 0;
  (void)tessera::profiles::gpu_attribute(driver().gpu, number, &value);
  return value;
}

}  // namespace

CUresult cuInit(unsigned int Flags) {
  return initialise(Flags);
}

CUresult cuDriverGetVersion(int* driverVersion) {
  if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  TS_ENTER(cuDeviceGetCount);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  TS_ENTER(cuDeviceGet);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(ordinal)) return bad;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  TS_ENTER(cuDeviceGetName);
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  std::snprintf(name, size_t(len), "%s", driver().gpu.name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  TS_ENTER(cuDeviceGetUuid);
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  std::memcpy(uuid->bytes, driver().gpu.uuid.data(), 16);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  return cuDeviceGetUuid(uuid, dev);
}

CUresult cuDeviceGetLuid(char* luid, unsigned int* deviceNodeMask, CUdevice dev) {
  TS_ENTER(cuDeviceGetLuid);
  (void)luid, (void)deviceNodeMask;
  if (CUresult bad = check_device(dev)) return bad;
  return CUDA_ERROR_NOT_SUPPORTED;  // WDDM only
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  TS_ENTER(cuDeviceTotalMem_v2);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  *bytes = driver().gpu.memory.bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  TS_ENTER(cuDeviceGetAttribute);
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  if (attrib == CU_DEVICE_ATTRIBUTE_MPS_ENABLED) {
    *pi = driver().mps;
    return CUDA_SUCCESS;
  }
  return tessera::profiles::gpu_attribute(driver().gpu, attrib, pi) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  TS_ENTER(cuDeviceComputeCapability);
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  *major = int(driver().gpu.cc_major);
  *minor = int(driver().gpu.cc_minor);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  TS_ENTER(cuDeviceGetProperties);
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  *prop = {};
  prop->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  for (int i = 0; i < 3; ++i) {
    prop->maxThreadsDim[i] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    prop->maxGridSize[i] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
  }
  prop->sharedMemPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  prop->totalConstantMemory = attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  prop->SIMDWidth = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  prop->memPitch = attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  prop->regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  prop->clockRate = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  prop->textureAlign = attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  TS_ENTER(cuDeviceGetPCIBusId);
  if (!pciBusId || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  std::snprintf(pciBusId, size_t(len), "%04x:%02x:%02x.0", attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
  TS_ENTER(cuDeviceGetByPCIBusId);
  if (!dev || !pciBusId) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (std::sscanf(pciBusId, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  if (int(domain) != attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) ||
      int(bus) != attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) ||
      int(slot) != attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID))
    return CUDA_ERROR_INVALID_DEVICE;
  *dev = kDevice;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  TS_ENTER(cuDeviceCanAccessPeer);
  if (!canAccessPeer) return CUDA_ERROR_INVALID_VALUE;
  if (check_device(dev) || check_device(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
  *canAccessPeer = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice) {
  TS_ENTER(cuDeviceGetP2PAttribute);
  (void)attrib;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (check_device(srcDevice) || check_device(dstDevice) || srcDevice == dstDevice)
    return CUDA_ERROR_INVALID_DEVICE;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
  TS_ENTER(cuDeviceGetExecAffinitySupport);
  (void)type;
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  *pi = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format format,
                                            unsigned numChannels, CUdevice dev) {
  TS_ENTER(cuDeviceGetTexture1DLinearMaxWidth);
  (void)format, (void)numChannels;
  if (!maxWidthInElements) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_device(dev)) return bad;
  *maxWidthInElements = size_t(attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH));
  return CUDA_SUCCESS;
}
