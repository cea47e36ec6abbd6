// cuInit, versions, and what a program can ask about the device.
#include <cstdio>
#include <cstring>
#include <string>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

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
  *count = int(driver().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  TS_ENTER(cuDeviceGet);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!find_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  TS_ENTER(cuDeviceGetName);
  if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, size_t(len), "%s", device->gpu.name.c_str());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  TS_ENTER(cuDeviceGetUuid);
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, device->gpu.uuid.data(), 16);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  return cuDeviceGetUuid(uuid, dev);
}

CUresult cuDeviceGetLuid(char* luid, unsigned int* deviceNodeMask, CUdevice dev) {
  TS_ENTER(cuDeviceGetLuid);
  (void)luid, (void)deviceNodeMask;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_ERROR_NOT_SUPPORTED;  // WDDM only
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  TS_ENTER(cuDeviceTotalMem_v2);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = device->gpu.memory.bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  TS_ENTER(cuDeviceGetAttribute);
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  if (attrib == CU_DEVICE_ATTRIBUTE_MPS_ENABLED) {
    *pi = device->mps;
    return CUDA_SUCCESS;
  }
  return tessera::profiles::gpu_attribute(device->gpu, attrib, pi) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  TS_ENTER(cuDeviceComputeCapability);
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *major = int(device->gpu.cc_major);
  *minor = int(device->gpu.cc_minor);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  TS_ENTER(cuDeviceGetProperties);
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *prop = {};
  prop->maxThreadsPerBlock = device->attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  for (int i = 0; i < 3; ++i) {
    prop->maxThreadsDim[i] = device->attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    prop->maxGridSize[i] = device->attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
  }
  prop->sharedMemPerBlock = device->attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  prop->totalConstantMemory = device->attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  prop->SIMDWidth = device->attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  prop->memPitch = device->attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  prop->regsPerBlock = device->attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  prop->clockRate = device->attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  prop->textureAlign = device->attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  TS_ENTER(cuDeviceGetPCIBusId);
  if (!pciBusId || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(pciBusId, size_t(len), "%04x:%02x:%02x.0",
                device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                device->attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
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
  for (const auto& device : driver().devices) {
    if (int(domain) != device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) ||
        int(bus) != device->attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) ||
        int(slot) != device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID))
      continue;
    *dev = device->ordinal;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  TS_ENTER(cuDeviceCanAccessPeer);
  if (!canAccessPeer) return CUDA_ERROR_INVALID_VALUE;
  if (!find_device(dev) || !find_device(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
  *canAccessPeer = can_access_peer(dev, peerDev);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice) {
  TS_ENTER(cuDeviceGetP2PAttribute);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (!can_access_peer(srcDevice, dstDevice)) return CUDA_ERROR_INVALID_DEVICE;
  switch (int(attrib)) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
  TS_ENTER(cuDeviceGetExecAffinitySupport);
  (void)type;
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *pi = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format format,
                                            unsigned numChannels, CUdevice dev) {
  TS_ENTER(cuDeviceGetTexture1DLinearMaxWidth);
  (void)format, (void)numChannels;
  if (!maxWidthInElements) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *maxWidthInElements = size_t(device->attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH));
  return CUDA_SUCCESS;
}

// Lists the atomics that are done where the memory is: none in host memory over the bus, all scalar ones among peers.
static CUresult atomic_capabilities(unsigned int* capabilities, const CUatomicOperation* operations,
                                    unsigned int count, bool native) {
  if (!capabilities || !operations || !count) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (unsigned(operations[i]) >= CU_ATOMIC_OPERATION_MAX) return CUDA_ERROR_INVALID_VALUE;
    const bool floating = operations[i] >= CU_ATOMIC_OPERATION_FLOAT_ADD;
    const unsigned sizes = CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
    const unsigned signs =
        floating ? CU_ATOMIC_CAPABILITY_SIGNED : CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED;
    capabilities[i] = native ? sizes | signs | CU_ATOMIC_CAPABILITY_REDUCTION : 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities, const CUatomicOperation* operations,
                                           unsigned int count, CUdevice dev) {
  TS_ENTER(cuDeviceGetHostAtomicCapabilities);
  const Device* device = find_device(dev);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const bool native = device->attribute(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED) != 0;
  return atomic_capabilities(capabilities, operations, count, native);
}
CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities, const CUatomicOperation* operations,
                                          unsigned int count, CUdevice srcDevice, CUdevice dstDevice) {
  TS_ENTER(cuDeviceGetP2PAtomicCapabilities);
  if (!can_access_peer(srcDevice, dstDevice)) return CUDA_ERROR_INVALID_DEVICE;
  return atomic_capabilities(capabilities, operations, count, true);
}
