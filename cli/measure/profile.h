// `tessera profile`: runs a program, learns what its kernels cost, prints the top of it and merges it into a
// profile file (docs/profiles.md). The figures come from the traces of the software GPU, or from
// CUPTI through libtessera_profile.so, of the program and all its children. Main thread only; the program's
// exit status is passed on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run/layout.h"
#include "profiles/collector/activity.h"
#include "profiles/kernel_profile.h"

namespace tessera::cli {

struct ProfileOptions {
  double seconds = 0;                           // ask the program to end (SIGTERM) after this; 0 = let it end
  std::string output = "tessera-profile.json";  // merged into it if it exists
  std::string gpu = "auto";                     // auto: the machine's GPU; soft: the software GPU
  size_t top = 15;                              // kernels printed
  bool metrics = false;                         // also count bytes and operations (real GPU)
  bool sensitivity = false;                     // count nothing, run thrice: alone and beside two neighbours
  bool install = false;                         // also into the folder that tesserad reads
  std::vector<std::string> command;
};

// A private folder, gone with it: traces, and the socket of an arbiter that nobody else uses.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  const std::string& path() const { return path_; }  // "" = could not be made, see errno

 private:
  std::string path_;
};

// The description that the software GPU will use: a file, or a name in the installation or the source tree.
base::Result<profiles::GpuDescription> soft_description(const Layout& layout);
// Those of all its devices (TESSERA_SOFTGPU_DEVICES), by number.
base::Result<std::vector<profiles::GpuDescription>> soft_descriptions(const Layout& layout);

// The kernels of one trace file of the software GPU (softgpu-<pid>.csv), in its order. Operations that failed
// or did not get modelled time are left out. A last line cut off by a killed writer is ignored; other bad
// lines are errors.
base::Status read_trace(const std::string& csv_path,
                        const std::function<void(const profiles::Activity&)>& kernel);
// Adds them to a profile.
base::Status add_trace(const std::string& csv_path, const profiles::GpuDescription& gpu,
                       const std::string& driver, profiles::Profile& out);
// Every trace file in a folder; how many processes wrote them. A file is of one process and one device:
// `gpus` are the devices' descriptions by number.
base::Result<size_t> add_traces(const std::string& folder, const std::vector<profiles::GpuDescription>& gpus,
                                const std::string& driver, profiles::Profile& out);

// Merges the files that the injected collector left in a folder, one per process; returns their number. Its notes go to
// standard error.
base::Result<size_t> add_collected(const std::string& folder, profiles::Profile& out);

// The kernels with most time, as a table for people.
std::string top_kernels(const profiles::Profile& profile, size_t n);

// Without a command: only installs `output`, which exists.
// Exit status: the program's; 2 bad usage, 3 if nothing could be learnt or written although the program ended
// well.
int profile(const ProfileOptions& options);

}  // namespace tessera::cli
