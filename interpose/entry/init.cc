// First driver call of the process: open the driver, fill the tables, tell the gate.
//
//   kFresh --(first caller wins)--> its thread id --(tables published)--> kReady      never back
//
// Others wait on the state word. The winner itself may come back while it runs (the driver's constructors may
// call exported entry points, which are ours): it is answered CUDA_ERROR_NOT_INITIALIZED, not made to wait
// for itself. So is a call that comes while the loader still binds the program (an IFUNC resolver). If the winner
// does not exist in this process (another thread forked while it ran), a waiter takes over.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/before_libc.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "driver_api/answers.h"
#include "driver_api/open_driver.h"
#include "interpose/audit/contract.h"
#include "interpose/entry/tables.h"
#include "interpose/hooks/hooks.h"

// Replaced by the gate's; the pass-through build has nobody to tell.
extern "C" __attribute__((weak)) void tessera_on_first_call(const tessera::hooks::FirstCall*) noexcept {}
// Likewise: nothing is ever parked there.
extern "C" __attribute__((weak)) void tessera_await_return() noexcept {}
// Replaced by those in interpose/hooks; the pass-through build has no use for notes and requests.
extern "C" __attribute__((weak, visibility("default"))) const void* tessera_note_reader(uint32_t) noexcept {
  return nullptr;
}
extern "C" __attribute__((weak, visibility("default"))) const void* tessera_request_side(uint32_t) noexcept {
  return nullptr;
}

namespace tessera::entry {
namespace {

using driver_api::kEntryCount;

// Values of g_state; anything else is the mark of the thread that runs init.
constexpr uint32_t kFresh = 0, kReady = 1;
// Marks an id made of the thread pointer, where a filter of system calls hides the thread's own. Nobody can tell whether
// such a thread still exists.
constexpr uint32_t kNoId = 1u << 31;
constexpr uint64_t kOwnerCheckNs = 100'000'000;  // how often a waiter looks whether the winner still exists
constexpr size_t kMaxPath = 4096;

constinit uint32_t g_state = kFresh;  // release by the winner, acquire by everybody else
constinit char g_driver_path[kMaxPath] = "";

uint32_t own_mark() {
  const long id = syscall(SYS_gettid);
  if (id > 0) return 1 + static_cast<uint32_t>(id);
  return kNoId | static_cast<uint32_t>(reinterpret_cast<uintptr_t>(__builtin_thread_pointer()) >> 6);
}

bool thread_exists(uint32_t mark) {
  return mark >= kNoId || syscall(SYS_tgkill, getpid(), static_cast<pid_t>(mark - 1), 0) == 0 ||
         errno != ESRCH;
}

void store_target(uint64_t row, void* target) {
  // Release: pairs with the stub's load, which acquires (interpose/arch): what it leads to reads the real table.
  std::atomic_ref<void*>(tessera_dispatch[row]).store(target, std::memory_order_release);
}

// The contents of the slots before exchange_slots(true). Written before any slot leads to where they are read.
constinit void* g_dispatch_kept[kEntryCount] = {};
constinit void* g_real_kept[kEntryCount] = {};

std::atomic_ref<void*> dispatch_slot(uint64_t row) {
  return std::atomic_ref<void*>(tessera_dispatch[row]);
}
std::atomic_ref<void*> real_slot_of(uint64_t row) {
  return std::atomic_ref<void*>(reinterpret_cast<void**>(&tessera_real_driver)[row]);
}

// Whoever brings the process back makes these calls.
bool stays_real(uint64_t row) {
  return row >= uint64_t(driver_api::Entry::cuCheckpointProcessCheckpoint) &&
         row <= uint64_t(driver_api::Entry::cuCheckpointProcessUnlock);
}

void exchange_slots(bool parked) {
  for (uint64_t row = 0; row < kEntryCount; ++row) {
    const std::atomic_ref<void*> dispatch = dispatch_slot(row), real = real_slot_of(row);
    if (parked) {
      g_dispatch_kept[row] = dispatch.load(std::memory_order_relaxed);
      g_real_kept[row] = real.load(std::memory_order_relaxed);
    }
    // Release: pairs with the fence in tessera_resolve(), which reads what was kept.
    dispatch.store(parked ? tessera_first_addresses[row] : g_dispatch_kept[row], std::memory_order_release);
    if (!stays_real(row))
      real.store(parked ? tessera_away_addresses[row] : g_real_kept[row], std::memory_order_release);
  }
}

// The function to which the row's slot leads, or led before it was exchanged.
void* target_of(uint64_t row) {
  if (row >= kEntryCount) return g_real_kept[row - kEntryCount];
  void* target = dispatch_slot(row).load(std::memory_order_relaxed);
  return target == tessera_first_addresses[row] ? g_dispatch_kept[row] : target;
}

bool is_on(const char* variable) {
  const char* value = getenv(variable);
  return value != nullptr && value[0] != 0 && std::strcmp(value, "0") != 0;
}

// While it lives, libtessera_audit.so leaves this thread's lookups alone: they are of the driver's own functions.
class OwnLookups {
 public:
  OwnLookups() {
    thread_.store(reinterpret_cast<uint64_t>(__builtin_thread_pointer()), std::memory_order_relaxed);
  }
  ~OwnLookups() { thread_.store(0, std::memory_order_relaxed); }
  OwnLookups(const OwnLookups&) = delete;
  OwnLookups& operator=(const OwnLookups&) = delete;

