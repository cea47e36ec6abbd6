#include "interpose/operations/split_proof.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string_view>

#include "base/clock.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "interpose/operations/split_counters.h"
#include "interpose/operations/split_key.h"
#include "interpose/operations/split_libraries.h"
#include "interpose/operations/split_memory.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Each of two copies has at most this number of bytes, and an eighth of what is free: a trial gives nothing back to another process.
// Half of it would take twice as many trials of large results.
constexpr uint64_t kMostBytes = uint64_t(32) << 20;
constexpr int kSmCount = 16;             // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr uint64_t kLookNs = 1'000'000;  // a wake may come before the sleep
constexpr uint64_t kMostWaitNs =
    10'000'000'000;  // for a thread in a trial, which may be held; then memory is refused

// While it lives, this thread may allocate, free and wait although another one has a stream capture open, which would otherwise
// end it (cuThreadExchangeStreamCaptureMode).
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver) : driver_(driver) { driver_.exchange_capture_mode(&mode_); }
  ~BesideCaptures() { driver_.exchange_capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  const Driver& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then what it was before
};

// One at a time.
//
//   kFree --> kPreparing (the calling thread) --> kPending --> kTaken (who compares, or gives back) --> kFree
//                  |                                  ^           |
//                  +--> kFree                         +-- not yet +
enum TrialState : uint32_t { kFree, kPreparing, kPending, kTaken };
struct Trial {
  std::atomic<uint32_t> state;
  // All below: who prepares or has taken it.
  uint64_t key;
  void *context, *event;
  uint64_t whole, pieces;  // allocations; the results lie `offset` behind, as far off as the program's
  uint64_t offset;
  operations::Region part;  // of the program's result
  uint32_t element_bytes;
  uint32_t first, end, all;  // the pieces that write it, of how many
};
constinit Trial g_trial = {};
constinit std::atomic<uint32_t> g_waiting{0};  // threads that were refused memory, and want this one's

// Says what this thread does in a trial of its own, inside which the library may be refused memory, too.
enum class Inside : uint8_t {
  kNone,
  kWhole,   // the program's call: nothing of ours is in use
  kOurs,    // pieces, copies, comparing
  kNoRoom,  // and memory was refused meanwhile
};
constinit thread_local Inside t_inside __attribute__((tls_model("initial-exec"))) = Inside::kNone;

bool take(TrialState from, TrialState to) {
  uint32_t expected = from;
  // acquire: pairs with the release in set_state()
  return g_trial.state.compare_exchange_strong(expected, to, std::memory_order_acquire, kRelaxed);
}
void set_state(TrialState state) {
  g_trial.state.store(state, std::memory_order_release);
  if (g_waiting.load(kRelaxed)) base::futex_wake_all(reinterpret_cast<const uint32_t*>(&g_trial.state));
}

// Waits for what was enqueued with it.
void free_memory(const Driver& driver) {
  const BesideCaptures relaxed(driver);
  if (g_trial.event) driver.end_event(g_trial.event);
  if (g_trial.whole) driver.release(g_trial.whole);
  if (g_trial.pieces) driver.release(g_trial.pieces);
  g_trial.event = nullptr;
  g_trial.whole = g_trial.pieces = 0;
}

// The result lies in one allocation of the program.
bool is_allocated(const Driver& driver, const operations::Region& result) {
  size_t allocated = 0;
  uint64_t base = 0;
  return driver.range(&base, &allocated, result.address) == 0 && result.address >= base &&
         allocated >= result.address - base && allocated - (result.address - base) >= result.extent();
}

// As many pieces, from `first` on, as there is room for. False: for none.
bool choose_part(const Driver& driver, const operations::Result& result, const operations::Split& cut,
                 uint32_t first) {
  size_t free = 0, total = 0;
  if (driver.memory(&free, &total) != 0) return false;
  Trial& t = g_trial;
  const uint64_t room = std::min<uint64_t>(kMostBytes, free / 8);
  t.first = first;
  t.all = uint32_t(cut.pieces());
  for (t.end = t.all; t.end > first; t.end--) {
    t.part = operations::region_of(result, cut, first, t.end - first);
    if (t.part.extent() <= room) return true;
  }
  return false;
}

bool allocate(const Driver& driver) {
  const BesideCaptures relaxed(driver);
  Trial& t = g_trial;
  t.offset = t.part.address % kAlignment;
  const uint64_t bytes = t.part.extent() + kAlignment;
  return driver.get_context(&t.context) == 0 && t.context &&
         driver.make_event(&t.event, 2 /* no timing */) == 0 && driver.allocate(&t.whole, bytes) == 0 &&
         driver.allocate(&t.pieces, bytes) == 0;
}

// ---- comparing

constexpr size_t kWindow = 64 * 1024;
constinit unsigned char g_windows[2][kWindow] = {};  // under kTaken

