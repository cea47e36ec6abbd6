#include "interpose/operations/split_proof.h"

#include <string.h>

#include <atomic>

#include "base/errno_guard.h"
#include "interpose/operations/split_arguments.h"
#include "interpose/operations/split_counters.h"
#include "interpose/operations/split_libraries.h"
#include "interpose/operations/split_memory.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kInHostMemory = 0;      // cublasPointerMode_t
constexpr uint64_t kAlignment = 256;  // of the driver's memory; ours is as far off as the program's
constexpr uint64_t kMostBytes = uint64_t(256) << 20;  // of C; and at most an eighth of what is free

uint64_t hash_of_bytes(const void* bytes, size_t n, uint64_t hash = 1) {
  const auto* byte = static_cast<const unsigned char*>(bytes);
  for (size_t i = 0; i < n; i++) hash = mixed_in(hash, uint64_t(byte[i]));
  return hash;
}

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

// One at a time. kFree -> kPreparing (the calling thread) -> kPending -> kComparing (who has waited) -> kFree.
enum TrialState : uint32_t { kFree, kPreparing, kPending, kComparing };
struct Trial {
  std::atomic<uint32_t> state;
  uint64_t key;
  void *context, *event;
  uint64_t whole, pieces;  // allocations; the results lie `offset` behind
  uint64_t offset;
  operations::GemmShape shape;
  operations::Matrix c;
};
constinit Trial g_trial = {};

void free_trial(const Driver& driver) {
  const BesideCaptures relaxed(driver);
  if (g_trial.event) driver.end_event(g_trial.event);
  if (g_trial.whole) driver.release(g_trial.whole);
  if (g_trial.pieces) driver.release(g_trial.pieces);
  g_trial.event = nullptr;
  g_trial.whole = g_trial.pieces = 0;
}

// C as one allocation of the program holds it, and room for two more of it.
bool room_for(const Driver& driver, uint64_t address, uint64_t bytes) {
  size_t free = 0, total = 0, allocated = 0;
  uint64_t base = 0;
  if (driver.range(&base, &allocated, address) != 0 || address < base || allocated - (address - base) < bytes)
    return false;
  return bytes <= kMostBytes && driver.memory(&free, &total) == 0 && bytes <= free / 8;
}

bool prepare(const Driver& driver, const SplitCall& what, uint64_t bytes) {
  const BesideCaptures relaxed(driver);
  Trial& t = g_trial;
  t.offset = what.c.address % kAlignment;
  t.shape = what.shape;
  t.c = what.c;
  return driver.get_context(&t.context) == 0 && t.context &&
         driver.make_event(&t.event, 2 /* no timing */) == 0 &&
         driver.allocate(&t.whole, bytes + kAlignment) == 0 &&
         driver.allocate(&t.pieces, bytes + kAlignment) == 0;
}

// ---- comparing

constexpr size_t kWindow = 64 * 1024;
constinit unsigned char g_windows[2][kWindow] = {};  // under kComparing

// One stretch of both results, read window by window.
enum class Outcome { kEqual, kUnequal, kFailed };
Outcome compare(const Driver& driver, void* stream, uint64_t at, uint64_t bytes) {
  while (bytes != 0) {
    const size_t n = bytes < kWindow ? size_t(bytes) : kWindow;
    if (driver.read(g_windows[0], g_trial.whole + at, n, stream) != 0 ||
        driver.read(g_windows[1], g_trial.pieces + at, n, stream) != 0 || driver.wait(stream) != 0)
      return Outcome::kFailed;
    if (memcmp(g_windows[0], g_windows[1], n) != 0) return Outcome::kUnequal;
    at += n;
    bytes -= n;
  }
  return Outcome::kEqual;
}

// Columns alone: what lies between them is not of this call, and may change meanwhile.
Outcome compare_columns(const Driver& driver, void* stream) {
  const Trial& t = g_trial;
  const uint64_t element = t.c.bits / 8, column = uint64_t(t.shape.m) * element;
  const bool dense = t.c.leading == t.shape.m;
  const uint64_t columns = dense ? 1 : uint64_t(t.shape.n);
  const uint64_t stretch = dense ? column * uint64_t(t.shape.n) : column;
  for (uint64_t product = 0; product < uint64_t(t.shape.count); product++)
    for (uint64_t j = 0; j < columns; j++) {
      const uint64_t at = t.offset + (product * uint64_t(t.c.stride) + j * uint64_t(t.c.leading)) * element;
      if (const Outcome o = compare(driver, stream, at, stretch); o != Outcome::kEqual) return o;
    }
  return Outcome::kEqual;
}

constexpr Verdict verdict_of(Outcome outcome) {
  return outcome == Outcome::kEqual     ? Verdict::kEqual
         : outcome == Outcome::kUnequal ? Verdict::kUnequal
                                        : Verdict::kUnknown;
}

constinit thread_local bool t_comparing __attribute__((tls_model("initial-exec"))) = false;

}  // namespace

