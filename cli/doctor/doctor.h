// `tessera doctor`: every precondition of sharing a GPU, with finding, consequence and remedy; with a command, how
// that program reaches the driver and what of it can be cut. Changes nothing; opens the driver in a child only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "cli/run/layout.h"
#include "cli/run/neighbours.h"

namespace tessera::cli {

enum class State { kOk, kNote, kWarning, kFailure };

struct Finding {
  std::string check;  // short name, stable: for scripts
  State state = State::kOk;
  std::string finding;      // what is so
  std::string consequence;  // what that means for the user; "" if it is well
  std::string remedy;       // what to do; "" if nothing
};

struct DoctorOptions {
  bool json = false;
  std::string socket;                // "" = this user's default
  std::string gpu = "auto";          // or "soft"
  std::vector<std::string> command;  // "" = the machine only
};

// The kernel shows the machine in these folders; tests have their own.
struct MachineFolders {
  std::string proc = "/proc", sys = "/sys", dev = "/dev";
  std::string root;  // what containers are known by
};

// cli/doctor/machine.cc
// Where the clients of a daemon wait; `state`: its answer, an object.
Finding examine_gate(const nlohmann::json& state);
std::vector<Finding> examine_machine(const DoctorOptions& options, const Layout& layout,
                                     const MachineFolders& folders = {});
// One for each client whose launches were looked at: can they be cut? `state`: what the daemon answered.
std::vector<Finding> examine_clients(const nlohmann::json& state);
// One for each.
void add_neighbours(std::span<const Neighbour> neighbours, std::vector<Finding>& out);
// cli/doctor/mps.cc: part of the machine
void examine_mps(const DoctorOptions& options, const Layout& layout, const MachineFolders& folders,
                 std::vector<Finding>& out);
// cli/doctor/mps_file.cc: part of that
struct MpsNode {
  std::vector<std::string> uuids;   // of the node's GPUs, as GPU-...; empty = not known
  uint64_t least_memory_bytes = 0;  // of its smallest GPU; 0 = not known
  std::string root;                 // below which absolute paths lie
};
// `text`: of the file at `path`, which is given to nvidia-cuda-mps-control -a.
std::vector<Finding> examine_mps_file(const std::string& path, const std::string& text, const MpsNode& node);
// The file that the control daemon of this folder was started with; "" = none, or no daemon runs there.
std::string configuration_of_mps(const std::string& pipe_directory, const MachineFolders& folders);
// Limits of the kernel's controller dmem. `own`: this process's cgroup.
void examine_memory_cgroups(const std::string& own, const MachineFolders& folders, std::vector<Finding>& out);
// cli/doctor/program.cc
std::vector<Finding> examine_program(const DoctorOptions& options, const Layout& layout);

// 0: well, or nothing but notes; 1: with warnings; 3: something will not work.
int exit_status(const std::vector<Finding>& findings);

int doctor(const DoctorOptions& options);

}  // namespace tessera::cli
