#include "interpose/gate/learnt.h"

#include "interpose/gate/operation.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;

const abi::LearntSlot* find(uint64_t key) {
  const ipc::LearntTable* table = g_learnt.table.load(std::memory_order_acquire);
  return table ? table->find(key) : nullptr;
}

}  // namespace

constinit Learnt g_learnt = {};
constinit ShapeName g_names[kTimings] = {};

uint64_t estimate_kernel(Timing* t, uint64_t blocks, uint64_t kernel) {
  if (t && t->block_ps.load(kRelaxed) != 0) [[likely]]
    return estimate_of(t, blocks);
  const abi::LearntSlot* known = t ? find(t->key.load(kRelaxed)) : nullptr;
  if (!known || known->block_ps == 0) {
    if (const uint64_t expected_ns = expected_below_call(kernel, blocks)) return expected_ns;
    g_learnt.unknown.fetch_add(1, kRelaxed);
    return estimate_of(nullptr, blocks);
  }
  // Two threads may both see an empty entry: they store the same.
  t->block_ps.store(known->block_ps, kRelaxed);
  g_learnt.adopted.fetch_add(1, kRelaxed);
  return estimate_of(t, blocks);
}

uint32_t learnt_class(uint64_t kernel_hash) {
  const abi::LearntSlot* known = find(kernel_hash);
  return known ? known->resource_class & 3u : 0;
}

void note_shape(const Timing* t, const LaunchCall& launch, const KernelRecord* kernel) {
  if (!t || !kernel || kernel->loaded.image_hash == 0) return;  // a handle means nothing to another process
  ShapeName& name = g_names[t - g_timings];
  uint32_t state = name.state.load(kRelaxed);
  if (state != kNameless || !name.state.compare_exchange_strong(state, kWriting, kRelaxed)) return;
  name.kernel = kernel;
  name.blocks = launch.blocks();
  for (int i = 0; i < 3; i++) name.block[i] = launch.block[i];
  name.shared_bytes = launch.shared_bytes;
  name.state.store(kNamed, std::memory_order_release);
  g_learnt.new_names.store(1, std::memory_order_release);  // pairs with the exchange in tell_shapes
}

}  // namespace tessera::gate
