#include "interpose/memory/memory.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "base/clock.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"

namespace tessera::memory {
namespace {

using driver_api::real;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kLookAgainNs = 20'000'000;  // while an answer is waited for: is the daemon lost?
constexpr int kMostQuestions = 100;            // in a row, where others take what was granted

struct PerDevice {
  std::atomic<abi::MemoryDevice*> row;  // null: no daemon, or no room for it; written under g_books
  std::atomic<uint32_t> asked;          // 1: the daemon has said whether there is a limit
  std::atomic<int64_t> own_left;        // of the program's own limit; valid if `own_begun`
  bool own_begun;                       // under g_books
  std::atomic<bool> begun;              // what is constant of it is known; written under g_books
  // Under g_books. What the row says is left follows every change: the number of the attachment; 0: it does not.
  uint32_t shared;
  bool has_uuid;         // under g_books
  uint64_t total_bytes;  // of the device, as the driver says, 0: not known; constant once has_uuid
  CUuuid uuid;           // likewise
  uint64_t waits_bytes;  // under g_books
};
constinit PerDevice g_devices[kDevices] = {};
constinit int8_t g_used[kDevices] = {};  // under g_books; devices in the order of their use
constinit uint32_t g_n_used = 0;         // likewise
constinit Ledger g_ledger;
constinit abi::MemoryTable* g_table = nullptr;   // under g_books
constinit uint32_t g_waiting = 0;                // under g_books; allocations that wait for room
constinit uint64_t g_waits_since_ns = 0;         // likewise; the oldest of them, as far as it is known
constinit uint32_t g_attachment = 0;             // under g_books; number of the latest
constinit std::atomic<uint32_t> g_attaching{0};  // futex word
constinit uint64_t g_answer_within_ns = 0;       // under g_asking
using Notify = void (*)() noexcept;
constinit Notify g_notify = nullptr;                   // under g_asking
pthread_mutex_t g_asking = PTHREAD_MUTEX_INITIALIZER;  // one question at a time; taken before g_books

bool is_device(int device) {
  return device >= 0 && device < kDevices;
}

// Under g_books. Stores one by one: a reader may see a change half done.
void publish(int device) {
  if (!g_table) return;
  ipc::store(g_table->totals.pinned_bytes, g_ledger.pinned_bytes(), kRelaxed);
  ipc::store(g_table->totals.untracked, g_ledger.untracked(), kRelaxed);
  ipc::store(g_table->totals.waits_since_ns, g_waits_since_ns, kRelaxed);
  if (!is_device(device)) return;
  abi::MemoryDevice* row = g_devices[device].row.load(kRelaxed);
  if (!row) return;
  const Figures& f = g_ledger.of(device);
#define TS_ROW(field, name, meaning) ipc::store(row->field, f.field, kRelaxed);
  TS_MEMORY_FIGURES(TS_ROW)
#undef TS_ROW
  ipc::store(row->waits_bytes, g_devices[device].waits_bytes, kRelaxed);
}

// Under g_books. The device's row in the daemon's table: its own, or the first that is free.
void seat(int device) {
  PerDevice& d = g_devices[device];
  if (!g_table || !d.has_uuid || d.row.load(kRelaxed)) return;
  for (uint32_t i = 0; i < abi::kMemoryDevices; ++i) {
    abi::MemoryDevice& row = g_table->devices[i];
    if (ipc::load(row.ready, kRelaxed) != 0) continue;
    memcpy(row.uuid, d.uuid.bytes, sizeof row.uuid);
    ipc::store(row.total_bytes, d.total_bytes, kRelaxed);
    ipc::store(row.ready, 1u, std::memory_order_release);
    d.asked.store(0, kRelaxed);
    d.shared = 0;
    d.row.store(&row, std::memory_order_release);  // pairs with the acquire in reserve()
    publish(device);
    return;
  }
}

}  // namespace

// The device of the first context has the first row.
void begin_device(int device) {
  if (!is_device(device)) return;
  if (g_devices[device].begun.load(std::memory_order_acquire)) [[likely]]  // pairs with the release below
    return;
  if (const int first = state::device(); first != device && is_device(first)) begin_device(first);
  CUuuid uuid{};
  size_t total_bytes = 0;
  const bool known = real().cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS;
  if (real().cuDeviceTotalMem_v2(&total_bytes, device) != CUDA_SUCCESS) total_bytes = 0;
  const Lock lock(g_books);
  PerDevice& d = g_devices[device];
  if (!d.own_begun) {
    d.own_left.store(int64_t(state::config().memory_limit_bytes - g_ledger.of(device).used_bytes), kRelaxed);
    d.own_begun = true;
  }
  if (!known || d.has_uuid) return;
  d.uuid = uuid, d.total_bytes = total_bytes, d.has_uuid = true;
  g_used[g_n_used++] = int8_t(device);
  seat(device);
  d.begun.store(true, std::memory_order_release);
}

namespace {

std::atomic_ref<int64_t> left_in(abi::MemoryDevice* row) {
  return std::atomic_ref<int64_t>(row->left_bytes);
}

// Relaxed everywhere: the word is a number by itself, nothing else is published by it.
bool take_from(std::atomic<int64_t>& word, int64_t n) {
  int64_t left = word.load(kRelaxed);
  while (left >= n)
    if (word.compare_exchange_weak(left, left - n, kRelaxed)) return true;
  return false;
}
bool take_from(std::atomic_ref<int64_t> word, int64_t n) {
  int64_t left = word.load(kRelaxed);
  while (left >= n)
    if (word.compare_exchange_weak(left, left - n, kRelaxed)) return true;
  return false;
}

enum class Answer { kYes, kRefused, kSilent };

// Asks the daemon about one device. The row may be withdrawn meanwhile: then nobody answers.
Answer ask(PerDevice& d, abi::MemoryDevice* row, uint64_t wanted_bytes) {
  const base::ErrnoGuard keep_errno;
  const Lock asking(g_asking);
  if (!g_notify) return Answer::kSilent;
  // It owes an answer already: nobody waits for it a second time.
  if (ipc::load(row->answered, kRelaxed) != ipc::load(row->question, kRelaxed)) return Answer::kSilent;
  const uint32_t number = ipc::load(row->question, kRelaxed) + 1;
  ipc::store(row->wanted_bytes, wanted_bytes, kRelaxed);
  ipc::store(row->question, number, std::memory_order_release);  // pairs with the daemon's acquire
  g_notify();
  const uint64_t until_ns = base::now_ns() + g_answer_within_ns;
  for (;;) {
    const uint32_t answered = ipc::load(row->answered, std::memory_order_acquire);  // pairs with its release
    if (answered == number) return ipc::load(row->refused, kRelaxed) != 0 ? Answer::kRefused : Answer::kYes;
    const uint64_t now_ns = base::now_ns();
    if (now_ns >= until_ns || d.row.load(kRelaxed) != row) return Answer::kSilent;
    base::futex_wait(&row->answered, answered, std::min(kLookAgainNs, until_ns - now_ns));
  }
}

// The attempt has a time limit of its own (interpose/lifecycle/helper.cc): there is no second one here.
void await_attachment() {
  if (g_attaching.load(kRelaxed) == 0) [[likely]]
    return;
  const base::ErrnoGuard keep_errno;
  while (g_attaching.load(std::memory_order_acquire) != 0 && state::live())  // pairs with attaching_ended
    base::futex_wait(reinterpret_cast<const uint32_t*>(&g_attaching), 1, kLookAgainNs);
}

// From now on what is left follows every change; what is used already is taken.
bool follow(int device, abi::MemoryDevice* row) {
  const Lock lock(g_books);
  PerDevice& d = g_devices[device];
  if (d.row.load(kRelaxed) != row) return false;
  if (d.shared == 0) left_in(row).fetch_sub(int64_t(g_ledger.of(device).used_bytes), kRelaxed);
  d.shared = g_attachment;
  return true;
}

enum class Took { kYes, kNo, kNothing };  // kNothing: there is no such limit, or nobody to keep it

Took take_shared(int device, uint64_t bytes) {
  PerDevice& d = g_devices[device];
  abi::MemoryDevice* row = d.row.load(std::memory_order_acquire);  // pairs with seat()
  if (!row) return Took::kNothing;
  if (d.asked.load(kRelaxed) == 0) {
    (void)ask(d, row, 0);  // a daemon that is silent says it when it is back
    d.asked.store(1, kRelaxed);
  }
  if (ipc::load(row->limit_bytes, kRelaxed) == 0) return Took::kNothing;
  if (!follow(device, row)) return Took::kNothing;
  for (int i = 0; i < kMostQuestions; ++i) {
    if (take_from(left_in(row), int64_t(bytes))) return Took::kYes;
    switch (ask(d, row, bytes)) {
      case Answer::kYes:
        break;  // unless another thread or the daemon was faster
      case Answer::kRefused:
        return Took::kNo;
      case Answer::kSilent:  // fail open, and keep the books
        left_in(row).fetch_sub(int64_t(bytes), kRelaxed);
        return Took::kYes;
    }
    if (ipc::load(row->limit_bytes, kRelaxed) == 0) return Took::kNothing;
  }
  return Took::kNo;
}

// Under g_books, or of a device that is settled with nobody else. Below zero: takes.
void give(const Reservation& r, int64_t bytes) {
  if (bytes == 0 || !is_device(r.device)) return;
  PerDevice& d = g_devices[r.device];
  if (r.own) d.own_left.fetch_add(bytes, kRelaxed);
  abi::MemoryDevice* row = d.row.load(kRelaxed);
  if (r.shared != 0 && row && r.shared == d.shared) left_in(row).fetch_add(bytes, kRelaxed);
}

bool own_limit() {
  return state::config().memory_limit_bytes != 0;
}

bool try_reserve(int device, uint64_t bytes, Reservation* out) {
  PerDevice& d = g_devices[device];
  if (own_limit()) {
    if (!take_from(d.own_left, int64_t(bytes))) return false;
    out->own = true;
  }
  const Took took = take_shared(device, bytes);
  if (took == Took::kYes) {
    const Lock lock(g_books);
    out->shared = d.shared;
  }
  if (took != Took::kNo) return true;
  cancel(*out);
  out->own = false;
  return false;
}

}  // namespace

pthread_mutex_t g_books = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t g_pools = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<bool> g_look_at_pools{false};
constinit std::atomic<bool> g_graphs_allocate{false};
constinit std::atomic<bool> g_shares_events{false};

Place place() {
  Place p;
  CUcontext context = nullptr;
  CUdevice device = kNoDevice;
  if (real().cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context ||
      real().cuCtxGetDevice(&device) != CUDA_SUCCESS || !is_device(device))
    return p;
  p.device = device;
  p.context = reinterpret_cast<uint64_t>(state::owner_of(context));
  return p;
}

namespace {
constexpr uint64_t kKeptAtMostNs = 120'000'000'000;  // longer than the largest memory takes over its link
constinit std::atomic<uint32_t> g_under_way{0};
}  // namespace

// seq_cst: this counts itself and looks at `kept`; acknowledge_kept reads `kept` and looks at the count. One sees the other.
UnderWay::UnderWay(int device) {
  // Whether room is kept is known only once the daemon has been found, or not.
  await_attachment();
  g_under_way.fetch_add(1, std::memory_order_seq_cst);
  if (!is_device(device)) return;
  PerDevice& d = g_devices[device];
  begin_device(device);
  abi::MemoryDevice* row = d.row.load(std::memory_order_acquire);  // pairs with seat()
  if (!row) return;
  if (d.asked.load(kRelaxed) == 0)
      [[unlikely]] {  // a daemon that has not heard of this device keeps nothing here
    (void)ask(d, row, 0);
    d.asked.store(1, kRelaxed);
  }
  if (ipc::load(row->kept, std::memory_order_seq_cst) == 0) [[likely]]
    return;
  const base::ErrnoGuard keep_errno;
  const uint64_t until_ns = base::now_ns() + kKeptAtMostNs;
  for (;;) {
    g_under_way.fetch_sub(1, std::memory_order_seq_cst);
    if (const uint32_t kept = ipc::load(row->kept, kRelaxed); kept != 0)
      base::futex_wait(&row->kept, kept, kLookAgainNs);
    g_under_way.fetch_add(1, std::memory_order_seq_cst);
    if (ipc::load(row->kept, std::memory_order_seq_cst) == 0 || d.row.load(kRelaxed) != row ||
        base::now_ns() >= until_ns)
      return;
  }
}

UnderWay::~UnderWay() {
  g_under_way.fetch_sub(1, std::memory_order_seq_cst);
}

void acknowledge_kept() {
  for (PerDevice& d : g_devices) {
    abi::MemoryDevice* row = d.row.load(std::memory_order_acquire);
    if (!row) continue;
    const uint32_t kept = ipc::load(row->kept, std::memory_order_seq_cst);
    if (kept != ipc::load(row->kept_seen, kRelaxed) && g_under_way.load(std::memory_order_seq_cst) == 0)
      ipc::store(row->kept_seen, kept, std::memory_order_seq_cst);
  }
}

bool reserve(int device, uint64_t bytes, Reservation* out) {
  *out = {.device = is_device(device) ? device : kNoDevice, .bytes = bytes};
  if (bytes == 0 || out->device == kNoDevice) return true;
  if (bytes > uint64_t(INT64_MAX)) return true;  // the driver refuses it
  PerDevice& d = g_devices[device];
  await_attachment();
  begin_device(device);
  if (!own_limit() &&
      (!d.row.load(kRelaxed) ||
       (d.asked.load(kRelaxed) != 0 && ipc::load(d.row.load(kRelaxed)->limit_bytes, kRelaxed) == 0)))
    return true;
  if (try_reserve(device, bytes, out)) return true;
  look_at_pools(true);  // what they gave back in the meantime is not known yet
  if (try_reserve(device, bytes, out)) return true;
  out->refused = true;
  return false;
}

void count_refusal(int device) {
  change(device, [&](Ledger& ledger) { ledger.refused(device); });
}

void cancel(const Reservation& r) {
  const Lock lock(g_books);
  give(r, int64_t(r.bytes));
}

Ledger& books() {
  return g_ledger;
}

uint64_t begin_change(int device) {
  return is_device(device) ? g_ledger.of(device).used_bytes : 0;
}

void end_change(const Reservation& r, uint64_t before) {
  if (is_device(r.device)) {
    const PerDevice& d = g_devices[r.device];
    const auto taken = int64_t(g_ledger.of(r.device).used_bytes - before);
    // A reservation from an allowance that is no longer followed is gone with it, and the other way round.
    give({.device = r.device, .own = own_limit()}, (r.own ? int64_t(r.bytes) : 0) - taken);
    give({.device = r.device, .shared = d.shared}, (r.shared == d.shared ? int64_t(r.bytes) : 0) - taken);
  }
  publish(r.device);
}

Taken take(Space space, uint64_t value) {
  Taken t;
  const Lock lock(g_books);
  t.known = g_ledger.take(space, value, &t.item);
  if (!t.known) return t;
  const bool charged = t.item.kind == Kind::kDevice && is_device(t.item.device);
  t.back = {.device = t.item.device,
            .bytes = charged ? t.item.bytes : 0,
            .own = own_limit(),
            .shared = is_device(t.item.device) ? g_devices[t.item.device].shared : 0};
  publish(t.item.device);
  return t;
}

Taken release_physical(uint64_t handle) {
  Taken t;
  const Lock lock(g_books);
  t.back.device = g_ledger.device_of_physical(handle);
  if (!is_device(t.back.device)) {
    g_ledger.released(handle);
    publish(kNoDevice);
    return t;
  }
  const uint64_t before = begin_change(t.back.device);
  g_ledger.released(handle);
  t.back.bytes = before - g_ledger.of(t.back.device).used_bytes;
  t.back.own = own_limit();
  t.back.shared = g_devices[t.back.device].shared;
  publish(t.back.device);
  return t;
}

void freed(const Taken& t) {
  if (t.known && t.item.kind == Kind::kPooled) {
    const Lock lock(g_books);
    const uint64_t before = begin_change(t.item.device);
    g_ledger.pool_freed(t.item);
    end_change({.device = t.item.device}, before);
    g_look_at_pools.store(true, kRelaxed);
    return;
  }
  if (t.back.bytes == 0 || (!t.back.own && !t.back.shared)) return;
  cancel(t.back);
}

void kept(const Taken& t) {
  if (!t.known) return;
  const Lock lock(g_books);
  g_ledger.add(t.item);
  publish(t.item.device);
}

void context_ended(CUcontext context) {
  change_all([&](Ledger& ledger) { ledger.context_ended(reinterpret_cast<uint64_t>(context)); });
}

// ---- pools and graphs

namespace {

// The driver does not say where a pool lies: it is a device's own, or it was made in front of our eyes.
int device_of_pool(CUmemoryPool pool) {
  int count = 0;
  if (real().cuDeviceGetCount(&count) != CUDA_SUCCESS) return kNoDevice;
  for (int i = 0; i < std::min(count, kDevices); ++i) {
    CUmemoryPool own = nullptr;
    if (real().cuDeviceGetDefaultMemPool(&own, i) == CUDA_SUCCESS && own == pool) return i;
    if (real().cuDeviceGetMemPool(&own, i) == CUDA_SUCCESS && own == pool) return i;
  }
  return kNoDevice;
}

}  // namespace

uint32_t pool_of(CUmemoryPool pool) {
  const auto handle = reinterpret_cast<uint64_t>(pool);
  {
    const Lock lock(g_books);
    if (const uint32_t known = g_ledger.pool(handle); known != Growing<Pool>::kNone) return known;
  }
  const int device = device_of_pool(pool);
  const Lock lock(g_books);
  if (device == kNoDevice) g_ledger.cannot_count();  // nobody says of what it is
  return g_ledger.learn_pool(handle, device == kNoDevice ? Kind::kPinned : Kind::kDevice, device);
}

namespace {

// Under g_pools. True: it is worth another look.
bool look_at(uint32_t i, bool always) {
  uint64_t handle = 0;
  int device = kNoDevice;
  {
    const Lock lock(g_books);
    const Pool& pool = g_ledger.pool_at(i);
    if (!pool.live || pool.destroyed || pool.device == kNoDevice || (!always && pool.looks == 0))
      return false;
    handle = pool.handle;
    device = pool.device;
  }
  cuuint64_t holds = 0;
  if (real().cuMemPoolGetAttribute(reinterpret_cast<CUmemoryPool>(handle),
                                   CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &holds) != CUDA_SUCCESS)
    return false;
  bool again = false;
  change(device, [&](Ledger& ledger) {
    ledger.pool_holds(i, holds);
    again = ledger.pool_at(i).looks != 0;
  });
  return again;
}

}  // namespace

void look_at_pool(uint32_t i) {
  if (!state::enter_driver()) return;
  {
    const Lock pools(g_pools);
    (void)look_at(i, true);
  }
  state::leave_driver();
}

void look_at_pools(bool all) {
  if (!state::enter_driver()) return;
  {
    const Lock pools(g_pools);
    g_look_at_pools.store(false, kRelaxed);
    const auto known = [] {
      const Lock lock(g_books);
      return g_ledger.pools();
    };
    bool again = false;
    for (uint32_t i = 0; i < known(); ++i) again |= look_at(i, all);
    if (again) g_look_at_pools.store(true, kRelaxed);
  }
  state::leave_driver();
}

void look_at_graphs(int device) {
  if (!is_device(device) || !state::enter_driver()) return;
  cuuint64_t holds = 0;
  const bool known = real().cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                         &holds) == CUDA_SUCCESS;
  state::leave_driver();
  if (known) change(device, [&](Ledger& ledger) { ledger.graphs_hold(device, holds); });
}

