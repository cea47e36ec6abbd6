#include "cli/look/device_memory.h"

#include <dlfcn.h>

#include <vector>

namespace tessera::cli {
namespace {

// As documented in the NVML API Reference Guide; the toolkit has no header of it.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;  // all bits: not known
  unsigned gpu_instance, compute_instance;
};
constexpr int kSuccess = 0, kInsufficientSize = 7;
constexpr unsigned long long kNotKnown = ~0ull;
constexpr unsigned kMostProcesses = 4096;

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*at)(unsigned, void**) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr;
  int (*processes)(void*, unsigned*, ProcessInfo*) = nullptr;
};

template <class F>
bool find(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

void ask_device(const Nvml& nvml, void* device, ProcessBytes* out) {
  char uuid[96] = {};
  if (nvml.uuid(device, uuid, sizeof uuid) != kSuccess) return;
  std::vector<ProcessInfo> infos(64);
  unsigned n = unsigned(infos.size());
  int result = nvml.processes(device, &n, infos.data());
  if (result == kInsufficientSize && n <= kMostProcesses) {
    infos.resize(n + 64);  // some may come meanwhile
    n = unsigned(infos.size());
    result = nvml.processes(device, &n, infos.data());
  }
  if (result != kSuccess || n > infos.size()) return;
  for (unsigned i = 0; i < n; ++i)
    if (auto& bytes = (*out)[{uuid, infos[i].pid}]; infos[i].used_bytes != kNotKnown)
      bytes = bytes.value_or(0) + infos[i].used_bytes;
}

}  // namespace

ProcessBytes process_memory() {
  ProcessBytes out;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return out;
  Nvml nvml;
  if (find(library, "nvmlInit_v2", &nvml.init) && find(library, "nvmlShutdown", &nvml.shutdown) &&
      find(library, "nvmlDeviceGetCount_v2", &nvml.count) &&
      find(library, "nvmlDeviceGetHandleByIndex_v2", &nvml.at) &&
      find(library, "nvmlDeviceGetUUID", &nvml.uuid) &&
      find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes) && nvml.init() == kSuccess) {
    unsigned count = 0;
    if (nvml.count(&count) == kSuccess)
      for (unsigned i = 0; i < count; ++i)
        if (void* device = nullptr; nvml.at(i, &device) == kSuccess) ask_device(nvml, device, &out);
    nvml.shutdown();
  }
  dlclose(library);
  return out;
}

void add_residuals(const ProcessBytes& bytes, nlohmann::json* state) {
  const auto clients = state->find("clients");
  if (clients == state->end() || !clients->is_array()) return;
  for (auto& client : *clients) {
    if (!client.is_object() || !client.contains("memory") || !client["memory"].is_array()) continue;
    const uint64_t pid = client.value("pid", uint64_t(0));
    for (auto& row : client["memory"]) {
      if (!row.is_object()) continue;
      const std::string gpu = row.value("gpu", "");
      const auto known = bytes.find({gpu, pid});
      if (known == bytes.end()) continue;
      if (!known->second) {
        row["residual"] = nullptr;
        continue;
      }
      const uint64_t used = row.value("used", uint64_t(0));
      const uint64_t residual = *known->second > used ? *known->second - used : 0;
      row["residual"] = residual;
      if (gpu == client.value("gpu", "")) client["memory_residual_bytes"] = residual;
    }
  }
}

}  // namespace tessera::cli
