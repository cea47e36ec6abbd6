// Gates on the device (ipc/abi/gate.h): who has a page, who may store into it, and what the daemon itself stores. A client
// waits on the device only while every protected client of its GPU has mapped its page and closes it by itself.
#include <algorithm>

#include "ipc/channel/gate.h"
#include "scheduler_daemon/core/core.h"

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

}  // namespace

bool Core::wants_gate(const Client& client) const {
  if (client.is_protected() || client.gang != nullptr) return false;
  return (common_.settings.gate == abi::kGateDevice && client.gate_choice != abi::kGateThread) ||
         (common_.settings.gate == abi::kGateAuto && client.gate_choice == abi::kGateDevice);
}

// A byte for each protected client, while there are some; a page for each client that wants one.
void Core::assign_gates(Gpu& gpu) {
  uint32_t taken = 0;  // bit per byte
  for (Client* c : gpu.clients) {
    uint32_t& own = c->on(gpu.uuid).gate_byte;
    if (own != 0 && !closes_gates(*c)) {
      for (Client* other : gpu.clients)
        if (other->gate_page() != nullptr) set_byte(*other, own, abi::kGateByteOpen);
      own = 0;
    }
    taken |= own != 0 ? 1u << own : 0;
  }
  // Bytes of clients that left are free, but still closed if they died in a burst.
  for (uint32_t byte = abi::kGateFirstPeer; byte < abi::kGateFirstPeer + abi::kGatePeers; ++byte) {
    if ((taken >> byte & 1u) != 0) continue;
    const auto owner = std::find_if(gpu.clients.begin(), gpu.clients.end(), [&](const Client* c) {
      return closes_gates(*c) && c->on(gpu.uuid).gate_byte == 0;
    });
    if (owner != gpu.clients.end()) (*owner)->on(gpu.uuid).gate_byte = byte;
    for (Client* c : gpu.clients)
      if (c->gate_page() != nullptr)
        set_byte(*c, byte, owner != gpu.clients.end() ? abi::kGateUnmapped : abi::kGateByteOpen);
  }
  for (Client* c : gpu.clients) {
    if (!wants_gate(*c) || c->gate_page() != nullptr) continue;
    base::Result<ipc::GateMemory> gate = ipc::create_gate(c->id);
    if (!gate.ok()) continue;  // out of descriptors: the thread asks
    c->gate = std::move(*gate);
    for (uint32_t byte = abi::kGateFirstPeer; byte < abi::kGateFirstPeer + abi::kGatePeers; ++byte) {
      set_byte(*c, byte, is_owned(gpu.clients, gpu.uuid, byte) ? abi::kGateUnmapped : abi::kGateByteOpen);
    }
    set_gate(*c);
  }
}

// A client that comes to a further GPU waits in its threads from now on, as gangs do. What waits behind its gate goes.
void Core::take_gate(Client& client) {
  if (client.gate_page() == nullptr) return;
  ipc::override_gate(*client.gate_page(), abi::kGateDaemonOpens, true);
  client.gate = {};
  client.gate_told = client.gate_ready = client.on_device = false;
  client.gate_shut_since_ns = 0;
}

// Does what tell_pulses does for pulses: tells a state, not a history.
ipc::Send Core::tell_gates(Client& client) {
  using ipc::Send;
  const std::vector<Gpu*> gpus = gpus_of(client);
  if (client.gate_page() != nullptr && !client.gate_told) {
    const abi::GateMemory m{ipc::make_header(abi::kGateMemory, sizeof m)};
    const Send sent = common_.send(client.connection, m, client.gate.fd.get());
    if (sent != Send::kSent) return sent;
    client.gate_told = true;
  }
  for (auto it = client.closing.begin(); it != client.closing.end();) {
    const bool kept = std::ranges::any_of(gpus, [&](const Gpu* gpu) {
      return client.on(gpu->uuid).gate_byte == it->second &&
             std::ranges::any_of(gpu->clients, [&](const Client* c) {
               return c->id == it->first && c->gate_page() != nullptr;
             });
    });
    if (kept) {
      ++it;
      continue;
    }
    const abi::PeerGone m{ipc::make_header(abi::kPeerGone, sizeof m), it->first, 0};
    const Send sent = common_.send(client.connection, m);
    if (sent != Send::kSent) return sent;
    it = client.closing.erase(it);
  }
  for (const Gpu* gpu : gpus) {
    const uint32_t byte = client.on(gpu->uuid).gate_byte;
    if (byte == 0) continue;
    for (const Client* owner : gpu->clients) {
      if (owner->gate_page() == nullptr || !owner->gate_ready || client.closing.contains(owner->id)) continue;
      const abi::PeerGate m{ipc::make_header(abi::kPeerGate, sizeof m), owner->id, byte};
      const Send sent = common_.send(client.connection, m, owner->gate.fd.get());
      if (sent != Send::kSent) return sent;
      client.closing[owner->id] = byte;
    }
  }
  return Send::kSent;
}

