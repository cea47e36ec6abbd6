// The word of the gate on the device (abi::GatePage): how its bytes are stored. Inline, no system call, no allocation: the
// first launch of a protected burst closes by it. The page of a peer is untrusted; whatever stands in it only delays or
// lets pass that peer's own work.
//
// Closing is never lost: a byte holds the number of its burst, and whoever opens it names the number that it saw. A burst
// that began since has stored another one, and the exchange fails.
#pragma once

#include <atomic>
#include <bit>

#include "base/length_class.h"
#include "ipc/abi/gate.h"

namespace tessera::ipc {

static_assert(std::endian::native == std::endian::little, "byte 0 is the least of the word");

static_assert(abi::kGateClasses == base::kLengthClasses);

inline std::atomic_ref<uint8_t> byte_of(uint64_t& word, uint32_t byte) {
  return std::atomic_ref<uint8_t>(reinterpret_cast<uint8_t*>(&word)[byte]);
}
inline std::atomic_ref<uint8_t> gate_byte(abi::GatePage& page, uint32_t byte) {
  return byte_of(page.word, byte);
}

constexpr bool passes_gate(uint64_t word, uint32_t length_class) {  // as the device compares
  return int64_t(word - abi::gate_value(length_class)) >= 0;
}
// For work of any length.
inline bool gate_is_open(abi::GatePage& page) {
  return passes_gate(std::atomic_ref(page.word).load(std::memory_order_relaxed), abi::kGateClasses - 1);
}

// A protected client, at the start of a burst, after its pulse says busy. seq_cst: pairs with reopen_gate, whose caller
// looks at the pulse afterwards.
inline void close_gate(abi::GatePage& page, uint32_t byte, uint64_t burst) {
  gate_byte(page, byte).store(uint8_t(burst & abi::kGateBurstMask), std::memory_order_seq_cst);
}

// The burst that closed it is over. False: another one closed it since, or it is open. The caller then looks at the pulse
// again, because numbers repeat, and closes if it is busy.
inline bool reopen_gate(abi::GatePage& page, uint32_t byte, uint8_t seen) {
  return seen != abi::kGateByteOpen &&
         gate_byte(page, byte).compare_exchange_strong(seen, abi::kGateByteOpen, std::memory_order_seq_cst);
}

inline void override_gate(abi::GatePage& page, abi::GateOverride who, bool open) {
  for (uint64_t* word : {&page.word, &page.burst_word}) {
    const std::atomic_ref<uint8_t> byte = byte_of(*word, abi::kGateOverrideByte);
    if (open)
      byte.fetch_or(who, std::memory_order_seq_cst);
    else
      byte.fetch_and(uint8_t(~who), std::memory_order_seq_cst);
  }
}

// The daemon: the longest work that the client may begin now, as abi::gate_class; 0: nothing.
inline void set_gate_turn(abi::GatePage& page, uint8_t longest) {
  for (uint64_t* word : {&page.word, &page.burst_word})
    byte_of(*word, abi::kGateTurnByte).store(longest, std::memory_order_seq_cst);
}

}  // namespace tessera::ipc