// Results that are equal whatever the order of their sums prove nothing: zeros, ones, small whole numbers. Those of an untrained
// network, or of a program that warms up, are such. A result counts if it has values enough of which the last bits are set.
class Evidence {
 public:
  void add(const unsigned char* values, size_t bytes, size_t each) {
    for (size_t at = 0; at + each <= bytes && n_seen_ < kEnough; at += each) {
      uint64_t value = 0;
      memcpy(&value, values + at, std::min(each, sizeof value));
      // Little-endian. Of a short number all bits are last ones.
      if (value == 0 || (each >= kLongBytes && values[at] == 0)) continue;
      const uint64_t hash = value * 0x9e3779b97f4a7c15u >> 54;
      uint64_t& word = seen_[hash / 64];
      n_seen_ += (word >> hash % 64 & 1) == 0;
      word |= uint64_t(1) << hash % 64;
    }
  }
  bool is_enough(uint64_t n_values) const {
    return n_seen_ >= std::clamp<uint64_t>(n_values / 4, 2, kEnough);
  }

 private:
  // Sums of 64 products that differ in order agree by chance in a bit here and there, not in all values.
  static constexpr uint64_t kEnough = 64;
  static constexpr size_t kLongBytes = 4;
  uint64_t seen_[16] = {};  // a bit for each value, by its hash
  uint64_t n_seen_ = 0;
};

// One stretch of both results, read window by window.
enum class Outcome { kEqual, kSaysNothing, kUnequal, kFailed };
Outcome compare(const Driver& driver, void* stream, uint64_t at, uint64_t bytes, Evidence& evidence) {
  while (bytes != 0) {
    const size_t n = bytes < kWindow ? size_t(bytes) : kWindow;
    if (driver.read(g_windows[0], g_trial.whole + at, n, stream) != 0 ||
        driver.read(g_windows[1], g_trial.pieces + at, n, stream) != 0 || driver.wait(stream) != 0)
      return Outcome::kFailed;
    if (memcmp(g_windows[0], g_windows[1], n) != 0) return Outcome::kUnequal;
    evidence.add(g_windows[0], n, g_trial.element_bytes);
    at += n;
    bytes -= n;
  }
  return Outcome::kEqual;
}

// The stretches alone: what lies between them is not of this call, and may change meanwhile.
Outcome compare_results(const Driver& driver, void* stream) {
  const operations::Region& r = g_trial.part;
  Evidence evidence;
  for (uint64_t outer = 0; outer < r.outer; outer++)
    for (uint64_t inner = 0; inner < r.inner; inner++) {
      const uint64_t at = g_trial.offset + outer * r.outer_step + inner * r.inner_step;
      if (const Outcome o = compare(driver, stream, at, r.bytes, evidence); o != Outcome::kEqual) return o;
    }
  const uint64_t n_values = r.outer * r.inner * (r.bytes / g_trial.element_bytes);
  return evidence.is_enough(n_values) ? Outcome::kEqual : Outcome::kSaysNothing;
}

// ---- what is compared with what

constinit std::atomic<uint64_t> g_environment{
    0};  // hash of what the libraries read of it; 0: nothing can be compared

void conclude(const operations::NoteReader& reader, Outcome outcome) {
  const Trial& t = g_trial;
  switch (outcome) {
    case Outcome::kEqual:
      if (t.end < t.all) return end_trial_of_some(t.key, t.end);
      reader.count(kSplitProven, 1);
      return end_trial(t.key, Equality::kEqual);
    case Outcome::kSaysNothing:
      return end_trial_that_says_nothing(t.key);
    case Outcome::kUnequal:
      reader.count(kSplitUnequal, 1);
      return end_trial(t.key, Equality::kUnequal);
    case Outcome::kFailed:
      return end_trial(t.key, Equality::kUnknown);
  }
}

void compare_when_done() {
  if (t_inside != Inside::kNone || g_trial.state.load(kRelaxed) != kPending) return;
  const operations::NoteReader* reader = note_reader();
  const Driver* const driver = splitting_driver();
  if (!driver || !reader || !reader->undisturbed() || !take(kPending, kTaken)) return;
  const base::ErrnoGuard keep_errno;
  t_inside = Inside::kOurs;  // waiting for our own copies comes here again
  const BesideCaptures relaxed(*driver);
  void *context = nullptr, *stream = nullptr;
  const bool here =
      driver->get_context(&context) == 0 && context == g_trial.context && driver->passed(g_trial.event) == 0;
  if (here && driver->make_stream(&stream, 1 /* non-blocking */) == 0) {
    const Outcome outcome = compare_results(*driver, stream);
    driver->end_stream(stream);
    free_memory(*driver);
    conclude(*reader, outcome);
    set_state(kFree);
  } else {
    set_state(kPending);
  }
  t_inside = Inside::kNone;
}

// Nothing is left to free.
void trial_ends_with(const void* context) {
  if (g_trial.state.load(kRelaxed) != kPending || !take(kPending, kTaken)) return;
  Trial& t = g_trial;
  if (context && context != t.context) return set_state(kPending);
  t.event = nullptr;
  t.whole = t.pieces = 0;
  end_trial(t.key, Equality::kUnknown);
  set_state(kFree);
}

