// Checks of the machine: one function each, in the order in which a launch would meet them.
#include <dlfcn.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/doctor/doctor.h"
#include "cli/look/bypass.h"
#include "cli/look/client_table.h"
#include "cli/look/cut_launches.h"
#include "cli/run/child_output.h"
#include "cli/run/first_line.h"
#include "cli/run/neighbours.h"
#include "cli/run/place.h"
#include "cli/run/run.h"
#include "driver_api/find_driver.h"
#include "driver_api/open_driver.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::string text_of(const char* variable) {
  const char* value = getenv(variable);
  return value ? value : "";
}

// The driver that programs will get: TESSERA_DRIVER, or the first that the loader finds and is neither the toolkit's
// stub nor the software GPU of this installation.
std::string driver_path() {
  for (const std::string& path : driver_api::driver_candidates(driver_api::search_places()))
    if (!driver_api::is_toolkit_stub(path)) return path;
  return "";
}

Finding check_library(const Layout& layout) {
  for (const std::string& library : {layout.preload, layout.preload_alias})
    if (const std::string why = why_not_loadable(library); !why.empty())
      return {"library", State::kFailure, why, "`tessera run` starts programs without Tessera",
              "install Tessera again, at a path without such characters (or build all of it)"};
  return {"library", State::kOk, layout.preload, "", ""};
}

Finding check_driver(const MachineFolders& folders) {
  const std::string path = driver_path();
  if (path.empty())
    return {"driver", State::kFailure, "no NVIDIA driver library (libcuda.so.1) where the loader looks",
            "CUDA programs find no GPU",
            "install NVIDIA's driver; to try Tessera without a GPU: tessera run --gpu soft"};
  std::error_code failed;
  const std::string real = fs::canonical(path, failed).string();
  const std::string module = first_line(folders.proc + "/driver/nvidia/version");
  return {"driver", State::kOk, (real.empty() ? path : real) + (module.empty() ? "" : "; " + module), "", ""};
}

Finding check_stub() {
  for (const std::string& path : driver_api::driver_candidates(driver_api::search_places()))
    if (driver_api::is_toolkit_stub(path))
      return {"stub", State::kWarning, path + " is the toolkit's link stub and is found at run time",
              "programs that meet it fail with error 34 (stub library)",
              "take its folder out of LD_LIBRARY_PATH and the loader's configuration"};
  return {"stub", State::kOk, "no link stub of the toolkit is in the way", "", ""};
}

// In a child, because a driver may do anything when it is opened. What it wrote is what we lack.
Finding check_exports(const std::string& driver) {
  const ChildOutput child = output_of_child([&] {
    std::string text;
    if (void* handle = dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL))
      for (const std::string& name : driver_api::unlisted_exports(handle)) text += " " + name;
    else
      text = "!";
    _exit(write(STDOUT_FILENO, text.data(), text.size()) == ssize_t(text.size()) ? 0 : 1);
  });
  const std::string& text = child.text;
  if (!child.ended_well() || text == "!")
    return {"exports", State::kFailure, driver + " cannot be opened", "CUDA programs find no driver",
            "reinstall the driver; `ldd " + driver + "` shows what it lacks"};
  if (text.empty()) return {"exports", State::kOk, "every function that the driver exports is known", "", ""};
  return {"exports", State::kWarning, "the driver exports functions that are newer than Tessera:" + text,
          "under `tessera run` programs find them, and their calls are not gated; elsewhere, until `tessera "
          "cdi` has "
          "run as root, only by cuGetProcAddress",
          "update Tessera"};
}

Finding check_gpu(const MachineFolders& folders) {
  std::string why_not;
  if (real_gpu_present(&why_not))
    return {"gpu", State::kOk, "the driver initialises and shows a GPU", "", ""};
  std::string remedy = "see `nvidia-smi` and `dmesg`; to try Tessera without a GPU: tessera run --gpu soft";
  for (const char* name : {"nvidiactl", "nvidia0", "nvidia-uvm"}) {
    const std::string device = folders.dev + "/" + name;
    if (fs::exists(device) && access(device.c_str(), R_OK | W_OK) != 0)
      remedy = "you may not use " + device + ": ask for its group, or start the container with the GPU";
  }
  return {"gpu", State::kFailure, why_not, "CUDA programs find no GPU", remedy};
}

// Memory that the host's programs take from, too.
struct TakenByHost {
  bool VisibleGpu::*is;
  const char *finding, *meaning;
};
constexpr TakenByHost kTakenByHost[] = {
    {&VisibleGpu::shares_host_memory, "GPUs that share the host's memory:",
     "programs of the host take from it, and no limit or reservation holds them; nothing can be parked"},
    {&VisibleGpu::holds_host_pages, "GPUs whose memory may hold pages of the host:",
     "what a program has by malloc may move there, and no limit or reservation holds it; cuMemGetInfo counts "
     "it"}};

