#include "interpose/lifecycle/park.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "base/raw_log.h"
#include "driver_api/ask.h"
#include "interpose/gate/device_gate.h"
#include "interpose/hooks/checkpoint.h"
#include "interpose/lifecycle/checkpointer.h"
#include "interpose/lifecycle/connection.h"
#include "interpose/lifecycle/device_room.h"
#include "interpose/lifecycle/host_room.h"
#include "interpose/memory/memory.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/state/state.h"
#include "interpose/track/track.h"
#include "ipc/channel/atomic.h"

namespace tessera::lifecycle {
namespace {

namespace abi = ipc::abi;
using driver_api::real;
using state::g_state;
constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr uint64_t kMs = 1'000'000;
constexpr unsigned kLockWithinMs = 5'000;  // for work to end, and for threads to be where they wait
constexpr uint64_t kDaemonWithinNs =
    10'000 * kMs;                            // a program does not wait longer for one that says there is room
constexpr uint64_t kLookAgainNs = 50 * kMs;  // as the helper looks
constexpr uint64_t kAskAgainNs =
    1'000 * kMs;                       // for the state, where nobody knows it: each time may start a parker
constexpr int kOldestDriver = 12'080;  // cuda.h has the calls since
constexpr int kOldestThatMoves = 13'000;  // ... and pairs of GPUs
// A thread that ran for this time has left the few instructions between reading a slot and being in the driver.
constexpr uint64_t kRanNs = kMs;

using ExchangeSlots = void (*)(bool parked);
constinit ExchangeSlots g_exchange_slots = nullptr;
constinit std::atomic<uint32_t> g_away{
    0};  // futex word: 1 from the exchange of the slots until they are back
constinit std::atomic<uint32_t> g_needed{0};     // a thread of the program waits
constinit std::atomic<uint32_t> g_returning{0};  // who restores: the helper, or at exit the thread that calls

struct Parked {  // helper thread; at exit who returns
  abi::ParkReport report = {};
  uint64_t needed_since_ns = 0;
  uint64_t look_for_room_ns = 0;  // again then
  int driver_version = 0;
  CUuuid from = {}, to = {};  // its GPU when it left, and where it comes back
  bool attach_anew = false;   // the daemon counts it on another one
  bool by_parker = false;     // it makes the driver's calls, if there is a daemon
  // kParkParking or kParkReturning, and nobody knows how far the driver came: ask again then.
  bool unsettled = false;
  uint64_t ask_again_ns = 0;
  CUuuid wanted = {};  // where it is to go once it has left; zero: nowhere
};
constinit Parked g_parked = {};
constinit bool g_slots_exchanged = false;  // as g_parked

void tell(abi::ParkLines* lines) {
  if (!lines) return;
  const abi::ParkReport& r = g_parked.report;
  abi::ParkReport& out = lines->report;
  ipc::store(out.refusal, r.refusal, kRelaxed);
  ipc::store(out.lacks_bytes, r.lacks_bytes, kRelaxed);
  ipc::store(out.need, r.need, kRelaxed);
  ipc::store(out.bytes, r.bytes, kRelaxed);
  ipc::store(out.since_ns, r.since_ns, kRelaxed);
  ipc::store(out.park_ns, r.park_ns, kRelaxed);
  ipc::store(out.return_ns, r.return_ns, kRelaxed);
  ipc::store(out.parks, r.parks, kRelaxed);
  ipc::store(out.answered, r.answered, kRelaxed);
  const bool changed = ipc::load(out.state, kRelaxed) != r.state;
  ipc::store(out.state, r.state, std::memory_order_release);  // pairs with the daemon's acquire
  if (changed) notify_daemon();
}

void enter(abi::ParkState state, abi::ParkLines* lines) {
  g_parked.report.state = state;
  g_parked.report.since_ns = base::now_ns();
  tell(lines);
}

// ---- what is refused, before anything is touched

struct Counted {
  uint64_t used_bytes = 0, untracked = 0;
  memory::Ties ties;
};
Counted counted() {
  Counted sum;
  const state::Lock lock(memory::g_books);
  for (int i = 0; i < memory::kDevices; ++i) sum.used_bytes += memory::books().of(i).used_bytes;
  sum.untracked = memory::books().untracked();
  sum.ties = memory::books().ties();
  return sum;
}

abi::ParkRefusal refusal(uint64_t* bytes) {
  if (!g_exchange_slots || !state::config().parkable) return abi::kNotParkable;
  const int device = state::device();
  if (device < 0) return abi::kParkNoGpu;
  if (g_state.captures.load(std::memory_order_seq_cst) != 0 || !state::enter_driver())
    return abi::kParkCapturing;
  int version = 0;
  const bool old = real().cuDriverGetVersion(&version) != CUDA_SUCCESS || version < kOldestDriver;
  g_parked.driver_version = version;
  CUuuid here{};
  const bool known = real().cuDeviceGetUuid_v2(&here, device) == CUDA_SUCCESS;
  g_parked.from = g_parked.to = here;
  char name[128] = {};  // "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
  const bool mig =
      real().cuDeviceGetName(name, sizeof name - 1, device) == CUDA_SUCCESS && strstr(name, " MIG ");
  const bool unified = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_INTEGRATED, device) != 0;
  const bool mps = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) != 0;
  state::leave_driver();
  if (old || !known) return abi::kParkOldDriver;
  if (mps) return abi::kParkMps;
  if (mig) return abi::kParkMig;
  if (unified) return abi::kParkUnified;
  const Counted sum = counted();
  *bytes = sum.used_bytes;
  if (sum.ties.managed || track::g_has_managed_variables.load(kRelaxed)) return abi::kParkManaged;
  if (sum.ties.foreign) return abi::kParkShared;
  if (memory::g_shares_events.load(kRelaxed)) return abi::kParkSharedEvents;
  if (sum.untracked != 0) return abi::kParkUncounted;
  if (track::g_has_collectives.load(kRelaxed)) return abi::kParkCollectives;
  if (host_room_bytes("") < sum.used_bytes) return abi::kParkHostMemory;
  return abi::kParkNotRefused;
}

