// The kernel's own limits of GPU memory: cgroup v2's controller dmem, where the driver takes part in it. What `[[memory.limit]]`
// allows a control group is written to its dmem.max. Then the kernel keeps the limit, also for programs without Tessera.
// Called by transport::Server: one thread, a few small files.
//
// Facts: cgroup-v2.rst, "DMEM": dmem.capacity of the root and dmem.max of each other group have a line `REGION BYTES` for each
// region, or `REGION max`. A write of one such line sets it. How NVIDIA's driver names its regions was not seen on hardware: a
// region counts as a GPU's if a part of its name is a PCI address of NVIDIA's, or begins with "nvidia".
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scheduler_daemon/core/core.h"

namespace tessera::kernel_limits {

class KernelLimits {
 public:
  explicit KernelLimits(std::string sys = "/sys") : sys_(std::move(sys)) {}

  // Sets what is not set yet, and withdraws what is asked for no more. Limits of users and of patterns have no file. A limit
  // that somebody else wrote stays.
  void apply(const std::vector<core::MemoryLimit>& limits);

  const std::set<std::string>& kept() const { return kept_; }  // control groups whose limit the kernel keeps
  struct Line {
    bool warning;
    std::string text;
  };
  std::vector<Line> take_news() { return std::exchange(news_, {}); }  // for people: each thing once

 private:
  bool set(const std::string& cgroup, const std::string& region, const std::string& value);
  std::set<std::string> regions_of_gpus() const;
  void say(const std::string& cgroup, bool warning, const std::string& text);

  std::string sys_;
  std::map<std::string, uint64_t> written_;  // bytes, by control group: by this object
  std::set<std::string> kept_;
  std::map<std::string, std::string> said_;  // latest of each control group
  std::vector<Line> news_;
};

}  // namespace tessera::kernel_limits
