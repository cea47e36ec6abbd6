#include "scheduler_daemon/kernel_limits/kernel_limits.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/scoped_fd.h"
#include "base/units.h"

namespace tessera::kernel_limits {
namespace {

constexpr char kNone[] = "max";
constexpr char kNoMore[] = "the kernel does not limit its GPU memory any more";
constexpr char kAlone[] = "Tessera alone keeps its limit: ";

// Lines of dmem's files.
std::map<std::string, std::string> lines_of(const std::string& file) {
  std::map<std::string, std::string> all;
  std::ifstream in(file);
  for (std::string region, value; in >> region >> value;) all[region] = value;
  return all;
}

bool is_pci_address(const std::string& text) {  // 0000:65:00.0
  constexpr char kForm[] = "xxxx:xx:xx.x";
  if (text.size() != sizeof kForm - 1) return false;
  for (size_t i = 0; i < text.size(); ++i)
    if (kForm[i] == 'x' ? !std::isxdigit(uint8_t(text[i])) : text[i] != kForm[i]) return false;
  return true;
}

bool is_pattern(const std::string& cgroup) {
  return cgroup.find_first_of("*?[\\") != cgroup.npos;
}

}  // namespace

std::set<std::string> KernelLimits::regions_of_gpus() const {
  std::set<std::string> regions;
  for (const auto& [region, capacity] : lines_of(sys_ + "/fs/cgroup/dmem.capacity")) {
    std::istringstream parts(region);
    for (std::string part, vendor; std::getline(parts, part, '/');) {
      if (is_pci_address(part)) std::ifstream(sys_ + "/bus/pci/devices/" + part + "/vendor") >> vendor;
      if (part.starts_with("nvidia") || vendor == "0x10de") regions.insert(region);
    }
  }
  return regions;
}

bool KernelLimits::set(const std::string& cgroup, const std::string& region, const std::string& value) {
  const base::ScopedFd file(
      ::open((sys_ + "/fs/cgroup" + cgroup + "/dmem.max").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  const std::string line = region + ' ' + value + '\n';
  return file.valid() && ::write(file.get(), line.data(), line.size()) == ssize_t(line.size());
}

void KernelLimits::say(const std::string& cgroup, bool warning, const std::string& text) {
  if (std::exchange(said_[cgroup], text) != text) news_.push_back({warning, cgroup + ": " + text});
}

void KernelLimits::apply(const std::vector<core::MemoryLimit>& limits) {
  Wanted wanted;
  for (const core::MemoryLimit& limit : limits)
    if (!limit.cgroup.empty() && !is_pattern(limit.cgroup)) wanted.try_emplace(limit.cgroup, limit.bytes);
  if (wanted.empty() && written_.empty() && at_driver_.empty()) return;
  if (const std::set<std::string> regions = regions_of_gpus(); !regions.empty())
    apply_by_dmem(wanted, regions);
  else
    apply_by_driver(wanted);
}

void KernelLimits::apply_by_dmem(const Wanted& wanted, const std::set<std::string>& regions) {
  for (const auto& [cgroup, bytes] : std::exchange(written_, {})) {
    if (wanted.contains(cgroup)) {
      written_[cgroup] = bytes;
      continue;
    }
    for (const auto& [region, has] : lines_of(sys_ + "/fs/cgroup" + cgroup + "/dmem.max"))
      if (regions.contains(region) && has == std::to_string(bytes)) (void)set(cgroup, region, kNone);
    kept_.erase(cgroup);
    say(cgroup, false, kNoMore);
  }
  for (const auto& [cgroup, bytes] : wanted) {
    const auto now = lines_of(sys_ + "/fs/cgroup" + cgroup + "/dmem.max");
    const std::string value = std::to_string(bytes);
    const auto before = written_.find(cgroup);
    const std::string ours = before == written_.end() ? kNone : std::to_string(before->second);
    bool all = !now.empty();
    for (const std::string& region : regions) {
      const auto line = now.find(region);
      const std::string has = line == now.end() ? kNone : line->second;
      if (!all || has == value) continue;
      if (has != kNone && has != ours) {
        say(cgroup, true,
            "its dmem.max has " + has + " of " + region + " already, which stays: write `" + region +
                " max` there, and reload");
        all = false;
      } else if (!set(cgroup, region, value)) {
        say(cgroup, true, kAlone + std::string("dmem.max: ") + std::strerror(errno));
        all = false;
      } else {
        written_[cgroup] = bytes;
      }
    }
    if (!all) {
      kept_.erase(cgroup);
      continue;
    }
    written_[cgroup] = bytes;  // perhaps by an earlier daemon
    kept_.insert(cgroup);
    say(cgroup, false,
        "the kernel limits its GPU memory to " + std::to_string(bytes / base::kMiB) +
            " MiB of each GPU (dmem)");
  }
}

void KernelLimits::apply_by_driver(const Wanted& wanted) {
  if (!driver_.can_ask()) return;  // the server applies again when it has answered
  std::vector<DriverLimit> limits;
  const auto ask = [&](const std::string& cgroup, uint64_t bytes, uint64_t inode) {
    AtDriver& now = at_driver_[cgroup];
    now = {bytes, now.inode == inode ? now.ours : 0, inode};
    limits.push_back({sys_ + "/fs/cgroup" + cgroup, bytes, now.ours});
    asked_now_.push_back(cgroup);
  };
  std::erase_if(at_driver_,
                [&](const auto& row) { return row.second.ours == 0 && !wanted.contains(row.first); });
  for (const auto& [cgroup, now] : at_driver_)
    if (!wanted.contains(cgroup)) ask(cgroup, 0, now.inode);
  for (const auto& [cgroup, bytes] : wanted) {
    struct stat folder;
    if (cgroup.find('\n') != cgroup.npos || ::stat((sys_ + "/fs/cgroup" + cgroup).c_str(), &folder) != 0)
      continue;
    const auto now = at_driver_.find(cgroup);
    if (now == at_driver_.end() || now->second.asked != bytes || now->second.inode != folder.st_ino)
      ask(cgroup, bytes, folder.st_ino);
  }
  if (!limits.empty()) driver_.ask(limits);
}

void KernelLimits::driver_answered() {
  const auto answers = driver_.answers();
  if (!answers) return;
  const std::vector<std::string> asked = std::exchange(asked_now_, {});
  for (size_t i = 0; i < asked.size(); ++i) {
    const std::string &cgroup = asked[i], &failure = (*answers)[i];
    AtDriver& now = at_driver_[cgroup];
    if (failure.empty()) now.ours = now.asked;
    if (!failure.empty() || now.ours == 0)
      kept_.erase(cgroup);
    else
      kept_.insert(cgroup);
    if (!failure.empty())
      say(cgroup, failure != kNoDriverLimits, kAlone + failure);
    else if (now.ours == 0)
      say(cgroup, false, kNoMore);
    else
      say(cgroup, false,
          "the driver limits its GPU memory to " + std::to_string(now.ours / base::kMiB) +
              " MiB of each GPU");
  }
}

}  // namespace tessera::kernel_limits