bool same(const CUuuid& a, const CUuuid& b) {
  return !memcmp(&a, &b, sizeof a);
}

// Without a daemon a program does not wait for ever: its own thread tries.
const Checkpointer& checkpointer() {
  return g_parked.by_parker && parker_can_be_asked() ? kParker : kOwnThread;
}

// The process is parked, or could be: the driver is not asked.
abi::ParkRefusal refusal_to_move(const CUuuid& gpu, uint64_t bytes) {
  static MachineGpu gpus[kMostGpus];  // helper thread only
  if (g_parked.driver_version < kOldestThatMoves) return abi::kMoveOldDriver;
  if (same(gpu, g_parked.to)) return abi::kMoveSameGpu;
  {
    const state::Lock lock(memory::g_books);
    for (int i = 0; i < memory::kDevices; ++i)
      if (i != state::device() && memory::books().of(i).used_bytes != 0) return abi::kMoveSeveralGpus;
  }
  const MachineGpu* const begin = gpus;
  const MachineGpu* const end = begin + gpus_of_machine(gpus);
  const auto find = [=](const CUuuid& uuid) {
    return std::find_if(begin, end, [&](const MachineGpu& each) { return same(each.uuid, uuid); });
  };
  const MachineGpu *const from = find(g_parked.from), *const to = find(gpu);
  if (from == end || to == end) return abi::kMoveNoSuchGpu;
  if (strcmp(from->name, to->name) != 0) return abi::kMoveOtherModel;
  if (to->has_mig) return abi::kMoveMig;
  return to->free_bytes < bytes ? abi::kMoveNoRoom : abi::kParkNotRefused;
}

// The GPU on which it comes back, which it does as soon as there is room.
void go_to(const CUuuid& gpu) {
  memory::exchange_gpus(g_parked.from, g_parked.to);  // as it was
  memory::exchange_gpus(g_parked.from, gpu);
  g_parked.to = gpu;
  g_parked.attach_anew = true;
  g_needed.store(1, kRelaxed);
}

// ---- threads that are between the table and the driver

struct ThreadTimes {
  pid_t tid;
  uint64_t ran_ns;
};

// CPU time of a thread of this process; 0 if it has ended. As pthread_getcpuclockid names such a clock.
uint64_t ran_ns(pid_t tid) {
  timespec ran = {};
  (void)clock_gettime(clockid_t(~unsigned(tid) << 3 | 6), &ran);
  return uint64_t(ran.tv_sec) * 1'000'000'000 + uint64_t(ran.tv_nsec);
}

