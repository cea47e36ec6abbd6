#include "interpose/lifecycle/device_room.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <type_traits>

#include "base/exports.h"
#include "base/loader.h"
#include "interpose/memory/memory.h"

namespace tessera::lifecycle {
namespace {

// As documented in the NVML API Reference Guide.
constexpr int kSuccess = 0;
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct Nvml {
  int (*device)(const char* uuid, void** out);
  int (*memory)(void* device, MemoryInfo* out);
  int (*count)(unsigned* out);
  int (*by_index)(unsigned index, void** out);
  int (*uuid)(void* device, char* out, unsigned bytes);
  int (*name)(void* device, char* out, unsigned bytes);
  int (*mig)(void* device, unsigned* now, unsigned* pending);
};

// Its functions by its own table: under a limit the audit library hands out others (interpose/hooks/nvml.cc). It stays loaded
// and initialised. Null functions: it is not there.
Nvml load() {
  const base::Loader loader = base::loader();
  void* library = loader.dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  link_map* map = nullptr;
  if (!library || loader.dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  const base::Exports exports(map);
  const auto init = reinterpret_cast<int (*)()>(exports.find("nvmlInit_v2", nullptr));
  Nvml nvml = {};
  const auto find = [&exports](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(exports.find(symbol, nullptr));
  };
  find(nvml.device, "nvmlDeviceGetHandleByUUID");
  find(nvml.memory, "nvmlDeviceGetMemoryInfo");
  find(nvml.count, "nvmlDeviceGetCount_v2");
  find(nvml.by_index, "nvmlDeviceGetHandleByIndex_v2");
  find(nvml.uuid, "nvmlDeviceGetUUID");
  find(nvml.name, "nvmlDeviceGetName");
  find(nvml.mig, "nvmlDeviceGetMigMode");
  return init && nvml.device && nvml.memory && init() == kSuccess ? nvml : Nvml{};
}

const Nvml& loaded() {
  static constinit Nvml nvml = {};
  static constinit bool looked_for = false;
  if (!looked_for) nvml = load(), looked_for = true;
  return nvml;
}

// "GPU-" and hexadecimal digits, with dashes between them.
bool parse(const char* text, CUuuid* out) {
  if (strncmp(text, "GPU-", 4) != 0) return false;
  text += 4;
  for (char& byte : out->bytes) {
    if (*text == '-') ++text;
    unsigned value = 0;
    if (sscanf(text, "%2x", &value) != 1) return false;
    byte = char(value);
    text += 2;
  }
  return true;
}

}  // namespace

size_t gpus_of_machine(MachineGpu (&out)[kMostGpus]) {
  const Nvml& nvml = loaded();
  unsigned n = 0;
  if (!nvml.count || !nvml.by_index || !nvml.uuid || !nvml.name || nvml.count(&n) != kSuccess) return 0;
  size_t known = 0;
  for (unsigned i = 0; i < n && known < kMostGpus; ++i) {
    MachineGpu& gpu = out[known];
    void* device = nullptr;
    char uuid[96] = {};
    MemoryInfo info = {};
    unsigned mig = 0, pending = 0;
    gpu = {};
    if (nvml.by_index(i, &device) != kSuccess || nvml.uuid(device, uuid, sizeof uuid) != kSuccess ||
        !parse(uuid, &gpu.uuid) || nvml.name(device, gpu.name, sizeof gpu.name) != kSuccess)
      continue;
    if (nvml.memory(device, &info) == kSuccess)
      gpu.free_bytes = info.free;  // none where it shares the host's memory
    gpu.has_mig = nvml.mig && nvml.mig(device, &mig, &pending) == kSuccess && mig != 0;
    ++known;
  }
  return known;
}

uint64_t lacking_bytes() {
  const Nvml& nvml = loaded();
  uint64_t lacking = 0;
  for (int i = 0; nvml.memory && i < memory::kDevices; ++i) {
    memory::HeldOn held;
    void* device = nullptr;
    MemoryInfo info = {};
    if (memory::held_on(i, &held) && nvml.device(held.gpu, &device) == kSuccess &&
        nvml.memory(device, &info) == kSuccess && info.free < held.bytes)
      lacking = std::max<uint64_t>(lacking, held.bytes - info.free);
  }
  return lacking;
}

}  // namespace tessera::lifecycle
