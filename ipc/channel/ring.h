// The record ring (abi::RecordRing): single producer, single consumer, in memory that both can write. Inline;
// the producer side is allocation-free and wait-free (gate), the consumer bounds and validates (daemon). head
// and tail count records for ever; the slot is the count modulo ring_slots (a power of two).
#pragma once

#include "ipc/abi/region.h"
#include "ipc/channel/atomic.h"

namespace tessera::ipc {

// Client, after a record: half of the ring was written since this was true last, so it is time that the daemon reads.
inline bool ends_half(const abi::RecordRing& ring, uint32_t slots) {
  return (load(ring.head, std::memory_order_relaxed) & (slots / 2 - 1)) == 0;
}

class RingWriter {  // client; one thread at a time
 public:
  RingWriter() = default;
  RingWriter(abi::RecordRing* ring, uint32_t slots) : ring_(ring), mask_(slots - 1) {
    head_ = load(ring->head, std::memory_order_relaxed);  // own word
  }
  // False: ring full, the record is dropped (the caller counts it in UsageLine::records_dropped).
  bool write(const abi::Record& record) {
    // Acquire: pairs with the reader's release of tail, so that the slot is no longer being copied out.
    uint64_t tail = load(ring_->tail, std::memory_order_acquire);
    if (head_ - tail > mask_) return false;
    copy(ring_->slots[head_ & mask_], record);
    store(ring_->head, ++head_, std::memory_order_release);  // pairs with the reader's acquire of head
    return true;
  }

 private:
  static void copy(abi::Record& slot, const abi::Record& r) {
    constexpr auto relaxed = std::memory_order_relaxed;  // published by head
    store(slot.kind, r.kind, relaxed);
    store(slot.request_kind, r.request_kind, relaxed);
    store(slot.resource_class, r.resource_class, relaxed);
    store(slot.key, r.key, relaxed);
    store(slot.duration_ns, r.duration_ns, relaxed);
    store(slot.end_ns, r.end_ns, relaxed);
    store(slot.blocks, r.blocks, relaxed);
  }
  abi::RecordRing* ring_ = nullptr;
  uint64_t mask_ = 0;
  uint64_t head_ = 0;
};

enum class RingRead { kRecord, kEmpty, kBadRecord, kBadHead };

class RingReader {  // daemon; keeps its own tail and never reads it back
 public:
  RingReader() = default;
  RingReader(abi::RecordRing* ring, uint32_t slots) : ring_(ring), slots_(slots) {}
  // kBadRecord: consumed and to be counted. kBadHead: head ran backwards or more than a ring ahead: the peer
  // is broken or hostile, disconnect it.
  RingRead read(abi::Record* out) {
    uint64_t head_untrusted =
        load(ring_->head, std::memory_order_acquire);  // pairs with the writer's release
    uint64_t available = head_untrusted - tail_;
    if (available == 0) return RingRead::kEmpty;
    if (available > slots_) return RingRead::kBadHead;
    const abi::Record& slot = ring_->slots[tail_ & (slots_ - 1)];
    constexpr auto relaxed = std::memory_order_relaxed;  // ordered by the acquire of head
    out->kind = load(slot.kind, relaxed);
    out->request_kind = load(slot.request_kind, relaxed);
    out->resource_class = load(slot.resource_class, relaxed);
    out->key = load(slot.key, relaxed);
    out->duration_ns = load(slot.duration_ns, relaxed);
    out->end_ns = load(slot.end_ns, relaxed);
    out->blocks = load(slot.blocks, relaxed);
    store(ring_->tail, ++tail_, std::memory_order_release);  // pairs with the writer's acquire
    return valid(*out) ? RingRead::kRecord : RingRead::kBadRecord;
  }

 private:
  static bool valid(const abi::Record& r) {
    constexpr uint64_t kHourNs = 3'600'000'000'000;  // no launch or burst is longer
    return (r.kind == abi::kRecordKernel || r.kind == abi::kRecordBurst) && r.resource_class <= 3 &&
           r.request_kind < abi::kRequestKinds && r.duration_ns <= kHourNs;
  }
  abi::RecordRing* ring_ = nullptr;
  uint64_t slots_ = 0;
  uint64_t tail_ = 0;
};

}  // namespace tessera::ipc
