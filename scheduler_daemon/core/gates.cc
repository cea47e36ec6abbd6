// Gates on the device (ipc/abi/gate.h): who has a page, who may store into it, and what the daemon itself stores. A client
// waits on the device only while every protected client of its GPU has mapped its page and closes it by itself.
#include <algorithm>

#include "ipc/channel/gate.h"
#include "scheduler_daemon/core/gpu.h"

namespace tessera::core {

namespace abi = ipc::abi;

namespace {

bool closes_gates(const Client& c) {
  return c.is_protected() && c.pulse_sealed && !c.passthrough;
}

uint8_t byte_of(const Client& best_effort, uint32_t byte) {
  return ipc::gate_byte(*best_effort.gate_page(), byte).load(std::memory_order_acquire);
}

void set_byte(const Client& best_effort, uint32_t byte, uint8_t value) {
  ipc::gate_byte(*best_effort.gate_page(), byte).store(value, std::memory_order_seq_cst);
}

// `clients` are those of that GPU.
bool is_owned(const std::vector<Client*>& clients, const Uuid& gpu, uint32_t byte) {
  return std::ranges::any_of(clients, [&](const Client* c) { return c->on(gpu).gate_byte == byte; });
}

bool wants_gate(const Settings& settings, const Client& client) {
  if (client.is_protected() || client.gang != nullptr) return false;
  return (settings.gate == abi::kGateDevice && client.gate_choice != abi::kGateThread) ||
         (settings.gate == abi::kGateAuto && client.gate_choice == abi::kGateDevice);
}

}  // namespace

// A byte for each protected client, while there are some; a page for each client that wants one.
void Gpu::assign_gates() {
  uint32_t taken = 0;  // bit per byte
  for (Client* c : clients_) {
    uint32_t& own = c->on(uuid_).gate_byte;
    if (own != 0 && !closes_gates(*c)) {
      for (Client* other : clients_)
        if (other->gate_page() != nullptr) set_byte(*other, own, abi::kGateByteOpen);
      own = 0;
    }
    taken |= own != 0 ? 1u << own : 0;
  }
  // Bytes of clients that left are free, but still closed if they died in a burst.
  for (uint32_t byte = abi::kGateFirstPeer; byte < abi::kGateFirstPeer + abi::kGatePeers; ++byte) {
    if ((taken >> byte & 1u) != 0) continue;
    const auto owner = std::find_if(clients_.begin(), clients_.end(), [&](const Client* c) {
      return closes_gates(*c) && c->on(uuid_).gate_byte == 0;
    });
    if (owner != clients_.end()) (*owner)->on(uuid_).gate_byte = byte;
    for (Client* c : clients_)
      if (c->gate_page() != nullptr)
        set_byte(*c, byte, owner != clients_.end() ? abi::kGateUnmapped : abi::kGateByteOpen);
  }
  for (Client* c : clients_) {
    if (!wants_gate(common_.settings, *c) || c->gate_page() != nullptr) continue;
    base::Result<ipc::GateMemory> gate = ipc::create_gate(c->id);
    if (!gate.ok()) continue;  // out of descriptors: the thread asks
    c->gate = std::move(*gate);
    for (uint32_t byte = abi::kGateFirstPeer; byte < abi::kGateFirstPeer + abi::kGatePeers; ++byte) {
      set_byte(*c, byte, is_owned(clients_, uuid_, byte) ? abi::kGateUnmapped : abi::kGateByteOpen);
    }
    set_gate(*c);
  }
}

// A client that comes to a further GPU waits in its threads from now on, as gangs do. What waits behind its gate goes.
void take_gate(Client& client) {
  if (client.gate_page() == nullptr) return;
  ipc::override_gate(*client.gate_page(), abi::kGateDaemonOpens, true);
  client.gate = {};
  client.gate_told = client.gate_ready = client.on_device = false;
  client.gate_shut_since_ns = 0;
}

const char* Gpu::no_device_gate(const Client& client) const {
  if (client.gang != nullptr) return "it is one of a gang, whose collectives must not wait there";
  if (common_.settings.gate == abi::kGateThread) return "[policy] gate = \"thread\"";
  if (client.gate_choice == abi::kGateThread)
    return "its driver or its settings (TESSERA_GATE, CUDA_DEVICE_MAX_CONNECTIONS=1, CUDA_LAUNCH_BLOCKING=1) "
           "do not allow "
           "another";
  if (!wants_gate(common_.settings, client))
    return "nobody asks for another (TESSERA_GATE=device, or [policy] gate = \"device\")";
  if (!client.gate_ready) return "its GPU does not read the gate yet";
  for (const Client* c : clients_) {
    if (!c->is_protected() || !c->pulse_sealed || c->passthrough) continue;
    const uint32_t byte = c->on(uuid_).gate_byte;
    if (byte == 0) return "more protected clients are there than a gate has places for";
    if (byte_of(client, byte) == abi::kGateUnmapped) return "a protected client has not taken its place yet";
  }
  return nullptr;
}

std::string Gpus::gate_of(const Client& client) const {
  if (client.is_protected() || client.gpus.empty() || client.dying) return "";
  const auto gpu = gpus_.find(client.gpus.front().uuid);
  const char* why = gpu == gpus_.end() ? nullptr : gpu->second.no_device_gate(client);
  return why == nullptr ? "device" : std::string("thread: ") + why;
}

// This protected client is idle, and its gaps are waited out, or it opens by itself and did not, because it was stopped.
void Gpu::open_gates(const Client& idle, uint64_t now_ns) {
  const uint32_t byte = idle.on(uuid_).gate_byte;
  if (byte == 0) return;
  for (Client* c : clients_) {
    if (c->gate_page() == nullptr) continue;
    const uint8_t seen = byte_of(*c, byte);
    if (seen == abi::kGateUnmapped || idle.busy(now_ns)) continue;
    c->gate_shut_since_ns = 0;
    // A burst of the same number, 128 later, may have begun since: it stored its byte after its pulse.
    if (ipc::reopen_gate(*c->gate_page(), byte, seen) && idle.busy(now_ns)) set_byte(*c, byte, seen);
  }
}

// Byte 0 is the daemon's, and so is the byte of a client that leaves it closed after its bursts. Others open by themselves.
// A byte that is nobody's may be closed all the same: its client began a burst before it read that it has none any more.
void Gpu::note_gates(uint64_t now_ns) const {
  for (Client* c : clients_) {
    if (c->gate_page() == nullptr) continue;
    for (uint32_t byte = abi::kGateFirstPeer; byte < abi::kGateFirstPeer + abi::kGatePeers; ++byte)
      if (byte_of(*c, byte) != abi::kGateByteOpen && !is_owned(clients_, uuid_, byte))
        set_byte(*c, byte, abi::kGateByteOpen);
    bool shut = byte_of(*c, abi::kGateTurnByte) == 0;
    for (const Client* owner : clients_) {
      const uint32_t byte = owner->on(uuid_).gate_byte;
      shut |= byte != 0 && owner->terms.keeps_closed && byte_of(*c, byte) != abi::kGateByteOpen;
    }
    shut = shut && byte_of(*c, abi::kGateOverrideByte) == 0;
    if (!shut)
      c->gate_shut_since_ns = 0;
    else if (c->gate_shut_since_ns == 0)
      c->gate_shut_since_ns = now_ns;
  }
}

}  // namespace tessera::core