bool Core::on_gate_ready(Client& client, const ipc::Packet& packet) {
  const auto* ready = ipc::packet_as<abi::GateReady>(packet);
  if (ready == nullptr) return false;
  if (client.gate_page() == nullptr) return client.gpus.size() > 1;  // it was taken meanwhile
  client.gate_ready = ready->usable == 1;
  if (!client.gate_ready) client.gate_choice = abi::kGateThread;  // for good
  for (Gpu* gpu : gpus_of(client)) share_pulses(*gpu);
  return true;
}

const char* Core::no_device_gate(const Gpu& gpu, const Client& client) const {
  if (client.gang != nullptr) return "it is one of a gang, whose collectives must not wait there";
  if (common_.settings.gate == abi::kGateThread) return "[policy] gate = \"thread\"";
  if (client.gate_choice == abi::kGateThread)
    return "its driver or its settings (TESSERA_GATE, CUDA_DEVICE_MAX_CONNECTIONS=1, CUDA_LAUNCH_BLOCKING=1) "
           "do not allow "
           "another";
  if (!wants_gate(client))
    return "nobody asks for another (TESSERA_GATE=device, or [policy] gate = \"device\")";
  if (!client.gate_ready) return "its GPU does not read the gate yet";
  for (const Client* c : gpu.clients) {
    if (!c->is_protected() || !c->pulse_sealed || c->passthrough) continue;
    const uint32_t byte = c->on(gpu.uuid).gate_byte;
    if (byte == 0) return "more protected clients are there than a gate has places for";
    if (byte_of(client, byte) == abi::kGateUnmapped) return "a protected client has not taken its place yet";
  }
  return nullptr;
}

std::string Core::gate_of(const Client& client) const {
  if (client.is_protected() || client.gpus.empty() || client.dying) return "";
  const auto gpu = gpus_.find(client.gpus.front().uuid);
  const char* why = gpu == gpus_.end() ? nullptr : no_device_gate(gpu->second, client);
  return why == nullptr ? "device" : std::string("thread: ") + why;
}

// This protected client is idle, and its gaps are waited out, or it opens by itself and did not, because it was stopped.
void Core::open_gates(Gpu& gpu, const Client& idle, uint64_t now_ns) {
  const uint32_t byte = idle.on(gpu.uuid).gate_byte;
  if (byte == 0) return;
  for (Client* c : gpu.clients) {
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
void Core::note_gates(Gpu& gpu, uint64_t now_ns) const {
  for (Client* c : gpu.clients) {
    if (c->gate_page() == nullptr) continue;
    for (uint32_t byte = abi::kGateFirstPeer; byte < abi::kGateFirstPeer + abi::kGatePeers; ++byte)
      if (byte_of(*c, byte) != abi::kGateByteOpen && !is_owned(gpu.clients, gpu.uuid, byte))
        set_byte(*c, byte, abi::kGateByteOpen);
    bool shut = byte_of(*c, abi::kGateTurnByte) == 0;
    for (const Client* owner : gpu.clients) {
      const uint32_t byte = owner->on(gpu.uuid).gate_byte;
      shut |= byte != 0 && owner->terms.keeps_closed && byte_of(*c, byte) != abi::kGateByteOpen;
    }
    shut = shut && byte_of(*c, abi::kGateOverrideByte) == 0;
    if (!shut)
      c->gate_shut_since_ns = 0;
    else if (c->gate_shut_since_ns == 0)
      c->gate_shut_since_ns = now_ns;
  }
}

// Sets the client's gate to what its lease says.
void Core::set_gate(Client& client) {
  if (client.gate_page() == nullptr) return;
  const bool granted = client.terms.state == abi::kLeaseGranted;
  const bool beside =
      client.terms.state == abi::kLeaseFree || client.terms.packed || client.terms.passthrough;
  if (granted || beside) client.gate_shut_since_ns = 0;
  ipc::set_gate_turn(*client.gate_page(), granted ? abi::gate_class(client.length_class) : 0);
  ipc::override_gate(*client.gate_page(), abi::kGateDaemonOpens, beside);
}

}  // namespace tessera::core
