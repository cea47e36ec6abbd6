// Hooks of the classes copy and memset. They announce a protected client (the input copy comes before its
// first kernel), and count as work of a best-effort client: bytes over the device's bandwidth.
#include <bit>

#include "driver_api/transfer.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/rates.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/units.h"

namespace tessera::hooks {

using namespace gate;
using namespace state;

namespace {

using driver_api::StreamArg;
constexpr uint32_t kMemoryBound = 2;  // resource class of the pulse

// Tells bursts apart that begin with a copy: programs copy their input and their result. Sizes count to a factor of four, so
// that inputs of about one size are one burst; below 256 KiB all take about as long.
uint64_t identity_of(const driver_api::Transfer& transfer) {
  return uint64_t(transfer.direction) << 8 | uint64_t(std::bit_width(transfer.bytes >> 18)) / 2;
}

template <class Describe, class F>
inline CUresult moved(StreamArg stream, Describe&& describe, F&& call) {
  const Role role = g_state.role.load(std::memory_order_relaxed);
  if (role == Role::kForward) return call();
  const driver_api::Transfer transfer = describe();
  const bool blocking = transfer.ended_on_return;
  if (role == Role::kBestEffort) {
    Thread& t = t_thread;
    if (!t.slot) claim_slot(t);
    AccountCover cover;
    if (blocking) cover_account_of(cover, stream);
    const auto waiting_call = [&] { return blocked(call); };
    const uint64_t ns = transfer_ns(transfer, rates());
    const CUresult result = blocking ? best_effort_unit(stream, ns, nullptr, 0, true, waiting_call)
                                     : best_effort_unit(stream, ns, nullptr, 0, false, call);
    if (blocking && result == CUDA_SUCCESS) accounts_covered(cover);
    return result;
  }
  const uint64_t key = stream_key(stream);
  Cover cover;
  if (blocking) cover_stream(cover, key);
  const Work work = begin_work(key, kMemoryBound, identity_of(transfer));
  const CUresult result = call();
  end_work(work);
  if (blocking && result == CUDA_SUCCESS) {
    // Earlier samples have ended, and so has this copy: it is the last of this thread's calls in the stream.
    if (!work.shared && work.count->key.load(std::memory_order_relaxed) == key)
      advance(*work.count, work.count->ended.load(std::memory_order_relaxed));
    covered(cover, true);
  }
  return result;
}

}  // namespace
}  // namespace tessera::hooks

#define TS_HOOK_copy(symbol, base, since, stream, ret, params, args)                   \
  extern "C" ret hook_##symbol params noexcept {                                       \
    using namespace tessera;                                                           \
    return hooks::moved(                                                               \
        TS_STREAM_ARG(stream), [&] { return driver_api::transfer::of_##symbol args; }, \
        [&]() -> ret { return driver_api::real().symbol args; });                      \
  }
#define TS_HOOK_memset TS_HOOK_copy
#include "driver_api/hooks.def"