// The graph takes it with its first launch; that the driver may need less, because its nodes share memory, is not foreseen.
bool graph_may_allocate(uint64_t bytes) {
  Reservation r;
  const int device = place().device;
  if (!reserve(device, bytes, &r)) return count_refusal(device), false;
  cancel(r);
  g_graphs_allocate.store(true, kRelaxed);
  return true;
}

// ---- limits

bool limit_of(int device, Limit* out) {
  if (!is_device(device)) return false;
  PerDevice& d = g_devices[device];
  await_attachment();
  begin_device(device);
  bool any = false;
  const auto narrow = [&](uint64_t bytes, uint64_t free_bytes) {
    *out = any ? Limit{std::min(out->bytes, bytes), std::min(out->free_bytes, free_bytes)}
               : Limit{bytes, free_bytes};
    any = true;
  };
  if (own_limit())
    narrow(state::config().memory_limit_bytes, uint64_t(std::max<int64_t>(0, d.own_left.load(kRelaxed))));
  abi::MemoryDevice* row = d.row.load(std::memory_order_acquire);
  if (!row || (d.asked.load(kRelaxed) != 0 && ipc::load(row->limit_bytes, kRelaxed) == 0)) return any;
  if (ask(d, row, 0) == Answer::kSilent) return any;
  d.asked.store(1, kRelaxed);
  if (ipc::load(row->limit_bytes, kRelaxed) == 0 || !follow(device, row)) return any;
  if (ask(d, row, 0) == Answer::kSilent) return any;  // again: now what is used here is in it
  if (const uint64_t limit = ipc::load(row->limit_bytes, kRelaxed); limit != 0)
    narrow(limit, ipc::load(row->free_bytes, kRelaxed));
  return any;
}

