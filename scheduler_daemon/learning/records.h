// Condenses what clients' duration records say about kernels: one histogram per launch key, bounded in keys
// and in buckets per key whatever clients send. Pure: no clock, no file, no lock (store.h has one). Durations
// are of whole launches; a record of a slice is scaled to its launch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc/abi/learnt.h"
#include "ipc/abi/region.h"
#include "profiles/kernel_profile.h"

namespace tessera::learning {

// The owner of records: what one user's programs say never reaches another's.
struct UserGpu {
  uint32_t uid = 0;
  std::string gpu, driver;  // as its driver says; "" = did not say, nothing is learnt
};

// The meaning of a key (abi::KernelSeen, checked).
struct Seen {
  uint64_t key = 0, image_hash = 0, blocks = 0;
  uint32_t block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
  std::string name;
};

struct Limits {
  size_t keys = 8192;    // the ones not heard of for longest are forgotten
  size_t buckets = 64;   // per key; beyond that neighbouring ones are joined
  size_t pending = 32;   // records of a key whose meaning is not known yet
  size_t devices = 256;  // (user, GPU, driver)
};

class Records {
 public:
  explicit Records(Limits limits = {}) : limits_(limits) {}

  // False: not counted (no GPU named, nothing measured, too many devices or pending records).
  bool record(const UserGpu& from, const ipc::abi::Record& record_untrusted);
  void seen(const UserGpu& from, const Seen& what);

  // Returns what was learnt since the last call, by user, as records to be merged into that user's file.
  std::map<uint32_t, profiles::Profile> take();
  // A profile that take() gave and that could not be written: counts again.
  void put_back(uint32_t uid, const profiles::Profile& profile);

  // Time per block of what this user's programs did on this GPU, as far as it is remembered here.
  std::vector<ipc::abi::LearntSlot> known(uint32_t uid, const std::string& gpu) const;

  size_t keys() const { return entries_.size(); }
  bool fresh() const { return fresh_; }  // take() would give something

 private:
  struct Pending {
    uint64_t blocks, duration_ns;
  };
  struct Entry {
    bool named = false;
    profiles::KernelKey key;
    uint64_t grid_blocks = 0;
    profiles::DurationHistogram fresh;  // since the last take()
    double fresh_blocks = 0;            // sum over fresh
    uint64_t block_ps = 0;              // as of the last take()
    std::vector<Pending> pending;
    uint64_t heard = 0;  // for forgetting
  };
  struct Id {
    uint32_t device;
    uint64_t key;
    bool operator==(const Id&) const = default;
  };
  struct Hash {
    size_t operator()(const Id& id) const { return size_t(id.key ^ (uint64_t(id.device) << 48)); }
  };
  bool device_of(const UserGpu& from, uint32_t* device);
  Entry& entry_of(uint32_t device, uint64_t key);
  void add(Entry& entry, uint64_t blocks, uint64_t duration_ns);
  void forget_some();

  Limits limits_;
  std::vector<UserGpu> devices_;
  std::unordered_map<Id, Entry, Hash> entries_;
  uint64_t clock_ = 0;  // counts events
  bool fresh_ = false;
};

// GPU time per block, picoseconds, of a launch whose durations these are: a low quantile, because neighbours,
// time slices and preemption only ever add.
uint64_t block_ps(const profiles::DurationHistogram& durations, double blocks);

// Joins neighbouring buckets until there are at most `most`.
void coarsen(profiles::DurationHistogram& histogram, size_t most);

}  // namespace tessera::learning
