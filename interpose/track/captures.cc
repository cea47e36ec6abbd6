#include "interpose/gate/pulse.h"
#include "interpose/gate/window.h"
#include "interpose/state/process.h"
#include "interpose/track/graph_notes.h"
#include "interpose/track/graphs.h"
#include "interpose/track/track.h"

namespace tessera::track {
namespace {

constexpr uint32_t kCaptures = 64;
constexpr auto kRelaxed = std::memory_order_relaxed;
constinit std::atomic<uint64_t> g_capturing[kCaptures] = {};  // stream keys; 0 = free

// Per-thread streams of different threads have one handle; the thread's own address tells them apart.
uint64_t capture_key(driver_api::StreamArg s) {
  const uint64_t key = state::stream_key(s);
  return key == 2 ? reinterpret_cast<uint64_t>(&state::t_thread) | 1 : key;
}

bool forget(uint64_t key) {
  for (auto& slot : g_capturing) {
    uint64_t seen = key;
    if (slot.load(kRelaxed) == key && slot.compare_exchange_strong(seen, 0, kRelaxed)) return true;
  }
  return false;
}

}  // namespace

void capture_begins() noexcept {
  state::enter_exclusive();
}

void capture_began(driver_api::StreamArg stream, CUresult result) noexcept {
  if (result == CUDA_SUCCESS) {
    const uint64_t key = capture_key(stream);
    for (auto& slot : g_capturing) {
      uint64_t none = 0;
      if (slot.compare_exchange_strong(none, key, kRelaxed)) return;  // stays counted until it ends
    }
    return;  // more open captures than places: counted for ever, i.e. our queries stay away from the driver
  }
  state::leave_exclusive();
}

bool capture_ended(driver_api::StreamArg stream, CUresult result) noexcept {
  // These leave the capture open: not this thread's, not capturing, not a stream.
  if (result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD || result == CUDA_ERROR_ILLEGAL_STATE ||
      result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE ||
      result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED)
    return false;
  if (forget(capture_key(stream))) state::leave_exclusive();
  return true;
}

void stream_gone(CUstream stream) noexcept {
  const uint64_t key = reinterpret_cast<uint64_t>(stream);
  if (forget(key)) {
    state::leave_exclusive();
    notes_complete(nullptr);
  }
  gate::forgive_stream(key);
  gate::forget_account_of(key);
  g_streams_gone.fetch_add(1, kRelaxed);
}

}  // namespace tessera::track