// It sleeps, or has ended: then it is in no such place.
bool stands_still(pid_t tid) {
  char path[64], text[256] = {};
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  FILE* file = fopen(path, "re");
  if (!file) return true;
  const size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[n] = 0;
  const char* state = strrchr(text, ')');
  return !state || (state[1] && state[2] != 'R' && state[2] != 'D');
}

// Every thread that read a slot before the exchange is in the driver by now, or sleeps elsewhere. A thread that was
// preempted in between would wait in the driver, where nobody sees that it needs the process back.
bool threads_are_past_the_slots(uint64_t until_ns) {
  constexpr size_t kMostThreads = 4096;
  static ThreadTimes threads[kMostThreads];  // helper thread only
  size_t n = 0;
  const pid_t self = gettid();
  if (DIR* tasks = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(tasks)) {
      const pid_t tid = atoi(entry->d_name);
      if (tid <= 0 || tid == self || n == kMostThreads) continue;
      const uint64_t ran_before_ns = ran_ns(tid);
      if (!stands_still(tid)) threads[n++] = {tid, ran_before_ns};
    }
    closedir(tasks);
  }
  while (n != 0) {
    const ThreadTimes& last = threads[n - 1];
    if (stands_still(last.tid) || ran_ns(last.tid) >= last.ran_ns + kRanNs) {
      --n;
      continue;
    }
    if (base::now_ns() >= until_ns) return false;
    sched_yield();
  }
  return true;
}

// ---- there and back

void let_threads_go_on() {
  g_exchange_slots(g_slots_exchanged = false);
  trace_as_wanted();
  g_needed.store(0, kRelaxed);
  g_parked.needed_since_ns = 0;
  g_away.store(0, std::memory_order_release);  // pairs with tessera_await_return
  base::futex_wake_all(reinterpret_cast<const uint32_t*>(&g_away));
  state::leave_exclusive(state::kLocked);
}

void close_gate_again() {
  if (g_state.role.load(kRelaxed) == state::Role::kBestEffort) gate::override_device_gate(false);
}

void note_parked(uint64_t begin_ns) {
  g_parked.report.park_ns = base::now_ns() - begin_ns;
  ++g_parked.report.parks;
}

// It runs on, whether it left and came back or never left.
void go_on(abi::ParkState state, abi::ParkLines* lines) {
  if (state != abi::kParkLost) hooks::unlocked();  // else our own calls stay out of the driver for good
  enter(state, lines);
  close_gate_again();
  let_threads_go_on();
}

// Once it has left.
void go_where_it_is_wanted() {
  const CUuuid gpu = std::exchange(g_parked.wanted, CUuuid{});
  if (!same(gpu, CUuuid{})) go_to(gpu);
}

void ask_again(uint64_t in_ns) {
  g_parked.unsettled = true;
  g_parked.ask_again_ns = base::now_ns() + in_ns;
}

// A call failed, or nobody answered: the driver's state says what follows.
void settle(abi::ParkLines* lines) {
  const bool lives = state::g_phase.load(kRelaxed) == state::Phase::kLive, daemon = parker_can_be_asked();
  // The parker of a lost daemon may still be about its call. The next daemon's parker waits for that.
  if (g_parked.by_parker && !daemon && lives && !g_parked.unsettled) return ask_again(kDaemonWithinNs);
  g_parked.unsettled = false;
  const Checkpointer& by = checkpointer();
  CUprocessState now = CU_PROCESS_STATE_FAILED;
  const bool answered = by.state(&now);
  if (answered && now == CU_PROCESS_STATE_LOCKED && by.unlock() == CUDA_SUCCESS)
    now = CU_PROCESS_STATE_RUNNING;
  if (!answered || now == CU_PROCESS_STATE_LOCKED) {
    if (g_parked.by_parker && (lives || daemon)) return ask_again(kAskAgainNs);
    return go_on(abi::kParkLost, lines);
  }
  if (now != CU_PROCESS_STATE_CHECKPOINTED)
    return go_on(now == CU_PROCESS_STATE_RUNNING ? abi::kParkRuns : abi::kParkLost, lines);
  const bool leaves = g_parked.report.state == abi::kParkParking;
  const bool moves = !same(g_parked.from, g_parked.to);
  if (leaves) note_parked(g_parked.report.since_ns);
  g_parked.report.refusal = moves && !leaves ? abi::kParkDriverRefused : abi::kParkNotRefused;
  if (moves && !leaves) go_to(g_parked.from);  // nothing was lost: later, where it was
  enter(abi::kParkParked, lines);
  if (leaves) go_where_it_is_wanted();
}

