// The helper thread's half of learnt.h: takes the daemon's table, tells it what our keys stand for.
// Allocates.
#include <new>

#include "interpose/gate/learnt.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kToldPerStep = 32;

constinit void* g_pages = nullptr;  // of the table in use; helper thread only
constinit size_t g_pages_bytes = 0;

}  // namespace

void adopt_learnt(ipc::Mapping&& page) {
  if (!page.valid()) return;
  auto checked = ipc::check_learnt(page.data(), page.bytes());
  auto* table = checked.ok() ? new (std::nothrow) ipc::LearntTable(*checked) : nullptr;
  if (!table) return;
  const size_t bytes = page.bytes();
  void* pages = page.leak();
  g_learnt.table.store(table, std::memory_order_release);
  if (g_pages) ipc::drop_memory(g_pages, g_pages_bytes);  // a launch that still looks there finds nothing
  g_pages = pages;
  g_pages_bytes = bytes;
  for (KernelSlot& slot : g_kernels) {
    if (slot.handle.load(std::memory_order_acquire) <= 1) continue;
    KernelRecord* kernel = slot.record.load(std::memory_order_acquire);  // pairs with set_kernel
    if (!kernel) continue;
    if (const uint32_t learnt = learnt_class(kernel->loaded.hash))
      kernel->learnt_class.store(learnt, kRelaxed);
  }
}

void forget_told() {
  for (ShapeName& name : g_names) {
    uint32_t told = kTold;
    name.state.compare_exchange_strong(told, kNamed, kRelaxed);
  }
  g_learnt.new_names.store(1, kRelaxed);
}

void tell_shapes(const ipc::Attachment& attachment) {
  if (!attachment.keeps_profiles || g_learnt.new_names.exchange(0, std::memory_order_acquire) == 0) return;
  int told = 0;
  for (uint32_t i = 0; i < kTimings; i++) {
    ShapeName& name = g_names[i];
    if (name.state.load(std::memory_order_acquire) != kNamed) continue;
    const KernelRecord& k = *name.kernel;
    const ipc::KernelIdentity identity{g_timings[i].key.load(kRelaxed),
                                       k.loaded.image_hash,
                                       name.blocks,
                                       {name.block[0], name.block[1], name.block[2]},
                                       name.shared_bytes,
                                       k.loaded.name};
    if (++told > kToldPerStep || !ipc::name_kernel(attachment, identity)) {
      g_learnt.new_names.store(1, kRelaxed);  // the rest next time
      return;
    }
    name.state.store(kTold, kRelaxed);
  }
}

bool all_told() {
  for (const ShapeName& name : g_names)
    if (name.state.load(kRelaxed) == kNamed) return false;
  return true;
}

void publish_learnt(const DaemonLink* link) {
  ipc::store(link->signals->unknown_estimates, g_learnt.unknown.load(kRelaxed), kRelaxed);
  ipc::store(link->signals->learnt_estimates, g_learnt.adopted.load(kRelaxed), kRelaxed);
}

}  // namespace tessera::gate
