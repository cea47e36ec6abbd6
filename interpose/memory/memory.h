// The process's books of device memory (ledger.h) under a lock, what of them the daemon sees, and the limits that are for
// this process. Called by hooks around the driver's own calls, by any thread of the program, and by the helper thread.
// No call of the driver is made under the lock; nothing here changes what the driver answers, but for a limit.
//
//   allocation   reserve() -> the driver's call -> settle(), or cancel() if it failed
//   release      take() or release() -> the driver's call -> freed(), or kept() if it failed
#pragma once

#include <pthread.h>

#include <atomic>

#include "interpose/memory/ledger.h"
#include "interpose/state/lock.h"
#include "interpose/state/process.h"
#include "interpose/state/state.h"

namespace tessera::memory {

namespace abi = ipc::abi;

// A call of the program itself, in a process that is no forked child.
inline bool counting() {
  return state::live() && !state::is_nested();
}

using state::Lock;
extern pthread_mutex_t
    g_books;  // guards the ledger and the rows that the daemon sees; held for no call of the driver
extern pthread_mutex_t g_pools;  // no pool ends while the driver is asked about it; taken before g_books

// Bytes of allowances. Which of them, because a limit may come or go between a reservation and its end.
struct Reservation {
  int device = kNoDevice;
  uint64_t bytes = 0;
  bool own = false;
  uint32_t shared = 0;   // of which daemon's allowance; 0: none
  bool refused = false;  // a limit was in the way
};

// While it lives, an allocation on that device is under way. Waits first while room is kept for a client that comes back, as
// long as a daemon says so.
class UnderWay {
 public:
  explicit UnderWay(int device);
  ~UnderWay();
  UnderWay(const UnderWay&) = delete;
};

struct Place {  // of the calling thread
  int device = kNoDevice;
  uint64_t context = 0;
};
Place place();

// False: a limit is in the way, and the program's call answers CUDA_ERROR_OUT_OF_MEMORY. May wait for the daemon's answer.
bool reserve(int device, uint64_t bytes, Reservation* out);
void count_refusal(int device);  // the program's call was answered so
void cancel(const Reservation& reservation);

Ledger& books();                    // under g_books
uint64_t begin_change(int device);  // under g_books; what is used now
// Under g_books: the change is over. The reservation covers what it took.
void end_change(const Reservation& reservation, uint64_t used_before);

template <class F>
void settle(const Reservation& reservation, F&& change) {
  const Lock lock(g_books);
  const uint64_t before = begin_change(reservation.device);
  change(books());
  end_change(reservation, before);
}
// Before the first use of a device's memory, so that the daemon has a row for it, and an attachment that comes later tells
// of it. Without g_books, because the driver is asked. kNoDevice: nothing.
void begin_device(int device);
// A change of which no allocation was reserved; what it takes or frees is settled with the allowances all the same.
template <class F>
void change(int device, F&& f) {
  begin_device(device);
  settle({.device = device}, f);
}
template <class F>
void change_all(F&& f) {  // of any device
  const Lock lock(g_books);
  uint64_t before[kDevices];
  for (int i = 0; i < kDevices; ++i) before[i] = begin_change(i);
  f(books());
  for (int i = 0; i < kDevices; ++i) end_change({.device = i}, before[i]);
}

struct Taken {  // out of the books for the time of a call
  Item item;
  bool known = false;
  Reservation back;  // what goes back to the allowances when the driver has let go
};
Taken take(Space space, uint64_t value);
Taken release_physical(uint64_t handle);
void freed(const Taken& taken);
void kept(const Taken& taken);
void context_ended(CUcontext context);

// The pool's index, learnt from the driver if it is new. Growing<Pool>::kNone: no room for it.
uint32_t pool_of(CUmemoryPool pool);
// Asks the driver how much pools hold: one pool, those of which something was freed, or all (`all`).
void look_at_pool(uint32_t pool);
void look_at_pools(bool all);
extern constinit std::atomic<bool> g_look_at_pools;  // something was freed into one
inline void synchronised() {                         // a call returned when work had ended
  if (g_look_at_pools.load(std::memory_order_relaxed)) [[unlikely]]
    look_at_pools(false);
}
// Set once some graph allocates memory: graphs then hold memory, too.
extern constinit std::atomic<bool> g_graphs_allocate;
void look_at_graphs(int device);
bool graph_may_allocate(uint64_t bytes);  // a graph is going to; false: a limit is in the way
inline void graph_changed() {
  if (g_graphs_allocate.load(std::memory_order_relaxed)) [[unlikely]]
    look_at_graphs(place().device);
}

// Set once an event was exported to or imported from another process; relaxed. It stays: events are destroyed without us.
extern constinit std::atomic<bool> g_shares_events;

// The least limit that is for this process on that device, and what of it is free. False: none.
struct Limit {
  uint64_t bytes = 0, free_bytes = 0;
};
bool limit_of(int device, Limit* out);
// By NVML's name of it ("GPU-...", "MIG-..."). Also before the driver's first call, when nothing is used yet.
bool limit_of_gpu(const char* gpu, Limit* out);
// The process's memory on a device, by NVML's name of it. False: nothing, or the device is not known.
struct HeldOn {
  char gpu[48];
  uint64_t bytes;
};
bool held_on(int device, HeldOn* out);
// Is the device one of those that the daemon knows this process on? They are the first kMemoryDevices: that of the first context,
// and those on which it allocated or asked for memory since, in that order.
bool has_row(int device);
// Helper thread: what the process has on either GPU is from now on said to be on the other one.
void exchange_gpus(const CUuuid& one, const CUuuid& other);
bool has_limit(int device);  // as far as it is known; never waits
// True: beside what the program has itself there is room for `bytes` more, on the device and within its limits.
bool could_fit(int device, uint64_t bytes);
// Allocations of that many bytes more wait for room; the daemon is told. `since_ns`: one begins to; 0: one ends.
void count_waiting(int device, int64_t bytes, uint64_t since_ns);
bool beyond_limit(int device);  // more was taken than reserved, and it is too much

// Helper thread. `notify`: wakes the daemon.
// The first attempt begins: allocations wait for its end, for with it may come a limit, or the wish to keep them out.
void attaching();
void attaching_ended();  // it is attached, or there is no daemon, or none that answers in time
void adopt(abi::MemoryTable* table, uint32_t answer_within_ms, void (*notify)() noexcept);
void withdraw();
void acknowledge_kept();  // once no allocation is under way that does not know of it

}  // namespace tessera::memory
