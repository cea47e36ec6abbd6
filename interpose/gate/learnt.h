// Knowledge of earlier runs. The first gated launch of a launch shape looks it up in the daemon's table (ipc/abi/learnt.h),
// so that nothing starts with a guess. In the other direction the helper thread tells the daemon what the keys in our
// records stand for. Lookups: any thread, no lock, no allocation. The helper thread adopts a table; its address is kept for
// ever, its memory until the next one.
#pragma once

#include "interpose/gate/launch.h"
#include "interpose/gate/timing.h"
#include "ipc/channel/client.h"
#include "ipc/channel/learnt.h"

namespace tessera::gate {

struct Learnt {
  // Helper thread stores (release), launches load (acquire); tables are never freed.
  std::atomic<const ipc::LearntTable*> table;
  std::atomic<uint64_t> unknown, adopted;  // launches without any estimate; shapes that the table knew
  std::atomic<uint32_t> new_names;         // there are entries of g_names to tell
};
extern constinit Learnt g_learnt;

// State of the name of a timing entry's key. Names lie beside the entries, because most launches never read them.
enum NameState : uint32_t { kNameless = 0, kWriting, kNamed, kTold };
struct ShapeName {
  std::atomic<uint32_t> state;  // kNamed: release by the launch that wrote the rest, acquire by the helper
  const state::KernelRecord* kernel;
  uint64_t blocks;
  uint32_t block[3], shared_bytes;
};
extern constinit ShapeName g_names[kTimings];

// estimate_of() for a kernel: a shape that was never measured here starts from the table, or from what the library call
// says that it belongs to (operation.h), or counts as unknown. `kernel`: as first_estimate.h knows it.
uint64_t estimate_kernel(Timing* t, uint64_t blocks, uint64_t kernel = 0);

// Returns the class of a kernel (by its record's hash) from an earlier profile; 0 = not known.
uint32_t learnt_class(uint64_t kernel_hash);

// This shape is about to be timed: its records carry `t`'s key. Once per shape.
void note_shape(const Timing* t, const LaunchCall& launch, const state::KernelRecord* kernel);

// Helper thread. adopt: the daemon's answer; classes reach the kernels that were looked up before it came.
void adopt_learnt(ipc::Mapping&& page);
void forget_told();  // another daemon: it is told everything again
void tell_shapes(const ipc::Attachment& attachment);
bool all_told();  // any thread
void publish_learnt(const state::DaemonLink* link);

}  // namespace tessera::gate