void check_memory(std::vector<Finding>& out) {
  const auto gpus = visible_gpus(driver_path());
  bool any = false;
  for (const TakenByHost& kind : kTakenByHost) {
    std::string numbers;
    for (size_t i = 0; gpus && i < gpus->size(); ++i)
      if ((*gpus)[i].*kind.is) numbers += ' ' + std::to_string(i);
    if (numbers.empty()) continue;
    any = true;
    out.push_back({"memory", State::kNote, kind.finding + numbers, kind.meaning,
                   "leave the host its part: tessera run --memory-limit, or [[memory.limit]]"});
  }
  if (!any) out.push_back({"memory", State::kOk, "no GPU shares the host's memory", "", ""});
}

Finding check_softgpu(const Layout& layout) {
  const std::string driver = layout.softgpu + "/libcuda.so.1";
  const std::string why = why_not_loadable(driver);
  if (why.empty()) return {"software-gpu", State::kOk, driver, "", ""};
  return {"software-gpu", State::kFailure, why, "--gpu soft has no driver",
          "install Tessera again (or build all of it)"};
}

}  // namespace

Finding examine_gate(const nlohmann::json& state) {
  size_t on_device = 0, in_thread = 0;
  const auto clients = state.find("clients");
  for (const auto& c : clients != state.end() ? *clients : nlohmann::json::array()) {
    const auto found = c.find("gate");
    const std::string gate = found != c.end() && found->is_string() ? found->get<std::string>() : "";
    on_device += gate == "device";
    in_thread += gate.starts_with("thread");
  }
  const std::string counts = std::to_string(on_device) + " best-effort clients wait on the device, " +
                             std::to_string(in_thread) + " in their threads";
  if (in_thread == 0) return {"gate", State::kOk, counts, on_device == 0 ? "" : kGatePrices, ""};
  return {"gate", State::kNote, counts, kGatePrices,
          "tessera run --gate device, or gate = \"device\" in [policy]; `tessera ps` says who waits where, "
          "and why"};
}

