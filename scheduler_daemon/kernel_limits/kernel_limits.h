// The kernel's own limits of GPU memory: cgroup v2's controller dmem, where the driver takes part in it. What `[[memory.limit]]`
// allows a control group is written to its dmem.max. Then the kernel keeps the limit, also for programs without Tessera. Where dmem
// has no GPU, the driver is asked for its own limits (driver_limits.h). Called by transport::Server: one thread, a few small files.
//
// Facts: cgroup-v2.rst, "DMEM": dmem.capacity of the root and dmem.max of each other group have a line `REGION BYTES` for each
// region, or `REGION max`. A write of one such line sets it. NVIDIA's guide to memory limits names a region `nvidia/PCI/vidmem`, and
// says that a hard limit of `nvidia-smi memory-limits` is dmem.max. Not seen on hardware: a region counts as a GPU's if a part of
// its name is a PCI address of NVIDIA's, or begins with "nvidia".
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scheduler_daemon/core/settings.h"
#include "scheduler_daemon/kernel_limits/driver_limits.h"

namespace tessera::kernel_limits {

class KernelLimits {
 public:
  // `driver`: the command of DriverLimits.
  explicit KernelLimits(std::vector<std::string> driver = {}, std::string sys = "/sys")
      : sys_(std::move(sys)), driver_(std::move(driver)) {}

  // Sets what is not set yet, and withdraws what is asked for no more. Limits of users and of patterns have no file. A limit
  // that somebody else wrote stays.
  void apply(const std::vector<core::MemoryLimit>& limits);

  int driver_fd() const { return driver_.fd(); }  // readable: call driver_answered(); -1: it was not asked
  void driver_answered();

  const std::set<std::string>& kept() const { return kept_; }  // control groups whose limit the kernel keeps
  struct Line {
    bool warning;
    std::string text;
  };
  std::vector<Line> take_news() { return std::exchange(news_, {}); }  // for people: each thing once

 private:
  struct AtDriver {
    uint64_t asked = 0, ours = 0;  // bytes; 0: none. The second is what the driver has by us
    uint64_t inode = 0;            // of the group's folder: another one may have its name later
  };
  using Wanted = std::map<std::string, uint64_t>;  // bytes, by control group
  void apply_by_dmem(const Wanted& wanted, const std::set<std::string>& regions);
  void apply_by_driver(const Wanted& wanted);
  bool set(const std::string& cgroup, const std::string& region, const std::string& value);
  std::set<std::string> regions_of_gpus() const;
  void say(const std::string& cgroup, bool warning, const std::string& text);

  std::string sys_;
  Wanted written_;  // to dmem.max, by this object
  DriverLimits driver_;
  std::map<std::string, AtDriver> at_driver_;  // asked for, by control group
  std::vector<std::string> asked_now_;         // the driver was asked for these, and has not answered
  std::set<std::string> kept_;
  std::map<std::string, std::string> said_;  // latest of each control group
  std::vector<Line> news_;
};

}  // namespace tessera::kernel_limits
