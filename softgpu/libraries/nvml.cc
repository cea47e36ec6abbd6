// lib/softgpu/libnvidia-ml.so.1: what the environment describes, what a device holds by the count that its processes share, and
// which of them by /proc. No arbiter is asked and no thread started, so that a program may fork behind it, as with NVIDIA's.
#include "softgpu/libraries/nvml.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "profiles/gpu_description.h"
#include "softgpu/timing/device_memory.h"
#include "softgpu/timing/place.h"

struct nvmlDevice_st {
  unsigned index;
  tessera::profiles::GpuDescription gpu;
};

namespace {

using tessera::profiles::GpuDescription;
namespace timing = tessera::softgpu::timing;

constexpr char kDriverVersion[] = "580.0.0";  // the series that CUDA 13.0 comes with
constexpr int kCudaVersion = 13000;
constexpr size_t kMostDevices = 16;
constexpr char kMemoryFiles[] = "/memfd:softgpu-memory";  // softgpu/driver/memory.cc
constexpr int kPciBusId = 33, kPciDeviceId = 34, kPciDomainId = 50,
              kIntegrated = 18;  // CU_DEVICE_ATTRIBUTE_...

std::mutex g_mutex;
int g_users = 0;
std::vector<std::unique_ptr<nvmlDevice_st>> g_devices;  // never shrinks: handles stay valid

std::string path_of(const std::string& description) {
  if (const char* local = std::getenv("TESSERA_SOFTGPU_LOCAL"); local && description.empty()) return local;
  const auto found = timing::find_description(description);
  return found.ok() ? found.value() : "";
}

nvmlReturn_t describe_devices() {
  const auto descriptions = timing::device_descriptions(kMostDevices);
  if (!descriptions.ok()) return NVML_ERROR_DRIVER_NOT_LOADED;
  std::vector<std::unique_ptr<nvmlDevice_st>> devices;
  for (const std::string& description : descriptions.value()) {
    auto gpu = tessera::profiles::load_gpu_description(path_of(description));
    if (!gpu.ok()) return NVML_ERROR_DRIVER_NOT_LOADED;
    const unsigned index = unsigned(devices.size());
    timing::number(gpu.value(), index);
    devices.push_back(std::make_unique<nvmlDevice_st>(nvmlDevice_st{index, std::move(gpu).value()}));
  }
  g_devices = std::move(devices);
  return NVML_SUCCESS;
}

nvmlReturn_t start() {
  const std::lock_guard lock(g_mutex);
  if (g_devices.empty())
    if (const nvmlReturn_t problem = describe_devices(); problem != NVML_SUCCESS) return problem;
  g_users++;
  return NVML_SUCCESS;
}

// Runs `answer` with the device list, in between init and shutdown.
template <class F>
nvmlReturn_t started(F&& answer) {
  const std::lock_guard lock(g_mutex);
  return g_users > 0 ? answer() : NVML_ERROR_UNINITIALIZED;
}

template <class F>
nvmlReturn_t of(nvmlDevice_t device, F&& answer) {
  return started([&] {
    for (const auto& known : g_devices)
      if (known.get() == device) return answer(*known);
    return NVML_ERROR_INVALID_ARGUMENT;
  });
}

template <class T>
nvmlReturn_t give(T* out, const T& value) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  *out = value;
  return NVML_SUCCESS;
}

