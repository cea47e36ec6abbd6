// Objects that processes on one machine share: device memory by ticket, and events.
//
// A ticket names a range of a memfd of the exporting process; the importer opens that file through /proc, so
// both must belong to one user and see each other's process ids, and the exporter must be alive when the
// ticket is opened. Nothing in a ticket is believed: file identity and bounds are checked. Afterwards the
// pages live as long as anyone maps them. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

// 64 bytes at most: travels in CUipcMemHandle and CUmemPoolPtrExportData.
struct MemoryTicket {
  uint32_t magic;
  int32_t pid, fd;  // exporter, its descriptor of the file
  uint32_t zero;
  uint64_t inode;  // of the file
  uint64_t offset, bytes;
  uint64_t device;  // hash of the device's UUID
  uint64_t pool;    // number of the pool, 0 if none
};
static_assert(sizeof(MemoryTicket) <= 64);

uint64_t device_hash(const Context& context);
// 1 if the memory that begins there is not shareable.
CUresult make_ticket(const Context& context, uint64_t begin, uint64_t pool, MemoryTicket* ticket);
// Maps the range for this context; known to Memory as kImported from then on. 201 for a ticket of this very
// process, 205 if the exporter is gone, 400 for nonsense or another device. Opened again: the same address,
// counted.
CUresult open_ticket(const std::shared_ptr<Context>& context, const MemoryTicket& ticket, const void* pool,
                     uint64_t* address);
// False: no imported memory begins there.
bool close_ticket(uint64_t address);

// An interprocess event: one page shared by all who hold it. Records are numbered; a record is over when its
// slot holds its number, or a later one that took the slot.
struct EventPage {
  static constexpr uint64_t kSlots = 64;
  uint32_t magic;
  std::atomic<uint32_t> changes;  // futex word: grows with each completion
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> done[kSlots];
  std::atomic<int32_t> owner[kSlots];  // process that made the record
};

class SharedEvent {
 public:
  static std::shared_ptr<SharedEvent> create();                              // null: the host has no more
  static std::shared_ptr<SharedEvent> open(const CUipcEventHandle& handle);  // null: not an event, or gone
  ~SharedEvent();
  void describe(CUipcEventHandle* handle) const;
  uint64_t record();               // a new record of this process; returns its number
  void complete(uint64_t number);  // wakes whoever waits, in all processes
  uint64_t last() const { return page_->recorded.load(std::memory_order_acquire); }
  // A record whose process died counts as over: its work is gone.
  bool over(uint64_t number) const;
  // Waits until over() or about 20 ms; true: over.
  bool wait_some(uint64_t number) const;

 private:
  SharedEvent(int fd, EventPage* page) : fd_(fd), page_(page) {}
  static std::shared_ptr<SharedEvent> map(int fd);
  const int fd_;
  EventPage* const page_;
};

}  // namespace tessera::softgpu::driver
