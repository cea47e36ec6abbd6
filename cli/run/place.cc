#include "cli/run/place.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/printable.h"
#include "cli/run/child_output.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

using base::Code;
using ipc::abi::PlaceGpu;
// CU_DEVICE_ATTRIBUTE_INTEGRATED, _PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
constexpr int kIntegrated = 18, kHostPageTables = 100;

template <class Function>
bool find(void* driver, const char* name, Function** out) {
  *out = reinterpret_cast<Function*>(dlsym(driver, name));
  return *out != nullptr;
}

// In the child: a driver may do anything when it is opened, and must not be open when the program starts.
std::vector<VisibleGpu> ask_driver(const char* path) {
  int (*init)(unsigned), (*count)(int*), (*get)(int*, int), (*uuid)(void*, int), (*memory)(size_t*, int),
      (*attribute)(int*, int, int);
  std::vector<VisibleGpu> gpus;
  void* driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr || !find(driver, "cuInit", &init) || !find(driver, "cuDeviceGetCount", &count) ||
      !find(driver, "cuDeviceGet", &get) || !find(driver, "cuDeviceGetUuid_v2", &uuid) ||
      !find(driver, "cuDeviceTotalMem_v2", &memory) || !find(driver, "cuDeviceGetAttribute", &attribute))
    return gpus;
  int n = 0;
  if (init(0) != 0 || count(&n) != 0) return gpus;
  for (int i = 0; i < n; ++i) {
    int device = 0, integrated = 0, page_tables = 0;
    size_t bytes = 0;
    VisibleGpu gpu{};
    if (get(&device, i) != 0 || uuid(gpu.uuid, device) != 0) return {};
    if (memory(&bytes, device) == 0) gpu.memory_bytes = bytes;  // else not known
    gpu.shares_host_memory = attribute(&integrated, kIntegrated, device) == 0 && integrated != 0;
    gpu.holds_host_pages =
        !gpu.shares_host_memory && attribute(&page_tables, kHostPageTables, device) == 0 && page_tables != 0;
    gpus.push_back(gpu);
  }
  return gpus;
}

}  // namespace

base::Result<std::vector<VisibleGpu>> visible_gpus(const std::string& driver) {
  const ChildOutput child = output_of_child([&] {
    const std::vector<VisibleGpu> gpus = ask_driver(driver.c_str());
    const size_t bytes = gpus.size() * sizeof(VisibleGpu);
    _exit(write(STDOUT_FILENO, gpus.data(), bytes) == ssize_t(bytes) ? 0 : 1);
  });
  std::vector<VisibleGpu> gpus(child.text.size() / sizeof(VisibleGpu));
  if (!child.ended_well() || gpus.empty())
    return base::error(Code::kNotFound, driver + " shows no GPU (see `tessera doctor`)");
  std::memcpy(gpus.data(), child.text.data(), gpus.size() * sizeof(VisibleGpu));
  return gpus;
}

std::string device_of(const std::string& list, size_t index) {
  std::istringstream entries(list);
  std::string entry;
  for (size_t i = 0; i <= index; ++i)
    if (!std::getline(entries, entry, ',')) return std::to_string(index);
  return entry;
}

base::Result<std::string> place(const RunOptions& options, const std::string& driver,
                                const std::string& socket_path, std::string* note) {
  const auto gpus = visible_gpus(driver);
  if (!gpus) return gpus.error();
  if (gpus->size() < 2) return std::string();
  ipc::abi::PlaceQuery question{};
  question.priority = *parse_priority(options.priority);
  question.memory_bytes = std::max(options.memory_bytes, options.memory_reserve_bytes);
  const auto text =
      ipc::query_place(socket_path, question, std::vector<PlaceGpu>(gpus->begin(), gpus->end()));
  return text ? placement(options, *gpus, *text, note) : text.error();
}

base::Result<std::string> placement(const RunOptions& options, const std::vector<VisibleGpu>& gpus,
                                    const std::string& text, std::string* note) {
  const auto answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto rows = answer.is_object() ? answer.value("gpus", nlohmann::json::array()) : nlohmann::json();
  const size_t chosen = answer.is_object() ? answer.value("chosen", size_t(0)) : 0;
  if (!rows.is_array() || chosen >= rows.size() || rows.size() != gpus.size())
    return base::error(Code::kInvalid, "tesserad's answer names no GPU");
  const auto& row = rows[chosen];
  const std::string uuid = base::printable(row.value("uuid", ""));
  const bool unknown = options.memory_bytes != 0 && gpus[chosen].memory_bytes == 0;
  *note = fmt::format("placed on {} ({} of {}), beside {} programs{}", uuid, chosen + 1, gpus.size(),
                      row.value("programs", 0u),
                      unknown                          ? "; how much memory it has is unknown"
                      : row.value("memory_fits", true) ? ""
                                                       : "; its memory may not suffice on any GPU");
  return "CUDA_VISIBLE_DEVICES=" + device_of(own_environment("CUDA_VISIBLE_DEVICES"), chosen);
}

base::Status reserve(const RunOptions& options, const std::string& driver, const std::string& socket_path) {
  const auto gpus = visible_gpus(driver);
  if (!gpus) return gpus.error();
  ipc::abi::ReserveQuery question{};
  question.memory_bytes = options.memory_reserve_bytes;
  question.memory_group = options.memory_group;
  const auto done =
      ipc::query_reserve(socket_path, question, std::vector<PlaceGpu>(gpus->begin(), gpus->end()));
  return done.ok() ? base::ok() : base::Status(done.error());
}

}  // namespace tessera::cli
