#include "interpose/lifecycle/device_room.h"

#include <link.h>

#include <algorithm>

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
  const Nvml nvml = {
      reinterpret_cast<decltype(Nvml::device)>(exports.find("nvmlDeviceGetHandleByUUID", nullptr)),
      reinterpret_cast<decltype(Nvml::memory)>(exports.find("nvmlDeviceGetMemoryInfo", nullptr))};
  return init && nvml.device && nvml.memory && init() == kSuccess ? nvml : Nvml{};
}

}  // namespace

uint64_t lacking_bytes() {
  static constinit Nvml nvml = {};
  static constinit bool looked_for = false;
  if (!looked_for) nvml = load(), looked_for = true;
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
