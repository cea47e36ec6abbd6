// Hooks of the classes copy and memset. They announce a protected client (the input copy comes before its
// first kernel), and count as work of a best-effort client: bytes over a cautious bandwidth.
#include <string_view>

#include "interpose/entry/hooks.h"
#include "interpose/gate/launch.h"

namespace tessera::gate {
namespace {

using driver_api::StreamArg;
constexpr uint64_t kCopyBytesPerUs = 10'000;   // 10 GB/s: a pageable copy over PCIe; better overestimated
constexpr uint64_t kFillBytesPerUs = 500'000;  // 500 GB/s
constexpr uint32_t kMemoryBound = 2;           // resource class of the pulse

// Bytes that a call moves, from whichever argument carries them. Sizes come last in every copy's parameter
// list.
inline uint64_t bytes_in(uint64_t so_far, size_t n) {
  return n ? n : so_far;
}
inline uint64_t bytes_in(uint64_t, const CUDA_MEMCPY2D* c) {
  return c ? c->WidthInBytes * c->Height : 0;
}
inline uint64_t bytes_in(uint64_t, const CUDA_MEMCPY3D* c) {
  return c ? c->WidthInBytes * c->Height * c->Depth : 0;
}
inline uint64_t bytes_in(uint64_t, const CUDA_MEMCPY3D_PEER* c) {
  return c ? c->WidthInBytes * c->Height * c->Depth : 0;
}
template <class T>
inline uint64_t bytes_in(uint64_t so_far, T) {
  return so_far;
}
template <class... A>
inline uint64_t bytes_of(A... args) {
  uint64_t bytes = 0;
  ((bytes = bytes_in(bytes, args)), ...);
  return bytes;
}

// Batch copies: `sizes`, `count` in third and fourth place.
inline uint64_t batch_bytes(const size_t* sizes, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; sizes && i < count; i++) sum += sizes[i];
  return sum;
}
template <class... R>
inline uint64_t bytes_of(CUdeviceptr*, CUdeviceptr*, size_t* sizes, size_t count, R...) {
  return batch_bytes(sizes, count);
}

// Fills: the product of the sizes is what is written (rows of a pitched fill: width times height).
inline uint64_t product_in(uint64_t product, size_t n) {
  return product * n;
}
template <class T>
inline uint64_t product_in(uint64_t product, T) {
  return product;
}
template <class... A>
inline uint64_t elements_of(CUdeviceptr, size_t /*pitch*/, A... args) {  // 2-D: pitch first
  uint64_t product = 1;
  ((product = product_in(product, args)), ...);
  return product;
}
template <class V, class... A>
requires(!std::is_same_v<V, size_t>) inline uint64_t elements_of(CUdeviceptr, V, A... args) {
  uint64_t product = 1;
  ((product = product_in(product, args)), ...);
  return product;
}

constexpr bool is_async(std::string_view name) {
  return name.find("Async") != std::string_view::npos;
}
// Synchronous copies to the host return when the data is there; the others may return before the GPU is done.
constexpr bool ends_work(std::string_view name) {
  return !is_async(name) && (name.find("toH") != std::string_view::npos);
}
constexpr uint64_t element_bytes(std::string_view name) {
  return name.find("32") != std::string_view::npos ? 4 : name.find("16") != std::string_view::npos ? 2 : 1;
}

template <class F>
inline CUresult moved(StreamArg stream, uint64_t ns, bool blocking, F&& call) {
  const Role role = g_state.role.load(std::memory_order_relaxed);
  if (role == Role::kForward) return call();
  if (role == Role::kBestEffort) {
    Thread& t = t_thread;
    if (!t.slot) claim_slot(t);
    LaneCover cover;
    if (blocking) lane_cover_stream(cover, stream);
    const CUresult result = best_effort_unit(stream, ns, nullptr, 0, blocking, call);
    if (blocking && result == CUDA_SUCCESS) lane_covered(cover);
    return result;
  }
  const uint64_t key = stream_key(stream);
  Cover cover;
  if (blocking) cover_stream(cover, key);
  const Work work = begin_work(key, kMemoryBound, 0);
  const CUresult result = call();
  end_work(work);
  if (blocking && result == CUDA_SUCCESS) {
    // What was sampled before has ended, and so has this copy: the last of this thread's calls in the stream.
    if (!work.shared && work.count->key.load(std::memory_order_relaxed) == key)
      advance(*work.count, work.count->ended.load(std::memory_order_relaxed));
    covered(cover);
  }
  return result;
}

}  // namespace
}  // namespace tessera::gate

#define TS_HOOK_copy(symbol, base, since, stream, ret, params, args)                                       \
  extern "C" ret hook_##symbol params noexcept {                                                           \
    using namespace tessera::gate;                                                                         \
    return moved(TS_STREAM_ARG(stream), 1000 + bytes_of args * 1000 / kCopyBytesPerUs, ends_work(#symbol), \
                 [&]() -> ret { return tessera::driver_api::real().symbol args; });                        \
  }
#define TS_HOOK_memset(symbol, base, since, stream, ret, params, args)                             \
  extern "C" ret hook_##symbol params noexcept {                                                   \
    using namespace tessera::gate;                                                                 \
    return moved(TS_STREAM_ARG(stream),                                                            \
                 2000 + elements_of args * element_bytes(#symbol) * 1000 / kFillBytesPerUs, false, \
                 [&]() -> ret { return tessera::driver_api::real().symbol args; });                \
  }
#include "driver_api/hooks.def"
