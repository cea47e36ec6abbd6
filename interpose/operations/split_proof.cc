#include "interpose/operations/split_proof.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "base/errno_guard.h"
#include "interpose/operations/split_counters.h"
#include "interpose/operations/split_key.h"
#include "interpose/operations/split_libraries.h"
#include "interpose/operations/split_memory.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kMostBytes = uint64_t(256) << 20;  // of the result; and at most an eighth of what is free

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
  uint64_t whole, pieces;  // allocations; the results lie `offset` behind, as far off as the program's
  uint64_t offset;
  operations::Region result;  // the program's
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

// The result lies in one allocation of the program, and there is room for two more of it.
bool room_for(const Driver& driver, uint64_t address, uint64_t bytes) {
  size_t free = 0, total = 0, allocated = 0;
  uint64_t base = 0;
  if (driver.range(&base, &allocated, address) != 0 || address < base || allocated - (address - base) < bytes)
    return false;
  return bytes <= kMostBytes && driver.memory(&free, &total) == 0 && bytes <= free / 8;
}

bool prepare(const Driver& driver, const operations::Region& result) {
  const BesideCaptures relaxed(driver);
  Trial& t = g_trial;
  t.offset = result.address % kAlignment;
  t.result = result;
  const uint64_t bytes = result.extent() + kAlignment;
  return driver.get_context(&t.context) == 0 && t.context &&
         driver.make_event(&t.event, 2 /* no timing */) == 0 && driver.allocate(&t.whole, bytes) == 0 &&
         driver.allocate(&t.pieces, bytes) == 0;
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

// The stretches alone: what lies between them is not of this call, and may change meanwhile.
Outcome compare_results(const Driver& driver, void* stream) {
  const operations::Region& r = g_trial.result;
  for (uint64_t outer = 0; outer < r.outer; outer++)
    for (uint64_t inner = 0; inner < r.inner; inner++) {
      const uint64_t at = g_trial.offset + outer * r.outer_step + inner * r.inner_step;
      if (const Outcome o = compare(driver, stream, at, r.bytes); o != Outcome::kEqual) return o;
    }
  return Outcome::kEqual;
}

// ---- what is compared with what

constinit std::atomic<uint64_t> g_environment{
    0};  // hash of what the libraries read of it; 0: nothing can be compared

constexpr Verdict verdict_of(Outcome outcome) {
  return outcome == Outcome::kEqual     ? Verdict::kEqual
         : outcome == Outcome::kUnequal ? Verdict::kUnequal
                                        : Verdict::kUnknown;
}

constinit thread_local bool t_comparing __attribute__((tls_model("initial-exec"))) = false;

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

uint64_t machine_key() {
  const Driver* driver = splitting_driver();
  const uint64_t environment = g_environment.load(kRelaxed);
  int device = 0, version = 0;
  char name[256] = {};
  if (environment == 0 || !driver || driver->get_device(&device) != 0 ||
      driver->name(name, sizeof name - 1, device) != 0 || driver->version(&version) != 0)
    return 0;
  return ClassKey().add_bytes(name, strlen(name)).add(version, environment).value();
}

bool try_split(SplitCall& what, const operations::Split& cut, uint64_t key, int* status) {
  const Driver* const driver = splitting_driver();
  const auto result = what.result();
  void* stream = nullptr;
  uint32_t free = kFree;
  if (!driver || !result || !what.stream(&stream)) return false;
  // acquire: pairs with the release of whoever had it before
  if (!g_trial.state.compare_exchange_strong(free, kPreparing, std::memory_order_acquire, kRelaxed))
    return false;
  const auto give_up = [&](Verdict verdict) {
    free_trial(*driver);
    end_trial(key, verdict);
    g_trial.state.store(kFree, std::memory_order_release);
    return false;
  };
  if (!begin_trial(key)) {
    g_trial.state.store(kFree, std::memory_order_release);
    return false;
  }
  const uint64_t bytes = result->extent();
  if (!room_for(*driver, result->address, bytes)) return give_up(Verdict::kUnknown);
  if (!prepare(*driver, *result)) return give_up(Verdict::kTried);
  Trial& t = g_trial;
  t.key = key;
  const uint64_t copy = t.pieces + t.offset;
  if (driver->copy(copy, result->address, bytes, stream) != 0) return give_up(Verdict::kTried);
  *status = what.issue_whole();
  // From here on the call is made, whatever becomes of the trial.
  const bool copied = *status == 0 && driver->copy(t.whole + t.offset, result->address, bytes, stream) == 0;
  bool accepted = true;
  for (int64_t i = 0; copied && accepted && i < cut.pieces(); i++) accepted = what.issue(cut, i, copy) == 0;
  if (copied && accepted && driver->record(t.event, stream) == 0)
    t.state.store(kPending, std::memory_order_release);
  else
    give_up(accepted ? Verdict::kTried : Verdict::kUnequal);  // freeing waits for what was enqueued
  return true;
}

void compare_when_done() {
  uint32_t pending = kPending;
  if (t_comparing || g_trial.state.load(kRelaxed) != kPending) return;
  const operations::NoteReader* reader = note_reader();
  const Driver* const found = splitting_driver();
  if (!found || !reader || !reader->undisturbed()) return;
  const Driver& driver = *found;
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
    const Outcome outcome = compare_results(driver, stream);
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