namespace {
constexpr size_t kUuidChars = 37;
void uuid_text(const CUuuid& uuid, char (&out)[kUuidChars]) {
  char* end = out;
  for (int at = 0; at < 16; ++at)
    end += snprintf(end, 4, at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x",
                    uint8_t(uuid.bytes[at]));
}
}  // namespace

bool limit_of_gpu(const char* gpu, Limit* out) {
  const uint64_t own_bytes = state::live() ? state::config().memory_limit_bytes : state::memory_limit_asked();
  *out = {own_bytes, own_bytes};
  const char* digits = strchr(gpu, '-');
  for (int i = 0; digits && state::live() && i < kDevices; ++i) {
    CUuuid uuid{};
    {
      const Lock lock(g_books);
      if (!g_devices[i].has_uuid) continue;
      uuid = g_devices[i].uuid;
    }
    char text[kUuidChars];
    uuid_text(uuid, text);
    if (!strcmp(digits + 1, text)) return limit_of(i, out);
  }
  return own_bytes != 0;
}

bool has_row(int device) {
  return is_device(device) && g_devices[device].row.load(kRelaxed) != nullptr;
}

bool held_on(int device, HeldOn* out) {
  const Lock lock(g_books);
  if (!is_device(device) || !g_devices[device].has_uuid || g_ledger.of(device).used_bytes == 0) return false;
  out->bytes = g_ledger.of(device).used_bytes;
  memcpy(out->gpu, "GPU-", 4);
  char text[kUuidChars];
  uuid_text(g_devices[device].uuid, text);
  memcpy(out->gpu + 4, text, sizeof text);
  return true;
}

