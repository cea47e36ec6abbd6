// The traps of MPS v3's configuration file, and of limits that cgroups hold for it: MPS accepts all of this and says nothing. The file's form is
// that of NVIDIA's guide, chapter "MPS v3 Configuration File", release 620.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/toml.h"
#include "base/units.h"
#include "cli/doctor/doctor.h"
#include "cli/run/first_line.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kWholeGpu = 100;  // percent

struct Limits {
  double percent = 0, bytes = 0;  // 0: no limit
};

// "10G" and "512M", as CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has them; a number may be one of TOML, too.
double number_of(const toml::table& table, const char* key) {
  std::string text;
  if (const auto* value = table.get(key)) {
    text = value->value<std::string>().value_or("");
    if (const auto number = value->value<double>(); number && !value->is_string()) return *number;
  }
  char* unit = nullptr;
  const double number = strtod(text.c_str(), &unit);
  return *unit == 'G'   ? number * double(1024 * base::kMiB)
         : *unit == 'M' ? number * double(base::kMiB)
                        : number;
}

Limits limits_of(const toml::table& table) {
  return {number_of(table, "active_thread_percentage"), number_of(table, "pinned_memory_limit")};
}

std::string text_of(const toml::table& table, const char* key) {
  const auto* value = table.get(key);
  return value ? value->value<std::string>().value_or("") : "";
}

std::string shown(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

Finding warning(const std::string& where, const std::string& what, const std::string& consequence,
                const std::string& remedy) {
  return {"mps-file", State::kWarning, where + " " + what, consequence, remedy};
}

void check_devices(const std::string& server, const std::string& allowed, const MpsNode& node,
                   std::vector<Finding>& out) {
  std::istringstream list(allowed);
  for (std::string device; std::getline(list, device, ',');)
    if (!node.uuids.empty() && device.starts_with("GPU-") &&
        std::ranges::find(node.uuids, device) == node.uuids.end())
      out.push_back(warning("server " + server, "has a GPU in allowed_devices that is not there: " + device,
                            "the server ends, and its clients run without MPS and its limits",
                            "see `nvidia-smi -L`"));
}

void check_namespace(const std::string& where, const toml::table& table, const Limits& own,
                     const Limits& of_server, const MpsNode& node, std::vector<Finding>& out) {
  if (own.percent == 0 && own.bytes == 0)
    out.push_back(warning(where, "has no limits",
                          "its clients have none: the server's hold for the default one",
                          "give it active_thread_percentage and pinned_memory_limit"));
  if (of_server.bytes != 0 && own.bytes > of_server.bytes)
    out.push_back(warning(where, "has a larger pinned_memory_limit than its server",
                          "its clients exceed the server's limit", "lower it"));
  const std::string group = text_of(table, "cgroup");
  if (!group.empty() && !fs::is_directory(node.root + group))
    out.push_back(warning(where, "is for a cgroup that is not there: " + group,
                          "programs meant for it come to another namespace", "make the cgroup first"));
}

void check_server(const std::string& name, const toml::table& table, const MpsNode& node,
                  std::vector<Finding>& out) {
  check_devices(name, text_of(table, "allowed_devices"), node, out);
  const Limits of_server = limits_of(table);
  Limits sum = of_server;  // of the default namespace, which is the server's
  const auto* namespaces = table["namespaces"].as_table();
  if (!namespaces) return;
  for (const auto& [key, value] : *namespaces) {
    const std::string space(key.str());
    const auto* own_table = value.as_table();
    if (!own_table || space == "default") continue;
    const Limits own = limits_of(*own_table);
    sum.percent += own.percent;
    sum.bytes += own.bytes;
    check_namespace("namespace " + name + "/" + space, *own_table, own, of_server, node, out);
  }
  if (sum.percent > kWholeGpu)
    out.push_back(warning("server " + name, "gives " + shown(sum.percent) + "% of the SMs in sum",
                          "active_thread_percentage reserves nothing: namespaces share SMs",
                          "lower them, or use sm_partitions"));
  if (node.least_memory_bytes != 0 && sum.bytes > double(node.least_memory_bytes))
    out.push_back(warning("server " + name,
                          "gives " + shown(sum.bytes / double(1024 * base::kMiB)) + " GiB of " +
                              shown(double(node.least_memory_bytes) / double(1024 * base::kMiB)) +
                              " GiB in sum",
                          "allocations within a limit may find no memory", "lower pinned_memory_limit"));
}

// Lines of dmem's files: "REGION VALUE".
std::map<std::string, std::string> regions(const fs::path& file) {
  std::map<std::string, std::string> out;
  std::ifstream in(file);
  for (std::string region, value; in >> region >> value;) out[region] = value;
  return out;
}

bool has_processes(const fs::path& group) {
  std::ifstream in(group / "cgroup.events");
  for (std::string name, value; in >> name >> value;)
    if (name == "populated") return value != "0";
  return true;
}

// Programs see the limit of their own cgroup as the GPU's memory, but not that of a slice above it.
void check_parents(const fs::path& all, const std::string& own, std::vector<Finding>& out) {
  const auto mine = regions(all / fs::path(own).relative_path() / "dmem.max");
  for (fs::path group = fs::path(own).parent_path(); group.has_relative_path(); group = group.parent_path())
    for (const auto& [region, most] : regions(all / group.relative_path() / "dmem.max")) {
      const auto found = mine.find(region);
      if (most == "max" || (found != mine.end() && found->second != "max")) continue;
      out.push_back({"gpu-memory-cgroup", State::kWarning,
                     "dmem.max of " + group.string() + " limits " + region + " to " + most +
                         " bytes, and this cgroup has no limit of its own",
                     "programs see the whole GPU, and allocations fail at the limit",
                     "set dmem.max of " + own + ", too"});
    }
}

// The kernel leaves the reservation of a removed cgroup on its parents.
void check_reservations(const fs::path& all, std::vector<Finding>& out) {
  constexpr size_t kMostGroups = 10'000;
  size_t n = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator group(all, failed), end; !failed && group != end && n < kMostGroups;
       group.increment(failed)) {
    std::error_code gone;
    if (!group->is_directory(gone)) continue;
    n++;
    for (const auto& [region, least] : regions(group->path() / "dmem.min"))
      if (least != "0" && !has_processes(group->path()))
        out.push_back(
            {"gpu-memory-cgroup", State::kNote,
             group->path().string() + " reserves " + least + " bytes of " + region + " and has no processes",
             "nobody else may count on them; removed as it is, it leaves them to its parents for good",
             "write '" + region + " 0' into its dmem.min before you remove it"});
  }
}

}  // namespace