void stay(abi::ParkRefusal why, abi::ParkLines* lines) {
  g_parked.report.refusal = why;
  go_on(abi::kParkRuns, lines);
}

void leave(abi::ParkLines* lines) {
  const uint64_t begin_ns = base::now_ns();
  gate::override_device_gate(true);
  state::enter_exclusive(state::kLocked);  // no thread waits inside for what only the helper can do
  g_away.store(1, std::memory_order_release);
  g_exchange_slots(g_slots_exchanged = true);
  if (!threads_are_past_the_slots(begin_ns + kLockWithinMs * kMs))
    return stay(abi::kParkThreadStopped, lines);
  const CUresult locked = checkpointer().lock(kLockWithinMs);
  if (locked != CUDA_SUCCESS && locked != kNotAnswered)
    return stay(locked == CUDA_ERROR_NOT_READY ? abi::kParkWorkGoesOn : abi::kParkDriverRefused, lines);
  const CUresult saved = locked == CUDA_SUCCESS ? checkpointer().save() : locked;
  if (saved == CUDA_SUCCESS) {
    note_parked(begin_ns);
    enter(abi::kParkParked, lines);
    return go_where_it_is_wanted();
  }
  g_parked.report.refusal = saved == kNotAnswered ? abi::kParkNoParker : abi::kParkDriverRefused;
  settle(lines);
}

// False: there is none, whatever the daemon said: a program that it does not know has the place. A driver that is asked all
// the same may lose the process.
bool finds_room() {
  g_parked.report.lacks_bytes = lacking_bytes();
  g_parked.look_for_room_ns = base::now_ns() + kLookAgainNs;
  return g_parked.report.lacks_bytes == 0;
}

void come_back(abi::ParkLines* lines) {
  if (g_returning.exchange(1, std::memory_order_acq_rel) != 0) return;
  if (!finds_room()) {
    ++g_parked.report.need;  // what the daemon said is used up: nobody's allocations are kept out meanwhile
    tell(lines);
    g_returning.store(0, std::memory_order_release);
    return;
  }
  const uint64_t begin_ns = base::now_ns();
  enter(abi::kParkReturning, lines);
  const CUresult restored = checkpointer().restore(g_parked.from, g_parked.to);
  if (restored == CUDA_SUCCESS && checkpointer().unlock() == CUDA_SUCCESS) {
    g_parked.report.return_ns = base::now_ns() - begin_ns;
    go_on(abi::kParkRuns, lines);
  } else {
    settle(lines);
  }
  if (g_parked.report.state == abi::kParkLost)
    base::raw_log(base::LogLevel::kError, "parking lost the process: restore answered %d", restored);
  g_returning.store(0, std::memory_order_release);
}

bool is_named(const CUuuid& gpu) {
  return !same(gpu, CUuuid{});
}

void park(abi::ParkLines* lines, const CUuuid& gpu) {
  uint64_t bytes = 0;
  abi::ParkRefusal refused = refusal(&bytes);
  if (refused == abi::kParkNotRefused && is_named(gpu)) refused = refusal_to_move(gpu, bytes);
  if (CUprocessState now; refused == abi::kParkNotRefused && g_parked.by_parker && !kParker.state(&now))
    refused = abi::kParkNoParker;
  g_parked.report.refusal = refused;
  if (refused != abi::kParkNotRefused) return;
  g_parked.report.bytes = bytes;
  g_parked.wanted = gpu;
  enter(abi::kParkParking, lines);
  leave(lines);
}

// Helper thread, and at exit the thread that returns.
void settle_again(abi::ParkLines* lines) {
  if (g_returning.exchange(1, std::memory_order_acq_rel) != 0) return;
  if (g_parked.unsettled) settle(lines);
  g_returning.store(0, std::memory_order_release);
}