void exchange_gpus(const CUuuid& one, const CUuuid& other) {
  const Lock lock(g_books);
  for (PerDevice& d : g_devices) {
    const auto is = [&d](const CUuuid& uuid) { return !memcmp(&d.uuid, &uuid, sizeof uuid); };
    if (d.has_uuid && (is(one) || is(other))) d.uuid = is(one) ? other : one;
  }
}

bool could_fit(int device, uint64_t bytes) {
  if (!is_device(device)) return false;
  begin_device(device);
  const Lock lock(g_books);
  const PerDevice& d = g_devices[device];
  // 1/64 of a device is for contexts and code, as the daemon leaves it before a return.
  uint64_t most = d.total_bytes != 0 ? d.total_bytes - d.total_bytes / 64 : UINT64_MAX;
  if (own_limit()) most = std::min(most, state::config().memory_limit_bytes);
  const abi::MemoryDevice* row = d.row.load(kRelaxed);
  if (const uint64_t limit = row ? ipc::load(row->limit_bytes, kRelaxed) : 0) most = std::min(most, limit);
  const uint64_t used = g_ledger.of(device).used_bytes;
  return used <= most && bytes <= most - used;
}

void count_waiting(int device, int64_t bytes, uint64_t since_ns) {
  {
    const Lock lock(g_books);
    g_devices[device].waits_bytes += uint64_t(bytes);
    if (since_ns != 0) {
      if (g_waiting++ == 0) g_waits_since_ns = since_ns;
    } else if (--g_waiting == 0) {
      g_waits_since_ns = 0;
    }
    publish(device);
  }
  const Lock asking(g_asking);
  if (g_notify) g_notify();
}

