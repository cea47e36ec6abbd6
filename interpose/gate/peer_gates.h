// Protected client: the gates on the device (ipc/abi/gate.h) of the best-effort clients on its GPU. The first launch of a
// burst closes them, the end of the burst opens them again, unless the lease says that the daemon does. Launching threads
// and whoever ends a burst store; the helper thread keeps the list. One store per best-effort client and burst; no system
// call, no allocation, no lock.
#pragma once

#include <atomic>

#include "ipc/abi/gate.h"
#include "ipc/channel/map.h"

namespace tessera::gate {

// More best-effort clients at once than this wait in their threads: the daemon counts those that have a gate.
inline constexpr uint32_t kPeerGates = 32;

struct PeerGate {
  std::atomic<ipc::abi::GatePage*> page;  // null: none. Release by the helper; its memory is never unmapped
  std::atomic<uint32_t> byte;             // ours, of its word
};
extern constinit PeerGate g_peer_gates[kPeerGates];
extern constinit std::atomic<uint32_t> g_n_peer_gates;

// After the pulse says busy, in the thread that begins the burst.
void close_peer_gates(uint64_t burst);
// After the pulse says idle, and nothing was found to have begun meanwhile. The burst that ended was `burst`.
void open_peer_gates(uint64_t burst);

// Helper thread.
void watch_peer_gate(uint32_t client_id, uint32_t byte, ipc::Mapping&& page);
void forget_peer_gate(uint32_t client_id);
void forget_peer_gates();
// In a forked child: its parent's gates, of either kind, are not its own. Stores only.
void forget_in_child();

}  // namespace tessera::gate
