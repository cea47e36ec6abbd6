#include "interpose/memory/wait.h"

#include <link.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "interpose/state/config.h"

namespace tessera::memory {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Between two attempts: memory that programs without Tessera free is announced by nobody. A refused attempt costs the driver
// well below a millisecond, and a move of 1 GiB over the link takes longer than this.
constexpr uint64_t kBetweenAttemptsNs = 20'000'000;

// ---- allocators that free what they keep after a failure, and ask again

constexpr const char* kRetryingAllocators[] = {"/libc10_cuda.so",              // PyTorch
                                               "/libtensorflow_framework.so",  // BFC
                                               "/libtensorflow_cc.so",
                                               "/xla_cuda_plugin.so",
                                               "/xla_extension.so",
                                               "/libjax_common.so"};

int is_retrying_allocator(dl_phdr_info* object, size_t, void*) {
  return std::ranges::any_of(kRetryingAllocators,
                             [&](const char* name) { return strstr(object->dlpi_name, name) != nullptr; });
}

// Failures that were answered at once. Such an allocator asks for smaller and smaller pieces, so there are several; of one
// that falls out the next failure is answered at once again.
struct Answered {
  pid_t thread;
  int device;
  uint64_t bytes;  // 0: none
  bool operator==(const Answered&) const = default;
};
constexpr uint32_t kMostAnswered = 64;
pthread_mutex_t g_answering = PTHREAD_MUTEX_INITIALIZER;  // guards the two below
constinit Answered g_answered[kMostAnswered] = {};
constinit uint32_t g_next_answered = 0;
constinit std::atomic<bool> g_any_answered{false};  // some are there; a hint

bool forget_answered(const Answered& one) {
  const Lock lock(g_answering);
  Answered* const end = g_answered + kMostAnswered;
  Answered* const found = std::find(g_answered, end, one);
  if (found == end) return false;
  *found = {};
  return true;
}

// True: this failure is the program's first of its kind, and is answered at once.
bool answer_first(const Answered& one) {
  if (dl_iterate_phdr(is_retrying_allocator, nullptr) == 0 || forget_answered(one)) return false;
  const Lock lock(g_answering);
  g_answered[g_next_answered++ % kMostAnswered] = one;
  g_any_answered.store(true, kRelaxed);
  return true;
}

}  // namespace

bool Wait::may_begin() const {
  return state::config().memory_wait_ns != 0 && bytes_ != 0 && state::live() && !state::capture_open() &&
         could_fit(device_, bytes_) && !answer_first({gettid(), device_, bytes_});
}

bool Wait::again(CUresult result) {
  if (result != CUDA_ERROR_OUT_OF_MEMORY) [[likely]] {
    // It had what its allocator asked for again: the next failure is a first one.
    if (g_any_answered.load(kRelaxed)) [[unlikely]]
      (void)forget_answered({gettid(), device_, bytes_});
    return false;
  }
  const base::ErrnoGuard keep_errno;
  if (until_ns_ == 0) {
    if (!may_begin()) return false;
    const uint64_t now_ns = base::now_ns();
    until_ns_ = now_ns + state::config().memory_wait_ns;
    count_waiting(device_, bytes_, now_ns);
  }
  do {  // an attempt would spoil a capture that another thread has begun meanwhile
    const uint64_t now_ns = base::now_ns();
    if (now_ns >= until_ns_ || !state::live()) return false;
    static constinit const uint32_t nobody_wakes = 0;
    base::futex_wait(&nobody_wakes, 0, std::min(kBetweenAttemptsNs, until_ns_ - now_ns));
  } while (state::capture_open());
  return true;
}

Wait::~Wait() {
  if (until_ns_ != 0) count_waiting(device_, -int64_t(bytes_), 0);
}

}  // namespace tessera::memory
