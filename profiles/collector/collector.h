// Activities of one process condensed to a profile: kernels by key, the rest by kind. Order does not matter;
// whatever is wrong with an activity is counted, never fatal. Not thread-safe: its owner locks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "profiles/collector/activity.h"
#include "profiles/gpu_description.h"
#include "profiles/kernel_profile.h"

namespace tessera::profiles {

struct DeviceFacts {  // what occupancy follows from; a GPU that is not described has its name alone
  std::string gpu, driver;
  Origin origin = Origin::kUnknown;
  GpuDescription limits;  // sm.count = 0: not known
};

struct KindTotals {
  uint64_t count = 0, bytes = 0;
  double total_ns = 0;
};

class Collector {
 public:
  void device(uint32_t ordinal, DeviceFacts facts) { devices_[ordinal] = std::move(facts); }
  bool has_device(uint32_t ordinal) const { return devices_.contains(ordinal); }
  void add(const Activity& activity);
  void dropped(uint64_t n) { dropped_ += n; }

  const Profile& profile() const { return profile_; }
  const KindTotals& totals(ActivityKind kind) const { return totals_[size_t(kind)]; }
  uint64_t dropped() const { return dropped_; }
  uint64_t untimed() const { return untimed_; }  // without a usable duration
  uint64_t unknown() const { return totals_[size_t(ActivityKind::kUnknown)].count; }
  // The profile with what is not about kernels as one more top-level field, "activity".
  Profile with_totals() const;

 private:
  std::map<uint32_t, DeviceFacts> devices_;
  Profile profile_;
  std::array<KindTotals, 5> totals_{};
  uint64_t dropped_ = 0, untimed_ = 0;
};

}  // namespace tessera::profiles
