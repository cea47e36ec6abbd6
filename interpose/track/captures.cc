#include <algorithm>

#include "interpose/gate/pulse.h"
#include "interpose/gate/window.h"
#include "interpose/state/process.h"
#include "interpose/track/graph_notes.h"
#include "interpose/track/graphs.h"
#include "interpose/track/track.h"

namespace tessera::track {
namespace {

constexpr uint32_t kCaptures = 64;
constexpr uint64_t kClaimed = UINT64_MAX;  // no key: the place is about to have one
constexpr auto kRelaxed = std::memory_order_relaxed;
// The thread that claims a place writes its graph; the thread that frees the place has read it.
struct OpenCapture {
  std::atomic<uint64_t> stream;  // key of the stream that it began in; 0: free
  std::atomic<CUgraph> graph;    // null: not known
  std::atomic<CUcontext> context;
};
constinit OpenCapture g_open[kCaptures] = {};

// Per-thread streams of different threads have one handle; the thread's own address tells them apart.
uint64_t capture_key(driver_api::StreamArg s) {
  const uint64_t key = state::stream_key(s);
  return key == 2 ? reinterpret_cast<uint64_t>(&state::t_thread) | 1 : key;
}

// The capture that began there is over, `graph` was its graph. False: none did.
bool forget(uint64_t key, CUgraph* graph) {
  for (OpenCapture& open : g_open) {
    if (open.stream.load(std::memory_order_acquire) != key) continue;  // pairs with capture_began()
    *graph = open.graph.exchange(nullptr, kRelaxed);
    uint64_t seen = key;
    if (open.stream.compare_exchange_strong(seen, 0, kRelaxed)) return true;
  }
  return false;
}

// It came to nothing.
void abandon(uint64_t key) {
  CUgraph graph = nullptr;
  if (!forget(key, &graph)) return;
  state::leave_exclusive();
  if (graph) notes_end_with(graph);
}

}  // namespace

CUcontext capture_begins(driver_api::StreamArg stream) noexcept {
  const CUcontext context = gate::context_of(stream);
  state::enter_exclusive();
  return context;
}

void capture_began(driver_api::StreamArg stream, CUresult result, CUcontext context) noexcept {
  if (result == CUDA_SUCCESS) {
    const CUgraph graph =
        state::g_state.role.load(kRelaxed) == state::Role::kBestEffort ? graph_of_capture(stream) : nullptr;
    for (OpenCapture& open : g_open) {
      uint64_t none = 0;
      if (!open.stream.compare_exchange_strong(none, kClaimed, kRelaxed)) continue;
      open.graph.store(graph, kRelaxed);
      open.context.store(context, kRelaxed);
      open.stream.store(capture_key(stream), std::memory_order_release);  // pairs with forget()
      return;                                                             // stays counted until it ends
    }
    return;  // more open captures than places: counted for ever, i.e. our queries stay away from the driver
  }
  state::leave_exclusive();
}

void capture_ended(driver_api::StreamArg stream, CUresult result, CUgraph graph) noexcept {
  // These leave the capture open: not this thread's, not capturing, not a stream.
  if (result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD || result == CUDA_ERROR_ILLEGAL_STATE ||
      result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE ||
      result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
    return;
  if (result != CUDA_SUCCESS) return abandon(capture_key(stream));
  if (CUgraph same = nullptr; forget(capture_key(stream), &same)) state::leave_exclusive();
  notes_complete(graph);
}

void captures_end_with(CUcontext context) noexcept {
  for (OpenCapture& open : g_open) {
    const uint64_t key = open.stream.load(std::memory_order_acquire);  // pairs with capture_began()
    if (key != 0 && key != kClaimed && (!context || open.context.load(kRelaxed) == context)) abandon(key);
  }
}

void capture_ends_with_thread() noexcept {
  abandon(capture_key({CU_STREAM_PER_THREAD, driver_api::Flavour::kLegacy}));
}

bool has_capture(CUstream stream) noexcept {
  const uint64_t key = reinterpret_cast<uint64_t>(stream);
  return std::ranges::any_of(g_open,
                             [=](const OpenCapture& open) { return open.stream.load(kRelaxed) == key; });
}

void stream_gone(CUstream stream, bool had_capture) noexcept {
  const uint64_t key = reinterpret_cast<uint64_t>(stream);
  if (had_capture) abandon(key);
  gate::forgive_stream(key);
  gate::forget_account_of(key);
  g_streams_gone.fetch_add(1, kRelaxed);
}

}  // namespace tessera::track
