#include "interpose/state/process.h"

#include <sched.h>

#include "interpose/state/state.h"

namespace tessera::state {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kSeqCst = std::memory_order_seq_cst;

constinit std::atomic<int> g_device{-1};
constinit std::atomic<uint64_t> g_devices{0};
constinit std::atomic<CUcontext> g_contexts[kContexts] = {};
constexpr uint32_t kFaces = 64;  // of more green contexts nothing is known
struct Face {
  std::atomic<CUcontext> face, primary;
};
constinit Face g_faces[kFaces] = {};
constinit std::atomic<uint32_t> g_faces_used{0};  // high-water mark

}  // namespace

constinit std::atomic<Phase> g_phase{Phase::kPreinit};
constinit std::atomic<uint32_t> g_sm_count{0};

void enter_exclusive(uint32_t as) {
  g_state.captures.fetch_add(as, kSeqCst);  // pairs with enter_driver, and with keep_credit:
  begin_epoch();                            // whoever sees the epoch sees the capture
  while (g_state.inside.load(kSeqCst) != 0) sched_yield();
}
void leave_exclusive(uint32_t as) {
  g_state.captures.fetch_sub(as, kSeqCst);
}
bool capture_open() {
  return g_state.captures.load(kSeqCst) % kLocked != 0;
}

void device_seen(CUdevice device) {
  int none = -1;
  g_device.compare_exchange_strong(none, device, std::memory_order_acq_rel);
  if (device < 0 || device >= 64) return;
  const uint64_t bit = uint64_t(1) << device;
  if ((g_devices.load(kRelaxed) & bit) == 0) g_devices.fetch_or(bit, kRelaxed);
}

uint64_t devices_seen() {
  return g_devices.load(kRelaxed);
}

int device() {
  return g_device.load(std::memory_order_acquire);
}

void context_seen(CUcontext context) {
  if (!context) return;
  for (auto& slot : g_contexts)
    if (slot.load(kRelaxed) == context) return;
  for (auto& slot : g_contexts) {
    CUcontext none = nullptr;
    if (!slot.compare_exchange_strong(none, context, std::memory_order_acq_rel)) continue;
    g_state.n_contexts.fetch_add(1, kRelaxed);
    return;
  }
}

void context_gone(CUcontext context) {
  for (auto& slot : g_contexts) {
    CUcontext seen = slot.load(kRelaxed);
    if (!seen || (context && seen != context)) continue;
    if (slot.compare_exchange_strong(seen, nullptr, std::memory_order_acq_rel))
      g_state.n_contexts.fetch_sub(1, kRelaxed);
  }
}

uint32_t copy_contexts(CUcontext* out, uint32_t capacity) {
  uint32_t n = 0;
  for (auto& slot : g_contexts)
    if (CUcontext c = slot.load(std::memory_order_acquire); c && n < capacity) out[n++] = c;
  return n;
}

void face_made(CUcontext face, CUcontext primary) {
  for (Face& slot : g_faces) {
    CUcontext none = nullptr;
    if (!slot.face.compare_exchange_strong(none, face, std::memory_order_acq_rel)) continue;
    slot.primary.store(primary, kRelaxed);  // before anybody has the handle
    const auto used = uint32_t(&slot - g_faces) + 1;
    uint32_t seen = g_faces_used.load(kRelaxed);
    while (seen < used && !g_faces_used.compare_exchange_weak(seen, used, std::memory_order_release)) {
    }
    return;
  }
}

void face_gone(CUcontext face) {
  for (Face& slot : g_faces) {
    CUcontext seen = face;
    slot.face.compare_exchange_strong(seen, nullptr, std::memory_order_acq_rel);
  }
}

CUcontext owner_of(CUcontext context) {
  const uint32_t used = g_faces_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++)
    if (g_faces[i].face.load(std::memory_order_acquire) == context) return g_faces[i].primary.load(kRelaxed);
  return context;
}

}  // namespace tessera::state