// Not 0: there was a trial, and what it held is free.
uint32_t give_memory_back() {
  const Driver* const driver = splitting_driver();
  if (!driver || g_trial.state.load(kRelaxed) == kFree) return 0;
  const base::ErrnoGuard keep_errno;
  if (t_inside != Inside::kNone) {
    const bool unused = t_inside == Inside::kWhole;
    t_inside = Inside::kNoRoom;
    if (unused) free_memory(*driver);
    return unused;
  }
  g_waiting.fetch_add(1, kRelaxed);
  uint32_t given = 0;
  for (const uint64_t begin = base::now_ns(); !given && base::now_ns() - begin < kMostWaitNs;) {
    if (take(kPending, kTaken)) {
      free_memory(*driver);
      end_trial(g_trial.key, Equality::kUnknown);
      set_state(kFree);
    }
    const uint32_t state = g_trial.state.load(std::memory_order_acquire);  // pairs with set_state()
    given = state == kFree;
    if (state == kPreparing || state == kTaken)
      base::futex_wait(reinterpret_cast<const uint32_t*>(&g_trial.state), state, kLookNs);
  }
  g_waiting.fetch_sub(1, kRelaxed);
  return given;
}

}  // namespace

// How precise emulated double precision is may depend on the numbers of whole matrices.
void read_library_environment() {
  const char* emulate = getenv("CUBLAS_EMULATE_DOUBLE_PRECISION");
  if (emulate && strcmp(emulate, "0") != 0) return;
  uint64_t sum = 0;  // in any order
  for (char** variable = environ; variable && *variable; variable++)
    for (const std::string_view prefix : {"CUBLAS", "CUDNN_", "NVIDIA_TF32_OVERRIDE="})
      if (std::string_view(*variable).starts_with(prefix))
        sum += ClassKey().add_bytes(*variable, strlen(*variable)).value();
  g_environment.store(sum ? sum : 1, kRelaxed);  // published by the role
}

// MPS may give a process a part of the SMs, by whose number libraries choose kernels.
uint64_t machine_key() {
  const Driver* driver = splitting_driver();
  const uint64_t environment = g_environment.load(kRelaxed);
  int device = 0, version = 0, sms = 0;
  char name[256] = {};
  if (environment == 0 || !driver || driver->get_device(&device) != 0 ||
      driver->name(name, sizeof name - 1, device) != 0 || driver->version(&version) != 0 ||
      driver->attribute(&sms, kSmCount, device) != 0)
    return 0;
  return ClassKey().add_bytes(name, strlen(name)).add(version, sms, environment).value();
}

bool try_split(SplitCall& what, const operations::Split& cut, uint64_t key, int* status) {
  const Driver* const driver = splitting_driver();
  const auto result = what.result();
  void* stream = nullptr;
  if (!driver || !result || !what.stream(&stream) || !take(kFree, kPreparing)) return false;
  const auto first = begin_trial(key);
  if (!first) return set_state(kFree), false;
  t_inside = Inside::kOurs;
  const auto give_up = [&](Equality verdict) {
    free_memory(*driver);
    // There may be room another time.
    end_trial(key, t_inside == Inside::kNoRoom ? Equality::kUnknown : verdict);
    set_state(kFree);
    t_inside = Inside::kNone;
    return false;
  };
  Trial& t = g_trial;
  t.key = key;
  t.element_bytes = result->c.bits / 8;
  const auto whole = operations::region_of(result->shape, result->c);
  if (!whole || !is_allocated(*driver, *whole) || !choose_part(*driver, *result, cut, *first))
    return give_up(Equality::kUnknown);
  if (!allocate(*driver)) return give_up(Equality::kTried);
  const uint64_t part = t.part.address, bytes = t.part.extent(), copy = t.pieces + t.offset;
  if (driver->copy(copy, part, bytes, stream) != 0) return give_up(Equality::kTried);
  t_inside = Inside::kWhole;
  *status = what.issue_whole();
  // From here on the call is made, whatever becomes of the trial.
  if (t_inside == Inside::kWhole) t_inside = Inside::kOurs;
  const bool copied =
      *status == 0 && t_inside == Inside::kOurs && driver->copy(t.whole + t.offset, part, bytes, stream) == 0;
  bool accepted = true, interrupted = false;
  for (uint32_t i = t.first; copied && accepted && i < t.end; i++) {
    if (g_waiting.load(kRelaxed)) interrupted = true;
    accepted = !interrupted && what.issue(cut, i, copy - (part - whole->address)) == 0;
  }
  if (copied && accepted && driver->record(t.event, stream) == 0) {
    t_inside = Inside::kNone;
    set_state(kPending);
  } else {
    give_up(interrupted ? Equality::kUnknown : accepted ? Equality::kTried : Equality::kUnequal);
  }
  return true;
}

const operations::Listener kTrialListener = {
    .waited = compare_when_done, .context_ended = trial_ends_with, .memory_short = give_memory_back};

}  // namespace tessera::library