uint64_t environment_of(const SplitCall& what) {
  const Libraries& l = libraries();
  int version = 0, mode = 0, pointers = 0, atomics = 0, target = 0, device = 0, driver = 0;
  char name[256] = {};
  if (!l.complete || !of_asked_library(what.function)) return 0;
  if (l.settings.version(what.handle, &version) != 0 || l.settings.math_mode(what.handle, &mode) != 0 ||
      l.settings.pointer_mode(what.handle, &pointers) != 0 ||
      l.settings.atomics_mode(what.handle, &atomics) != 0 ||
      (l.settings.sm_target && l.settings.sm_target(what.handle, &target) != 0) ||
      l.driver.get_device(&device) != 0 || l.driver.name(name, sizeof name - 1, device) != 0 ||
      l.driver.version(&driver) != 0)
    return 0;
  uint64_t hash = hash_of_bytes(name, strlen(name));
  // A library that can read them may choose by them.
  if (pointers == kInHostMemory) {
    if (!what.alpha || !what.beta || what.scalar_bytes == 0) return 0;
    for (const void* scalar : {what.alpha, what.beta}) hash = hash_of_bytes(scalar, what.scalar_bytes, hash);
  }
  for (const int part : {version, mode, pointers, atomics, target, driver})
    hash = mixed_in(hash, uint64_t(part));
  return hash;
}

bool try_split(const SplitCall& what, const operations::Split& split, const PieceIssuer& issuer, uint64_t key,
               int* status) {
  const Libraries& l = libraries();
  const auto bytes = operations::extent_of(what.shape, what.c);
  void* stream = nullptr;
  uint32_t free = kFree;
  if (!l.complete || !bytes || l.settings.stream(what.handle, &stream) != 0) return false;
  // acquire: pairs with the release of whoever had it before
  if (!g_trial.state.compare_exchange_strong(free, kPreparing, std::memory_order_acquire, kRelaxed))
    return false;
  const auto give_up = [&](Verdict verdict) {
    free_trial(l.driver);
    end_trial(key, verdict);
    g_trial.state.store(kFree, std::memory_order_release);
    return false;
  };
  if (!begin_trial(key)) {
    g_trial.state.store(kFree, std::memory_order_release);
    return false;
  }
  if (!room_for(l.driver, what.c.address, *bytes)) return give_up(Verdict::kUnknown);
  if (!prepare(l.driver, what, *bytes)) return give_up(Verdict::kTried);
  Trial& t = g_trial;
  t.key = key;
  SplitCall copy = what;
  copy.c.address = t.pieces + t.offset;
  if (l.driver.copy(copy.c.address, what.c.address, *bytes, stream) != 0) return give_up(Verdict::kTried);
  *status = issuer.issue(issuer.context, as_asked(what));
  // From here on the call is made, whatever becomes of the trial.
  const bool copied = *status == 0 && l.driver.copy(t.whole + t.offset, what.c.address, *bytes, stream) == 0;
  bool accepted = true;
  for (int64_t i = 0; copied && accepted && i < split.pieces(); i++)
    accepted =
        issuer.issue(issuer.context, operations::piece_of(split, copy.shape, copy.a, copy.b, copy.c, i)) == 0;
  if (copied && accepted && l.driver.record(t.event, stream) == 0)
    t.state.store(kPending, std::memory_order_release);
  else
    give_up(accepted ? Verdict::kTried : Verdict::kUnequal);  // freeing waits for what was enqueued
  return true;
}

void compare_when_done() {
  uint32_t pending = kPending;
  if (t_comparing || g_trial.state.load(kRelaxed) != kPending) return;
  const operations::NoteReader* reader = note_reader();
  const Driver& driver = libraries().driver;
  if (!reader || !reader->undisturbed()) return;
  // acquire: pairs with the release that made it pending
  if (!g_trial.state.compare_exchange_strong(pending, kComparing, std::memory_order_acquire, kRelaxed))
    return;
  const base::ErrnoGuard keep_errno;
  t_comparing = true;  // waiting for our own copies comes here again
  const BesideCaptures relaxed(driver);
  void *context = nullptr, *stream = nullptr;
  const bool here =
      driver.get_context(&context) == 0 && context == g_trial.context && driver.passed(g_trial.event) == 0;
  if (here && driver.make_stream(&stream, 1 /* non-blocking */) == 0) {
    const Outcome outcome = compare_columns(driver, stream);
    driver.end_stream(stream);
    free_trial(driver);
    end_trial(g_trial.key, verdict_of(outcome));
    if (outcome == Outcome::kEqual) reader->count(kSplitProven, 1);
    if (outcome == Outcome::kUnequal) reader->count(kSplitUnequal, 1);
    g_trial.state.store(kFree, std::memory_order_release);
  } else {
    g_trial.state.store(kPending, std::memory_order_release);
  }
  t_comparing = false;
}

}  // namespace tessera::library
