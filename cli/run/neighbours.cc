#include "cli/run/neighbours.h"

#include <algorithm>

#include "base/split.h"
#include "base/user_file.h"
#include "cli/doctor/elf.h"
#include "cli/run/client_environment.h"
#include "cli/run/layout.h"
#include "driver_api/find_driver.h"
#include "driver_api/real_table.h"

namespace tessera::cli {
namespace {

constexpr char kVariable[] = "LD_PRELOAD";
constexpr char kSeparators[] = ": \t\n";
constexpr uint64_t kMostListBytes = 1u << 16;

// Public interposers, by the beginning of a file's name.
constexpr struct {
  std::string_view file, name;
} kKnown[] = {{"libvgpu.so", "HAMi-core"},
              {"libnvshare", "nvshare"},
              {"libshimcuda", "XSched"},
              {"libxsched", "XSched"},
              {"libcuda_vmm_interpose", "Dynamo's cuda-vmm-interpose"},
              {"torch_memory_saver", "torch_memory_saver"},
              {"libcuinterpose", "cuinterpose"},
              {"libmcshim", "mcshim"}};

// The variables by which others load a tool into every program.
constexpr struct {
  const char *variable, *finding, *meaning;
} kTools[] = {
    {"CUDA_INJECTION64_PATH", " is loaded by the driver",
     "it sees what Tessera sends to the driver: a launch that is cut is several there"},
    {"NVTX_INJECTION64_PATH", " is loaded by NVTX", "it sees the program's ranges, as without Tessera"},
    {"TESSERA_NVTX_TOOL", " is loaded by Tessera's tool of NVTX", "both see the program's ranges"},
};

// The first row that holds says what a neighbour sees. As the matrix of docs/neighbours.md has it.
constexpr struct {
  bool (*holds)(const Overrides&, Order);
  const char* meaning;
} kMeanings[] = {
    {[](const Overrides& o, Order order) { return o.driver != 0 && order == Order::kBefore; },
     "it sees the program's calls first, and Tessera sees what it hands on"},
    {[](const Overrides& o, Order) { return o.dlsym; },
     "it may answer what programs look up by dlsym, and Tessera sees what it hands on"},
    {[](const Overrides& o, Order) { return o.dlopen; },
     "it decides what programs open: what it opens by the driver's path goes past Tessera"},
    {[](const Overrides& o, Order) { return o.allocator; },
     "it sees cudaMalloc, and Tessera counts what it takes from the driver"},
    {[](const Overrides&, Order) { return true; },
     "it sees no call that is bound to Tessera, which goes to the driver and not to the next library"},
};

std::string file_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_own(std::string_view file) {
  return file.starts_with("libtessera");
}

std::string finding_of(const std::string& path, const std::string& from) {
  const std::string file = file_of(path);
  for (const auto& known : kKnown)
    if (file.starts_with(known.file)) return path + " (" + std::string(known.name) + ", " + from + ")";
  return path + " (" + from + ")";
}

void add(const std::string& path, const std::string& from, Order order, std::vector<Neighbour>& out) {
  const auto exported = exported_functions(path);
  const Overrides overrides = exported ? overrides_of(*exported) : Overrides{};
  if (!overrides.any() || std::ranges::find(out, path, &Neighbour::path) != out.end()) return;
  out.push_back(
      {path, finding_of(path, from) + " overrides " + to_text(overrides), meaning_of(overrides, order)});
}

// "" where the loader would find nothing either, or where its own words ($LIB) stand in the entry.
std::string file_of_entry(const std::string& entry) {
  if (entry.find('/') != std::string::npos) return entry;
  const auto found = driver_api::library_candidates(entry, driver_api::search_places());
  return found.empty() ? "" : found[0];
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    if (end != at) out.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

// The loader skips what stands behind '#' in its list.
std::string without_comments(std::string_view list) {
  std::string out;
  for (const std::string_view line : base::split(list, '\n')) {
    out += line.substr(0, line.find('#'));
    out += '\n';
  }
  return out;
}

}  // namespace

Overrides overrides_of(std::span<const std::string> exported) {
  const auto has = [&](const char* name) { return std::ranges::find(exported, name) != exported.end(); };
  Overrides out;
  for (const std::string& name : exported)
    out.driver += driver_api::find_entry(name.c_str()) != driver_api::Entry::kCount;
  const bool is_libc = has("dlerror"), is_runtime = has("__cudaRegisterFatBinary");
  out.dlsym = !is_libc && has("dlsym");
  out.dlopen = !is_libc && has("dlopen");
  out.allocator = !is_runtime && has("cudaMalloc");
  return out;
}

std::string to_text(const Overrides& overrides) {
  std::vector<std::string> parts;
  if (overrides.dlsym) parts.push_back("dlsym");
  if (overrides.dlopen) parts.push_back("dlopen");
  if (overrides.allocator) parts.push_back("cudaMalloc");
  if (overrides.driver != 0) parts.push_back(std::to_string(overrides.driver) + " of the driver's functions");
  std::string out;
  for (size_t i = 0; i < parts.size(); i++)
    out += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return out;
}

std::string meaning_of(const Overrides& overrides, Order order) {
  return std::ranges::find_if(kMeanings, [&](const auto& row) { return row.holds(overrides, order); })
      ->meaning;
}

std::vector<Preload> preloads(std::string_view variable, std::string_view list) {
  std::vector<Preload> out;
  bool behind = false;
  const auto add_all = [&](std::string_view text, const char* from) {
    for (std::string& entry : words(text)) {
      if (is_own(file_of(entry)))
        behind = true;
      else
        out.push_back({std::move(entry), from, behind ? Order::kBehind : Order::kBefore});
    }
  };
  add_all(variable, kVariable);
  const std::string own_list = without_comments(list);
  // `tessera run` will append Tessera to the variable if neither has it.
  behind = behind || own_list.find("/libtessera.so") == std::string::npos;
  add_all(own_list, "/etc/ld.so.preload");
  return out;
}

std::vector<Neighbour> neighbours_of_environment(const std::string& list_file) {
  const auto list = base::read_user_file(list_file, kMostListBytes);
  std::vector<Neighbour> out;
  for (const Preload& preload : preloads(own_environment(kVariable), list ? *list : ""))
    if (const std::string path = file_of_entry(preload.entry); !path.empty())
      add(path, preload.from, preload.order, out);
  for (const auto& tool : kTools) {
    const std::string path = own_environment(tool.variable);
    if (!path.empty() && !is_own(file_of(path)) && file_exists(path))
      out.push_back({path, finding_of(path, tool.variable) + tool.finding, tool.meaning});
  }
  return out;
}

void add_needed_neighbours(std::span<const std::string> libraries, std::vector<Neighbour>* out) {
  for (const std::string& path : libraries) {
    // Whoever asks for the driver by its name gets Tessera.
    if (const std::string file = file_of(path); !is_own(file) && !file.starts_with("libcuda.so"))
      add(path, "which the program needs", Order::kBehind, *out);
  }
}

std::vector<std::string> needed_libraries(const std::string& program) {
  constexpr std::string_view kOrigin = "$ORIGIN";
  std::vector<std::string> out;
  const auto elf = read_elf(program, DriverNames::kSkip);
  if (!elf) return out;
  std::string path = elf->run_path;
  const std::string folder = program.substr(0, program.rfind('/'));
  for (size_t at = 0; (at = path.find(kOrigin, at)) != std::string::npos; at += folder.size())
    path.replace(at, kOrigin.size(), folder);
  const std::string usual = own_environment("LD_LIBRARY_PATH");
  if (!usual.empty()) path += (path.empty() ? "" : ":") + usual;
  driver_api::SearchPlaces places;
  places.library_path = path.c_str();
  for (const std::string& needed : elf->needed)
    if (const auto found = driver_api::library_candidates(needed, places); !found.empty())
      out.push_back(found[0]);
  return out;
}

}  // namespace tessera::cli