 private:
  // relaxed: the thread that it names reads what it wrote itself
  std::atomic_ref<uint64_t> thread_{tessera_audit_driver.opening_thread};
};

driver_api::SearchPlaces search_places() {
  driver_api::SearchPlaces places = driver_api::search_places();
  audit::DriverSide& side = tessera_audit_driver;
  const bool chosen = places.explicit_path != nullptr && places.explicit_path[0] != 0;
  side.chosen_by_user = chosen ? 1 : 0;
  // acquire: pairs with the audit library's store
  if (std::atomic_ref(side.opened).load(std::memory_order_acquire) == audit::kPathThere)
    places.opened_path = side.opened_path;
  return places;
}

// Not if its calls come here all the same, by the audit library.
bool is_passed_by(const driver_api::OpenedDriver& driver) {
  const audit::DriverSide& side = tessera_audit_driver;
  return driver.was_open && (side.active == 0 || side.passed_by != 0);
}

void fill_tables() {
  base::lend_environment();
  const OwnLookups own_lookups;
  alignas(64) static driver_api::RealDriver opened;  // static: 5 KiB that a small thread stack may not have
  const driver_api::OpenedDriver driver = driver_api::open_driver(search_places(), &g_state, &opened);
  tessera_audit_driver.driver = driver.map;
  // Release: pairs with the audit library's load.
  std::atomic_ref(tessera_audit_driver.settled).store(1, std::memory_order_release);
  std::memcpy(&tessera_real_driver, &opened, sizeof opened);
  if (driver.path.size() < kMaxPath) std::memcpy(g_driver_path, driver.path.c_str(), driver.path.size() + 1);
  bump(&Counters::entries_missing, driver.entries_missing);
  bump(&Counters::captured_relocations, driver.captured_relocations);
  bump(&Counters::reopened_deepbind, driver.reopened_deepbind ? 1 : 0);
  build_address_index();

  const bool switched_off = is_on("TESSERA_DISABLE"), hooked = driver.found && !switched_off;
  bool has_hook[kEntryCount] = {};
  for (uint32_t i = 0; hooked && i < kHookCount; ++i) {
    has_hook[tessera_hook_table[i].row] = true;
    store_target(tessera_hook_table[i].row, tessera_hook_table[i].hook);
  }
  for (uint16_t row = 0; row < kEntryCount; ++row) {
    if (!has_hook[row]) store_target(row, driver_api::real_slot(static_cast<driver_api::Entry>(row)));
  }
  g_every_row = hooked && is_on("TESSERA_PARKABLE");
  const hooks::FirstCall first{driver.found,         switched_off, g_driver_path,
                               is_passed_by(driver), call_count,   exchange_slots};
  std::atomic_ref<uint32_t>(g_state).store(kReady, std::memory_order_release);
  base::futex_wake_all(&g_state);
  tessera_on_first_call(&first);
}

}  // namespace

constinit Counters g_counters{};
constinit bool g_every_row = false;

bool ensure_ready() {
  std::atomic_ref<uint32_t> state(g_state);
  // Acquire: pairs with the winner's release, so that the tables are seen filled.
  uint32_t seen = state.load(std::memory_order_acquire);
  if (seen == kReady) return true;
  const base::ErrnoGuard keep_errno;
  if (base::loader_is_binding()) {
    bump(&Counters::nested_in_init);
    return false;
  }
  const uint32_t me = own_mark();
  while (seen != kReady) {
    if (seen == me) {
      bump(&Counters::nested_in_init);
      return false;
    }
    if (seen == kFresh || !thread_exists(seen)) {
      if (state.compare_exchange_strong(seen, me, std::memory_order_acquire)) {
        fill_tables();
        return true;
      }
      continue;
    }
    base::futex_wait(&g_state, seen, kOwnerCheckNs);
    seen = state.load(std::memory_order_acquire);
  }
  return true;
}

void* exported_address(driver_api::Entry e) {
  return tessera_stub_addresses[static_cast<uint16_t>(e)];
}

uint64_t call_count(driver_api::Entry e) {
  uint64_t sum = 0;
  for (uint32_t shard = 0; shard < kTesseraShards; ++shard) {
    sum += std::atomic_ref<uint32_t>(tessera_counts[shard][static_cast<uint16_t>(e)])
               .load(std::memory_order_relaxed);
  }
  return sum;
}

Counters counters() {
  Counters copy;
  const auto* from = reinterpret_cast<uint64_t*>(&g_counters);
  auto* to = reinterpret_cast<uint64_t*>(&copy);
  static_assert(sizeof(Counters) % sizeof(uint64_t) == 0);
  for (size_t i = 0; i < sizeof(Counters) / sizeof(uint64_t); ++i) {
    to[i] = std::atomic_ref<uint64_t>(const_cast<uint64_t&>(from[i])).load(std::memory_order_relaxed);
  }
  return copy;
}

}  // namespace tessera::entry

extern "C" void* tessera_resolve(uint64_t row_or_unlisted) noexcept {
  using namespace tessera;
  // Pairs with exchange_slots(): hooks load slots of the real table without an order, and a jump makes none.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!entry::ensure_ready()) return reinterpret_cast<void*>(&tessera_answer_not_initialized);
  if (row_or_unlisted < 2 * driver_api::kEntryCount) {
    tessera_await_return();
    return entry::target_of(row_or_unlisted);
  }
  auto& unlisted = *reinterpret_cast<TesseraUnlisted*>(row_or_unlisted);
  void* target = driver_api::function_of(tessera_audit_driver.driver, unlisted.name);
  entry::bump(&entry::Counters::unlisted_called);
  std::atomic_ref<void*>(unlisted.target).store(target, std::memory_order_relaxed);
  return target;
}
