#include "interpose/gate/credit.h"

#include "interpose/gate/ask.h"

namespace tessera::gate {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void remember(Thread& t, const LaunchCall& launch, uint64_t expected_ns) {
  t.memo = {launch.function,
            launch.stream.stream,
            launch.stream.flavour,
            {launch.grid[0], launch.grid[1], launch.grid[2]},
            {launch.block[0], launch.block[1], launch.block[2]},
            launch.shared_bytes,
            g_state.epoch.load(kRelaxed),
            lane_key(launch.stream),
            expected_ns,
            launch.blocks()};
}

// What is left of the last credit stays, as long as it is for the same stream and daemon.
uint64_t wanted_credit_ns(ThreadSlot& slot, const Link* link, driver_api::StreamArg stream,
                          uint64_t window_ns, uint64_t estimate_ns) {
  Credit& c = slot.credit;
  if (c.link != link || c.lane_key != lane_key(stream)) settle_credit(slot);
  // Each thread completes its own work where it can: lanes and the window's word stay on its CPU then.
  poll_lane(*lane_of(stream));
  return admission::credit_wanted_ns(window_ns, c.left_ns.load(kRelaxed), estimate_ns);
}

void keep_credit(ThreadSlot& slot, const Link* link, uint32_t word, uint32_t epoch, uint64_t credit_ns,
                 driver_api::StreamArg stream) {
  Credit& c = slot.credit;
  c.link = link;
  c.word = word;
  c.epoch = epoch;
  anyone_busy(link, &c.bursts);
  c.lane.store(lane_of(stream), kRelaxed);
  c.lane_key = t_thread.lane_key;
  // Added, because a reclaimer may just have taken what was left; release: pairs with settle_credit's
  // exchange
  c.left_ns.fetch_add(credit_ns, std::memory_order_release);
}

uint64_t take_spent(ThreadSlot& slot, const Lane* lane) {
  Credit& c = slot.credit;
  if (c.spent_ns.load(kRelaxed) == 0 || c.lane.load(kRelaxed) != lane) return 0;
  return c.spent_ns.exchange(0, std::memory_order_acq_rel);  // a reclaimer may get here, too
}

void settle_credit(ThreadSlot& slot) {
  Credit& c = slot.credit;
  if (c.left_ns.load(kRelaxed) == 0 && c.spent_ns.load(kRelaxed) == 0) return;
  // Exchanges: owner and reclaimer may both get here, each nanosecond is given back once.
  const uint64_t spent = c.spent_ns.exchange(0, std::memory_order_acq_rel);
  const uint64_t left = c.left_ns.exchange(0, std::memory_order_acq_rel);
  Lane* lane = c.lane.load(kRelaxed);
  if (spent && lane)
    lane->enqueued.fetch_add(spent,
                             std::memory_order_release);  // marked with the next launch, or asked about
  if (left) release_reserved(g_state.link.load(std::memory_order_acquire), left);
}

void reclaim_credits() {
  begin_epoch();
  g_slow.heavy_fence();  // pairs with asymmetric_fence in enter_on_credit
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++)
    if (g_slots[i].credit.in_gate.load(std::memory_order_acquire) == 0) settle_credit(g_slots[i]);
}

}  // namespace tessera::gate
