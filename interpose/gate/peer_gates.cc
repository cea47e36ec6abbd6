#include "interpose/gate/peer_gates.h"

#include <sys/mman.h>

#include "interpose/gate/device_gate.h"
#include "ipc/channel/gate.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

struct Owner {  // helper thread only; one for each place
  uint32_t client_id = 0;
  void* mapped = nullptr;  // current or retired
};
constinit Owner g_owners[kPeerGates] = {};

uint32_t burst_now() {  // 0: idle
  const DaemonLink* link = g_state.link.load(kAcquire);
  return ipc::load(link->pulse->busy, std::memory_order_seq_cst);
}
bool busy() {
  return burst_now() != 0;
}

bool opened_by_daemon() {
  const DaemonLink* link = g_state.link.load(kAcquire);
  return ipc::load(link->lease->rights, kRelaxed).keeps_closed != 0;
}

// Numbers of bursts repeat: one that begins meanwhile may have closed it by the same number.
void reopen(abi::GatePage& page, uint32_t byte, uint8_t burst) {
  while (ipc::reopen_gate(page, byte, burst) && busy()) {
    ipc::close_gate(page, byte, burst);
    if (busy()) return;  // the end of that burst opens it
  }
}

}  // namespace

constinit PeerGate g_peer_gates[kPeerGates] = {};
constinit std::atomic<uint32_t> g_n_peer_gates{0};

void close_peer_gates(uint64_t burst) {
  const uint32_t n = g_n_peer_gates.load(kAcquire);
  if (n == 0) return;
  for (;;) {
    for (uint32_t i = 0; i < n; i++)
      if (abi::GatePage* page = g_peer_gates[i].page.load(kAcquire))
        ipc::close_gate(*page, g_peer_gates[i].byte.load(kRelaxed), burst);
    // Another thread that began the burst at the same time may have named it since. Its end opens by that name.
    const uint64_t named = burst_now();
    if (named == 0 || named == burst) return;
    burst = named;
  }
}

void open_peer_gates(uint64_t burst) {
  const uint32_t n = g_n_peer_gates.load(kAcquire);
  if (n == 0 || opened_by_daemon()) return;
  for (uint32_t i = 0; i < n; i++)
    if (abi::GatePage* page = g_peer_gates[i].page.load(kAcquire))
      reopen(*page, g_peer_gates[i].byte.load(kRelaxed), uint8_t(burst & abi::kGateBurstMask));
}

// It came closed. Whatever begins while it is put into the list closes it once more than needed.
void watch_peer_gate(uint32_t client_id, uint32_t byte, ipc::Mapping&& page) {
  if (!page.valid()) return;
  forget_peer_gate(client_id);  // another byte of the same page
  uint32_t at = kPeerGates;
  for (uint32_t i = kPeerGates; i-- > 0;)
    if (!g_peer_gates[i].page.load(kRelaxed)) at = i;
  if (at == kPeerGates) return;  // it stays closed for us: its client waits in its thread
  Owner& owner = g_owners[at];
  void* mapped = page.leak();
  if (owner.mapped) {  // where the retired page was: addresses are reused, no thread sees a hole
    void* moved =
        mremap(mapped, abi::kGateBytes, abi::kGateBytes, MREMAP_MAYMOVE | MREMAP_FIXED, owner.mapped);
    if (moved == MAP_FAILED) return;
    mapped = moved;
  }
  owner = {client_id, mapped};
  auto* gate = static_cast<abi::GatePage*>(mapped);
  g_peer_gates[at].byte.store(byte, kRelaxed);
  g_peer_gates[at].page.store(gate, std::memory_order_seq_cst);
  if (g_n_peer_gates.load(kRelaxed) < at + 1) g_n_peer_gates.store(at + 1, std::memory_order_seq_cst);
  // Now bursts close it. One that runs already did not; and the daemon sees that it is ours by its value.
  constexpr uint8_t kBefore = 0;  // the number of every 128th burst, which stores it again
  ipc::close_gate(*gate, byte, kBefore);
  if (!busy() && !opened_by_daemon()) reopen(*gate, byte, kBefore);
}

void forget_peer_gate(uint32_t client_id) {
  for (uint32_t i = 0; i < kPeerGates; i++) {
    if (g_owners[i].client_id != client_id || !g_peer_gates[i].page.load(kRelaxed)) continue;
    g_peer_gates[i].page.store(nullptr, kRelease);
    ipc::drop_memory(g_owners[i].mapped, abi::kGateBytes);
  }
}

void forget_peer_gates() {
  for (const Owner& owner : g_owners)
    if (owner.mapped) forget_peer_gate(owner.client_id);
}

void forget_in_child() {
  for (PeerGate& gate : g_peer_gates) gate.page.store(nullptr, kRelaxed);
  g_device_gate.blocked.store(0, kRelaxed);
  g_device_gate.word.store(0, kRelaxed);
  g_device_gate.page.store(nullptr, kRelaxed);
}

}  // namespace tessera::gate