std::vector<Finding> examine_mps_file(const std::string& path, const std::string& text, const MpsNode& node) {
  std::vector<Finding> out;
  const bool ascii = !base::first_outside_ascii(text);
  const toml::parse_result parsed = ascii ? toml::parse(std::string_view(text)) : toml::parse("");
  if (!ascii || !parsed) {
    const std::string why = ascii ? std::string(parsed.error().description()) : "it is not plain ASCII";
    return {{"mps-file", State::kNote, path + " cannot be read: " + why, "its limits were not checked", ""}};
  }
  if (const auto* servers = parsed.table()["servers"].as_table())
    for (const auto& [name, value] : *servers)
      if (const auto* server = value.as_table()) check_server(std::string(name.str()), *server, node, out);
  if (out.empty()) out.push_back({"mps-file", State::kOk, path + " has none of the known traps", "", ""});
  return out;
}

std::string configuration_of_mps(const std::string& pipe_directory, const MachineFolders& folders) {
  constexpr int kMostParents =
      3;  // a client may be given the folder of a namespace, which lies in its server's
  fs::path folder = pipe_directory;
  for (int i = 0; i < kMostParents; i++, folder = folder.parent_path()) {
    const std::string pid = first_line((folder / "nvidia-cuda-mps-control.pid").string());
    if (pid.empty()) continue;
    std::ifstream in(folders.proc + "/" + pid + "/cmdline", std::ios::binary);
    for (std::string word; std::getline(in, word, '\0');) {
      if (word.starts_with("--apply=")) return word.substr(word.find('=') + 1);
      if ((word == "-a" || word == "--apply") && std::getline(in, word, '\0')) return word;
    }
  }
  return "";
}

void examine_memory_cgroups(const std::string& own, const MachineFolders& folders,
                            std::vector<Finding>& out) {
  const std::string all = folders.sys + "/fs/cgroup";
  if (first_line(all + "/cgroup.controllers").find("dmem") == std::string::npos) return;
  check_parents(all, own, out);
  check_reservations(all, out);
}

}  // namespace tessera::cli