bool has_limit(int device) {
  if (own_limit()) return true;
  abi::MemoryDevice* row =
      is_device(device) ? g_devices[device].row.load(std::memory_order_acquire) : nullptr;
  return row && ipc::load(row->limit_bytes, kRelaxed) != 0;
}

bool beyond_limit(int device) {
  if (!is_device(device)) return false;
  PerDevice& d = g_devices[device];
  if (own_limit() && d.own_left.load(kRelaxed) < 0) return true;
  abi::MemoryDevice* row = d.row.load(std::memory_order_acquire);
  return row && ipc::load(row->limit_bytes, kRelaxed) != 0 && left_in(row).load(kRelaxed) < 0 &&
         ask(d, row, 0) == Answer::kRefused;
}

// ---- the daemon

void attaching() {
  g_attaching.store(1, std::memory_order_release);
}

void attaching_ended() {
  if (g_attaching.exchange(0, std::memory_order_release) != 0)  // pairs with await_attachment
    base::futex_wake_all(reinterpret_cast<const uint32_t*>(&g_attaching));
}

void adopt(abi::MemoryTable* table, uint32_t answer_within_ms, void (*notify)() noexcept) {
  const Lock asking(g_asking);
  g_answer_within_ns = answer_within_ms * uint64_t(1'000'000);
  g_notify = notify;
  const Lock lock(g_books);
  g_table = table;
  ++g_attachment;
  for (uint32_t i = 0; i < g_n_used; ++i) seat(g_used[i]);
  publish(kNoDevice);
}

void withdraw() {
  const Lock lock(g_books);
  g_table = nullptr;
  for (PerDevice& d : g_devices) {
    d.row.store(nullptr, kRelaxed);
    d.shared = 0;
  }
}

}  // namespace tessera::memory
