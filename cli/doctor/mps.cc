// Checks of NVIDIA's Multi-Process Service: tesserad's, or one that the environment names. Of what goes wrong there, most is
// silent: programs then run beside MPS, or without the limits that they were given.
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/user_file.h"
#include "cli/doctor/doctor.h"
#include "cli/run/client_environment.h"
#include "cli/run/mps.h"
#include "cli/run/place.h"
#include "cli/run/run.h"

namespace tessera::cli {
namespace {

constexpr uint64_t kMostFileBytes = 1u << 20;

Finding check_mode(const MpsInfo& mps) {
  if (mps.active)
    return {"mps", State::kNote, "MPS is on: clients share the GPU in space",
            "a fault of one program ends all programs on that GPU", ""};
  if (!mps.reason.empty())
    return {"mps", State::kWarning, "MPS is off although mps.mode is " + mps.mode + ": " + mps.reason,
            "clients share the GPU in time", "mend that and restart tesserad, or set mps.mode = \"off\""};
  return {"mps", State::kOk, "MPS is off: clients share the GPU in time, isolated from each other", "", ""};
}

// A misspelt folder is no error for the driver.
Finding check_folder(const MpsInfo& mps, const std::string& named) {
  if (named.empty())
    return {"mps-variables", State::kOk, "no MPS of somebody else is named in the environment", "", ""};
  const std::string finding = "CUDA_MPS_PIPE_DIRECTORY=" + named;
  struct stat control;
  if (stat((named + "/control").c_str(), &control) != 0)
    return {"mps-variables", State::kWarning, finding + ", where no MPS control daemon listens",
            "programs run without MPS and say nothing", "correct or unset it"};
  if (control.st_uid != geteuid())
    return {"mps-variables", State::kWarning,
            finding + " is of user " + std::to_string(control.st_uid) + ", not yours (" +
                std::to_string(geteuid()) + ")",
            "its server may refuse you (CUDA_ERROR_NOT_PERMITTED), also as root",
            "run program and control daemon as one user"};
  if (mps.active && named == mps.pipe_directory)
    return {"mps-variables", State::kOk, finding + " is tesserad's", "", ""};
  return {"mps-variables", State::kNote, finding,
          "programs attach to that MPS server, whose daemon Tessera does not run",
          "unset it, or let tesserad run MPS"};
}

// A server whose `allowed_devices` name a GPU that is not there ends, and its clients run without it.
Finding check_servers(const MpsInfo& mps) {
  const auto servers = mps_servers(mps);
  if (!servers)
    return {"mps-servers", State::kWarning, servers.error().text, "programs may run without MPS",
            "is the control daemon alive?"};
  std::string ended;
  for (const long pid : *servers)
    if (kill(pid_t(pid), 0) != 0 && errno == ESRCH) ended += " " + std::to_string(pid);
  if (ended.empty())
    return {"mps-servers", State::kOk, std::to_string(servers->size()) + " MPS servers, all of them run", "",
            ""};
  return {"mps-servers", State::kWarning, "MPS servers that have ended:" + ended,
          "their clients run without MPS and without its limits",
          "see MPS's log: does allowed_devices name a GPU that is not there?"};
}

// "0=2G,1=512M" by the program's own numbers; one that it does not see makes the driver forget all limits.
Finding check_pinned_limit(const std::string& limits, size_t visible) {
  std::istringstream list(limits);
  for (std::string entry; std::getline(list, entry, ',');) {
    char* end = nullptr;
    const unsigned long device = strtoul(entry.c_str(), &end, 10);
    if (end == entry.c_str() || *end != '=' || device >= visible)
      return {"mps-limits", State::kWarning,
              std::string(kMpsMemoryLimit) + "=" + limits + " names '" + entry + "', and programs see " +
                  std::to_string(visible) + " GPUs",
              "no limit of memory holds at all", "count the GPUs of CUDA_VISIBLE_DEVICES from 0"};
  }
  return {"mps-limits", State::kNote, std::string(kMpsMemoryLimit) + "=" + limits,
          "cuMemGetInfo says the limit as free and the whole GPU as total", ""};
}

// The kernel module lists all GPUs; a program's variables do not hide them there.
MpsNode node_of(const MachineFolders& folders, const std::vector<VisibleGpu>& gpus) {
  MpsNode node;
  node.root = folders.root;
  std::error_code none;
  for (const auto& gpu : std::filesystem::directory_iterator(folders.proc + "/driver/nvidia/gpus", none)) {
    std::ifstream in(gpu.path() / "information");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("GPU UUID:")) node.uuids.push_back(line.substr(line.find("GPU-")));
  }
  for (const VisibleGpu& gpu : gpus)
    if (node.least_memory_bytes == 0 || gpu.memory_bytes < node.least_memory_bytes)
      node.least_memory_bytes = gpu.memory_bytes;
  return node;
}

}  // namespace

void examine_mps(const DoctorOptions& options, const Layout& layout, const MachineFolders& folders,
                 std::vector<Finding>& out) {
  const auto path = resolve_socket(options.socket);
  const auto asked = path ? ask_mps(*path) : base::Result<MpsInfo>(path.error());
  MpsInfo mps;
  if (asked) out.push_back(check_mode(mps = *asked));
  const std::string named = own_environment("CUDA_MPS_PIPE_DIRECTORY");
  out.push_back(check_folder(mps, named));
  if (!named.empty()) mps.pipe_directory = named;
  if (mps.control_program.empty()) mps.control_program = "nvidia-cuda-mps-control";
  const bool is_there = out.back().state < State::kWarning && (mps.active || !named.empty());
  if (is_there && !find_in_path(mps.control_program).empty()) out.push_back(check_servers(mps));
  const std::string limits = own_environment(kMpsMemoryLimit);
  const std::string file = is_there ? configuration_of_mps(mps.pipe_directory, folders) : "";
  if (limits.empty() && file.empty()) return;
  const auto gpus = visible_gpus(options.gpu == "soft" ? layout.softgpu + "/libcuda.so.1" : meant_driver());
  if (!limits.empty()) out.push_back(check_pinned_limit(limits, gpus ? gpus->size() : 0));
  if (file.empty()) return;
  if (file[0] != '/')
    return out.push_back({"mps-file", State::kNote, "MPS was started with " + file + ", from another folder",
                          "its limits were not checked", "start it with an absolute path"});
  const auto text = base::read_user_file(file, kMostFileBytes);
  if (!text)
    return out.push_back(
        {"mps-file", State::kNote, text.error().text, "the limits of MPS were not checked", ""});
  for (Finding& f : examine_mps_file(file, *text, node_of(folders, gpus ? *gpus : std::vector<VisibleGpu>())))
    out.push_back(std::move(f));
}

}  // namespace tessera::cli