// The daemon says when there is room. Without one nobody knows, and a program does not wait for ever.
bool may_come_back(const abi::ParkLines* lines, uint64_t now_ns) {
  if (lines) return ipc::load(lines->order.room_for, std::memory_order_acquire) == g_parked.report.need;
  return now_ns >= g_parked.needed_since_ns + kDaemonWithinNs;
}

bool is_away() {
  return g_parked.report.state == abi::kParkParked || g_parked.report.state == abi::kParkWaits;
}

}  // namespace

void set_exchange_slots(void (*exchange)(bool parked)) {
  g_exchange_slots = exchange;
}

bool slots_are_exchanged() {
  return g_slots_exchanged;
}

void forget_parking_in_child() {
  g_away.store(0, kRelaxed);
}

void park_attached() {
  g_parked.report.answered = 0;
  g_parked.ask_again_ns = 0;
}

ParkStep park_step(abi::ParkLines* lines, uint64_t now_ns) {
  if (lines) {
    const uint32_t order = ipc::load(lines->order.number, std::memory_order_acquire);
    if (order != g_parked.report.answered) {
      const bool parked = ipc::load(lines->order.parked, kRelaxed) != 0;
      CUuuid gpu;
      memcpy(&gpu, lines->order.gpu, sizeof gpu);
      g_parked.report.answered = order;
      if (parked) g_parked.by_parker = ipc::load(lines->order.by_parker, kRelaxed) != 0;
      if (!parked) g_needed.store(1, kRelaxed);
      if (parked && g_parked.report.state == abi::kParkRuns) park(lines, gpu);
      if (parked && is_away() && is_named(gpu) && !same(gpu, g_parked.to)) {
        const abi::ParkRefusal refused = refusal_to_move(gpu, g_parked.report.bytes);
        g_parked.report.refusal = refused;
        if (refused == abi::kParkNotRefused) go_to(gpu);
      }
    }
  }
  if (g_parked.unsettled && now_ns >= g_parked.ask_again_ns) settle_again(lines);
  if (g_parked.unsettled) {
    tell(lines);  // a new daemon knows nothing
    return ParkStep::kAway;
  }
  const bool moves = std::exchange(g_parked.attach_anew, false);
  if (!is_away()) {
    if (g_away.load(kRelaxed) == 0) g_needed.store(0, kRelaxed);
    tell(lines);
    return ParkStep::kHere;
  }
  if (moves) {
    enter(abi::kParkParked, lines);  // the wish for room was for the other GPU
    return ParkStep::kMoves;
  }
  if (g_needed.load(kRelaxed) != 0 && g_parked.report.state == abi::kParkParked) {
    ++g_parked.report.need;
    g_parked.needed_since_ns = now_ns;
    enter(abi::kParkWaits, lines);
  }
  tell(lines);  // a new daemon knows nothing
  if (g_parked.report.state != abi::kParkWaits) return ParkStep::kAway;
  if (g_parked.report.lacks_bytes != 0) {
    if (now_ns >= g_parked.look_for_room_ns) (void)finds_room();
  } else if (may_come_back(lines, now_ns)) {
    come_back(lines);
  }
  return is_away() ? ParkStep::kAway : ParkStep::kHere;
}

}  // namespace tessera::lifecycle

// A thread of the program needs the driver while the process is parked.
extern "C" void tessera_await_return() noexcept {
  using namespace tessera;
  using namespace tessera::lifecycle;
  if (g_away.load(std::memory_order_acquire) == 0) return;  // pairs with let_threads_go_on
  const base::ErrnoGuard keep_errno;
  while (g_away.load(std::memory_order_acquire) != 0) {
    if (state::g_phase.load(std::memory_order_relaxed) != state::Phase::kLive) {
      // At exit there is no helper any more, and nobody to ask for room.
      settle_again(nullptr);
      if (is_away()) come_back(nullptr);
      if (g_away.load(std::memory_order_acquire) == 0) return;
    }
    g_needed.store(1, std::memory_order_relaxed);
    base::futex_wake_all(&state::g_state.link.load(std::memory_order_acquire)->lease->word);
    base::futex_wait(reinterpret_cast<const uint32_t*>(&g_away), 1, kLookAgainNs);
  }
}