namespace {

// Names the clients that were started before Tessera was installed anew.
Finding check_clients(const nlohmann::json& clients, const Layout& layout) {
  std::string older;
  for (const auto& client : clients)
    if (const long pid = client.is_object() ? client.value("pid", 0L) : 0;
        has_older_file(pid, layout.preload))
      older += " " + std::to_string(pid);
  if (older.empty())
    return {"clients", State::kOk, "no client has an older library than " + layout.preload, "", ""};
  return {"clients", State::kNote,
          "clients with a library that is not at " + layout.preload + " any more:" + older,
          "they go on with the older one", "start them anew when it suits"};
}

// Does it answer?
bool check_daemon(const std::string& given, const Layout& layout, std::vector<Finding>& out) {
  const auto path = resolve_socket(given);
  if (!path) {
    out.push_back({"daemon", State::kFailure, path.error().text, "programs run unmanaged",
                   "fix TESSERA_SOCKET or --socket"});
    return false;
  }
  const auto answer = ipc::query(*path);
  if (!answer) {
    out.push_back({"daemon", State::kWarning, answer.error().text,
                   "programs run unmanaged: nothing is held or protected",
                   "start tesserad (`systemctl start tesserad`, or `tesserad &` for yourself)"});
    return false;
  }
  const auto state = nlohmann::json::parse(*answer, nullptr, false);
  const auto clients =
      state.is_object() ? state.value("clients", nlohmann::json::array()) : nlohmann::json::array();
  out.push_back(
      {"daemon", State::kOk, *path + " answers, " + std::to_string(clients.size()) + " clients", "", ""});
  if (state.is_object()) out.push_back(examine_gate(state));
  out.push_back(check_clients(clients, layout));
  for (Finding& f : examine_clients(state)) out.push_back(std::move(f));
  return true;
}

Finding check_membarrier() {
  const long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  if (commands > 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    return {"membarrier", State::kOk, "membarrier(2) is available", "", ""};
  return {"membarrier", State::kWarning, "membarrier(2) is not available here",
          "every launch pays a memory fence, about 10 ns",
          "allow it in the container's seccomp profile; needs Linux 4.14"};
}

// Clock sources that are read without a system call.
constexpr std::string_view kFastClocks[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page",
                                            "arch_sys_counter"};

Finding check_clock(const MachineFolders& folders) {
  const std::string source =
      first_line(folders.sys + "/devices/system/clocksource/clocksource0/current_clocksource");
  if (source.empty() || std::ranges::find(kFastClocks, source) != std::end(kFastClocks))
    return {"clock", State::kOk, source.empty() ? "clock source unknown" : "clock source " + source, "", ""};
  return {"clock", State::kWarning, "clock source " + source + " costs a system call to read",
          "holds and slices are timed at about 1 us each", "boot with tsc=reliable if this machine's TSC is"};
}

Finding check_counters(const MachineFolders& folders) {
  std::ifstream parameters(folders.proc + "/driver/nvidia/params");
  for (std::string line; std::getline(parameters, line);)
    if (line.starts_with("RmProfilingAdminOnly: 1") && geteuid() != 0)
      return {"counters", State::kNote, "performance counters are for administrators only",
              "tessera profile --metrics is refused; all else works",
              "module option NVreg_RestrictProfilingToAdminUsers=0, or --sensitivity"};
  return {"counters", State::kOk, "nothing forbids performance counters", "", ""};
}

std::string own_cgroup(const MachineFolders& folders) {
  std::ifstream group(folders.proc + "/self/cgroup");
  std::string path;
  for (std::string line; std::getline(group, line);)
    if (line.starts_with("0::")) path = line.substr(3);
  return path;
}

Finding check_cgroup(const MachineFolders& folders) {
  const std::string path = own_cgroup(folders);
  const std::string quota = first_line(folders.sys + "/fs/cgroup" + (path == "/" ? "" : path) + "/cpu.max");
  unsigned long used = 0, period = 0;
  if (sscanf(quota.c_str(), "%lu %lu", &used, &period) == 2 && period != 0 && used < period)
    return {"cgroup", State::kWarning, "this cgroup has less than one CPU (cpu.max " + quota + ")",
            "a throttled program holds its turn on the GPU without using it", "give it a whole CPU"};
  return {"cgroup", State::kOk,
          path.empty() || path == "/" ? "no limit of this cgroup is in the way" : "cgroup " + path, "", ""};
}

Finding check_preloads(const Layout& layout) {
  const std::string preload = text_of("LD_PRELOAD"), audit = text_of("LD_AUDIT");
  std::string others;
  for (const Preload& other : preloads(preload, "")) others += " " + other.entry;
  if (preload.find(layout.preload) != std::string::npos)
    return {"preload", State::kNote,
            "LD_PRELOAD names the library already" + (others.empty() ? "" : ", and" + others),
            "programs attach without `tessera run`", ""};
  if (others.empty() && audit.empty())
    return {"preload", State::kOk, "no other library is preloaded", "", ""};
  return {"preload", State::kNote, "LD_PRELOAD=" + preload + (audit.empty() ? "" : " LD_AUDIT=" + audit),
          "`tessera run` appends its libraries", ""};
}

// In a container the daemon answers if its socket is mounted.
Finding check_container(const MachineFolders& folders, bool daemon_answers) {
  const auto there = [&](const char* file) { return file_exists(folders.root + file); };
  const char* kind = there("/run/.containerenv") ? "podman" : there("/.dockerenv") ? "docker" : nullptr;
  if (!kind && !text_of("KUBERNETES_SERVICE_HOST").empty()) kind = "Kubernetes";
  if (!kind) return {"container", State::kOk, "this is no container of podman, Docker or Kubernetes", "", ""};
  const std::string finding = std::string("this is a container (") + kind + ")";
  if (daemon_answers) return {"container", State::kOk, finding + " and has the daemon's socket", "", ""};
  return {"container", State::kWarning, finding + " without the daemon's socket",
          "its programs run unmanaged",
          "on the host: `tessera cdi generate -o /etc/cdi/tessera.json`, then start it with --device "
          "tessera.dev/gpu=best-effort"};
}

}  // namespace

void add_neighbours(std::span<const Neighbour> neighbours, std::vector<Finding>& out) {
  for (const Neighbour& n : neighbours)
    out.push_back({"neighbour", State::kNote, n.finding, n.meaning, "docs/neighbours.md has what was tried"});
}

std::vector<Finding> examine_clients(const nlohmann::json& state) {
  std::vector<Finding> out;
  if (!state.is_object()) return out;
  for (const auto& client : state.value("clients", nlohmann::json::array())) {
    const CutLaunches launches = cut_launches(client);
    if (launches.share.empty()) continue;
    const std::string finding = std::to_string(client.value("pid", 0L)) + " " +
                                client.value("name", std::string()) + ": " + launches.share;
    if (launches.obstacles.empty())
      out.push_back({"cutting", State::kOk, finding, "", ""});
    else
      out.push_back(
          {"cutting", State::kNote, finding, "in the way: " + launches.obstacles, launches.remedies});
  }
  return out;
}

std::vector<Finding> examine_machine(const DoctorOptions& options, const Layout& layout,
                                     const MachineFolders& folders) {
  std::vector<Finding> out;
  out.push_back(check_library(layout));
  if (options.gpu == "soft") {
    out.push_back(check_softgpu(layout));
  } else {
    out.push_back(check_driver(folders));
    if (out.back().state == State::kOk) {
      out.push_back(check_exports(driver_path()));
      out.push_back(check_gpu(folders));
      if (out.back().state == State::kOk) check_memory(out);
    }
    out.push_back(check_stub());
    out.push_back(check_counters(folders));
  }
  const bool daemon_answers = check_daemon(options.socket, layout, out);
  out.push_back(check_container(folders, daemon_answers));
  examine_mps(options, layout, folders, out);
  out.push_back(check_preloads(layout));
  add_neighbours(neighbours_of_environment(folders.root + "/etc/ld.so.preload"), out);
  out.push_back(check_membarrier());
  out.push_back(check_clock(folders));
  out.push_back(check_cgroup(folders));
  examine_memory_cgroups(own_cgroup(folders), folders, out);
  return out;
}

}  // namespace tessera::cli
