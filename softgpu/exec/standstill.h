// Does a grid stand still for ever? Its blocks may poll what others of them write, so a block that only gives
// way is no news. But what a block does until it gives way follows from its registers, its place, its shared
// and local memory and what it reads. If all blocks come back to the same state while no write of theirs has
// changed a byte, then they do so for ever, unless someone else writes. Loops that count or read a clock never
// come back, so they are never found.
//
// Each worker looks now and then whether its blocks come back. If they do, it audits its passes: every access is
// noted. A worker whose passes change nothing is still; when all are at the same time, the grid is. Called by
// run.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "softgpu/exec/machine.h"

namespace tessera::softgpu::exec {

struct Cluster;
struct Grid;

// Records accesses of one worker's blocks to global memory in a pass. One thread.
struct Audit {
  struct Write {
    uint64_t begin;
    std::vector<char> before;
  };
  const Op* op = nullptr;          // that runs
  bool changed = false;            // a byte, or something that cannot be compared
  std::vector<Write> writes;       // of op
  std::set<uint64_t> allocations;  // that are read
  Warp* reader = nullptr;          // of the first access, where and to what
  const Op* read_op = nullptr;
  uint64_t read_address = 0;

  void note_write(uint64_t begin, uint64_t end);
  void note_access(Warp& w, uint64_t address, uint64_t allocation);
  const Op* run(Warp& w, const Op* next);  // one operation
};

// The grid's side. Guarded by `mutex`.
struct Standstill {
  std::mutex mutex;
  unsigned workers = 0;    // that have blocks
  unsigned still = 0;      // of those, whose last cycle changed nothing
  unsigned confirmed = 0;  // of those, with a whole cycle since all are still
  uint64_t epoch = 0;      // changes whenever one of them joins or leaves
  uint64_t cycles = 0, next_question = 0;
  bool nobody_writes = false;  // so it was answered, since all are still
  std::set<uint64_t> allocations;
};

class StandstillWatch {
 public:
  explicit StandstillWatch(Worker& worker);
  ~StandstillWatch();
  void moved();  // a block ended, or came in
  // After a pass in which neither happened. Raises the fault of a grid that stands still for ever.
  void after_pass(const std::vector<std::unique_ptr<Cluster>>& active, uint64_t waiting_blocks);

 private:
  void leave();
  bool join_or_confirm();  // with the mutex; true: all workers have confirmed
  void question(const std::vector<std::unique_ptr<Cluster>>& active, uint64_t waiting_blocks);

  Worker& worker_;
  Grid& grid_;
  Audit audit_;
  enum class Phase : uint8_t { kQuiet, kLooking, kAuditing };
  Phase phase_ = Phase::kQuiet;
  uint64_t quiet_passes_ = 0, next_look_;
  uint64_t state_ = 0;  // at the beginning of the cycle
  unsigned cycle_passes_ = 0;
  uint64_t cycle_epoch_ = 0;  // Standstill::epoch at the beginning of the cycle
  bool joined_ = false;
  bool confirmed_ = false;  // in this epoch
};

}  // namespace tessera::softgpu::exec