nvmlReturn_t give_text(char* out, unsigned length, const std::string& text) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (length <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

int attribute(const GpuDescription& gpu, int number) {
  int value = 0;
  tessera::profiles::gpu_attribute(gpu, number, &value);
  return value;
}

nvmlPciInfo_t pci_of(const GpuDescription& gpu) {
  nvmlPciInfo_t pci{};
  pci.domain = unsigned(attribute(gpu, kPciDomainId));
  pci.bus = unsigned(attribute(gpu, kPciBusId));
  pci.device = unsigned(attribute(gpu, kPciDeviceId));
  snprintf(pci.busId, sizeof pci.busId, "%08X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
  snprintf(pci.busIdLegacy, sizeof pci.busIdLegacy, "%04X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
  return pci;
}

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open = opendir(folder.c_str());
  if (!open) return names;
  while (const dirent* entry = readdir(open)) names.push_back(entry->d_name);
  closedir(open);
  return names;
}

// Bytes of device memory that a process of this user has touched; files are counted for whom they are found first.
unsigned long long held_by(const std::string& pid, std::set<ino_t>& seen) {
  unsigned long long bytes = 0;
  const std::string folder = "/proc/" + pid + "/fd/";
  for (const std::string& fd : entries_of(folder)) {
    char target[64] = {};
    if (readlink((folder + fd).c_str(), target, sizeof target - 1) < 0) continue;
    struct stat file {};
    if (strncmp(target, kMemoryFiles, sizeof kMemoryFiles - 1) != 0 ||
        stat((folder + fd).c_str(), &file) != 0)
      continue;
    if (seen.insert(file.st_ino).second) bytes += 512ull * (unsigned long long)file.st_blocks;
  }
  return bytes;
}

std::map<unsigned, unsigned long long> held_by_process() {
  std::map<unsigned, unsigned long long> held;
  std::set<ino_t> seen;
  for (const std::string& name : entries_of("/proc"))
    if (timing::is_number(name))
      if (const unsigned long long bytes = held_by(name, seen)) held[unsigned(atoi(name.c_str()))] = bytes;
  return held;
}

nvmlReturn_t memory_of(const nvmlDevice_st& device, nvmlMemory_t& memory) {
  if (attribute(device.gpu, kIntegrated) != 0) return NVML_ERROR_NOT_SUPPORTED;  // it has none of its own
  memory.total = device.gpu.memory.bytes;
  memory.used = timing::counted_in(timing::memory_count_of(device.index));
  memory.free = memory.total - std::min(memory.total, memory.used);
  return NVML_SUCCESS;
}

template <class F>
nvmlReturn_t find(nvmlDevice_t* out, F&& is_it) {
  return started([&] {
    for (const auto& device : g_devices)
      if (is_it(*device)) return give(out, nvmlDevice_t(device.get()));
    return NVML_ERROR_NOT_FOUND;
  });
}

}  // namespace

nvmlReturn_t nvmlInit() {
  return start();
}
nvmlReturn_t nvmlInit_v2() {
  return start();
}
nvmlReturn_t nvmlInitWithFlags(unsigned) {
  return start();
}
nvmlReturn_t nvmlShutdown() {
  return started([] { return g_users--, NVML_SUCCESS; });
}

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return started([&] { return give_text(version, length, kDriverVersion); });
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return started([&] { return give_text(version, length, std::string("13.") + kDriverVersion); });
}
// Before nvmlInit too, as documented.
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  return give(version, kCudaVersion);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return give(version, kCudaVersion);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  return started([&] { return give(count, unsigned(g_devices.size())); });
}
nvmlReturn_t nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  const nvmlReturn_t result = find(device, [&](const nvmlDevice_st& d) { return d.index == index; });
  return result == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : result;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  return find(device, [&](const nvmlDevice_st& d) { return timing::uuid_text(d.gpu.uuid) == uuid; });
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device) {
  if (!bus_id) return NVML_ERROR_INVALID_ARGUMENT;
  return find(device, [&](const nvmlDevice_st& d) {
    const nvmlPciInfo_t pci = pci_of(d.gpu);
    return strcasecmp(pci.busId, bus_id) == 0 || strcasecmp(pci.busIdLegacy, bus_id) == 0;
  });
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* bus_id, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  return of(device, [&](const nvmlDevice_st& d) { return give_text(name, length, d.gpu.name); });
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  return of(device,
            [&](const nvmlDevice_st& d) { return give_text(uuid, length, timing::uuid_text(d.gpu.uuid)); });
}
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  return of(device, [&](const nvmlDevice_st& d) { return give(index, d.index); });
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  return nvmlDeviceGetIndex(device, minor);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return of(device, [&](const nvmlDevice_st& d) { return give(pci, pci_of(d.gpu)); });
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return of(device, [&](const nvmlDevice_st& d) {
    const nvmlReturn_t result = give(major, int(d.gpu.cc_major));
    return result == NVML_SUCCESS ? give(minor, int(d.gpu.cc_minor)) : result;
  });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  return of(device, [&](const nvmlDevice_st& d) { return memory_of(d, *memory); });
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (!memory || memory->version != (sizeof *memory | 2u << 24)) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlMemory_t plain{};
  const nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
  if (result == NVML_SUCCESS) *memory = {memory->version, plain.total, 0, plain.free, plain.used};
  return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_t* infos) {
  return of(device, [&](const nvmlDevice_st&) {
    if (!count || (*count != 0 && !infos)) return NVML_ERROR_INVALID_ARGUMENT;
    if (g_devices.size() != 1) return NVML_ERROR_NOT_SUPPORTED;
    const auto held = held_by_process();
    const bool fits = held.size() <= *count;
    unsigned n = 0;
    if (fits)
      for (const auto& [pid, bytes] : held) infos[n++] = {pid, bytes, ~0u, ~0u};
    *count = unsigned(held.size());
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
  });
}

namespace {
nvmlReturn_t not_supported(nvmlDevice_t device) {
  return of(device, [](const nvmlDevice_st&) { return NVML_ERROR_NOT_SUPPORTED; });
}
}  // namespace
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t*) {
  return not_supported(device);
}
nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned*) {
  return not_supported(device);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned*, unsigned*) {
  return not_supported(device);
}
