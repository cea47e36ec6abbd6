// Hooks of the classes allocate, release, refer and memory_size: the books of memory (interpose/memory) around the driver's
// own calls. What an entry point means for them is said once per base name: by an overload of route() for what takes
// memory, of back() for what gives some back, of noted() for the rest. They are found by the tag of the name, so that
// every ABI and stream flavour of it goes the same way. Slow path; any thread of the program.
#include "interpose/hooks/memory.h"

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "driver_api/ask.h"
#include "interpose/gate/cover.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/launch.h"
#include "interpose/hooks/array_bytes.h"
#include "interpose/hooks/hooks.h"
#include "interpose/memory/memory.h"
#include "interpose/memory/wait.h"
#include "interpose/track/track.h"

namespace tessera::hooks {
namespace name {  // of base names; nothing but tags
#define TS_HOOK_allocate(symbol, base, ...) struct base;
#define TS_HOOK_release(symbol, base, ...) struct base;
#define TS_HOOK_refer(symbol, base, ...) struct base;
#include "driver_api/hooks.def"
}  // namespace name

namespace {

using driver_api::real;
using driver_api::StreamArg;
using memory::Item;
using memory::Kind;
using memory::kNoDevice;
using memory::Ledger;
using memory::Reservation;
using memory::Space;
using memory::Taken;

template <class Name>
struct Of {
  StreamArg stream;
};

template <class T>
uint64_t number(T handle) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<uint64_t>(handle);
  else
    return handle;
}
template <class T>
uint64_t written(T* out) {  // what a call that succeeded left in its out-parameter
  return out ? number(*out) : 0;
}

// ---- allocate

// Memory that a call takes, its device, and the object that holds it afterwards.
template <class F>
struct Route {
  int device;
  uint64_t bytes;
  F enter;  // (Ledger&), after success
};
template <class F>
Route(int, uint64_t, F) -> Route<F>;

// `as`: what of the item is not by default.
template <class Out>
auto with_address(Out* out, uint64_t bytes, Item as = {}) {
  const memory::Place p = memory::place();
  as.bytes = bytes;
  as.context = p.context;
  as.device = int8_t(p.device);
  return Route{p.device, as.kind == Kind::kDevice ? bytes : 0, [=](Ledger& ledger) {
                 Item item = as;
                 item.value = written(out);
                 ledger.add(item);
               }};
}

struct Untold {};  // the driver alone knows how much
template <class Name, class... A>
Untold route(Of<Name>, A...) {
  return {};
}
template <class Out, class Size>
auto route(Of<name::cuMemAlloc>, Out* out, Size bytes) {
  return with_address(out, bytes);
}
template <class Out, class Size>
auto route(Of<name::cuMemAllocPitch>, Out* out, Size* pitch, Size width, Size height, unsigned) {
  const memory::Place p = memory::place();
  return Route{p.device, uint64_t(width) * height, [=](Ledger& ledger) {
                 ledger.add({.value = written(out),
                             .bytes = pitch ? uint64_t(*pitch) * height : 0,
                             .context = p.context,
                             .device = int8_t(p.device)});
               }};
}
inline auto route(Of<name::cuMemAllocManaged>, CUdeviceptr* out, size_t bytes, unsigned) {
  // Pages that move make room for others' allocations. Where they do not, or the GPU shares the host's memory and they
  // have nowhere to go, all of it lies on the device.
  const int device = memory::place().device;
  const bool moves =
      driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device) != 0 &&
      driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_INTEGRATED, device) == 0;
  return with_address(out, bytes, {.kind = moves ? Kind::kManaged : Kind::kDevice, .managed = true});
}
inline auto route(Of<name::cuMemCreate>, CUmemGenericAllocationHandle* out, size_t bytes,
                  const CUmemAllocationProp* prop, unsigned long long) {
  const int device =
      prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : kNoDevice;
  return Route{device, bytes, [=](Ledger& ledger) { ledger.created(written(out), device, bytes, false); }};
}
template <class Descriptor>
auto route(Of<name::cuArrayCreate>, CUarray* out, const Descriptor* d) {
  return with_address(out, d ? array_bytes({d->Width, d->Height, 0, d->Format, d->NumChannels, 0}, 1) : 0,
                      {.space = Space::kArray});
}
template <class Descriptor>
auto route(Of<name::cuArray3DCreate>, CUarray* out, const Descriptor* d) {
  return with_address(
      out, d ? array_bytes({d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags}, 1) : 0,
      {.space = Space::kArray});
}
inline auto route(Of<name::cuMipmappedArrayCreate>, CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* d,
                  unsigned levels) {
  return with_address(out, d ? array_bytes(*d, levels) : 0, {.space = Space::kArray});
}

// From a pool of managed or pinned memory: what counts is the allocation, and no context's end frees it.
inline auto of_other_memory(CUdeviceptr* out, size_t bytes, Kind kind, int device) {
  const int lies_on = kind == Kind::kManaged ? device : kNoDevice;
  return Route{lies_on, 0, [=](Ledger& ledger) {
                 ledger.add({.value = written(out), .bytes = bytes, .kind = kind, .device = int8_t(lies_on)});
               }};
}

// In the order of a stream: what counts is what the pool holds.
inline bool captured(StreamArg stream) {
  return state::g_state.captures.load(std::memory_order_relaxed) != 0 && gate::capturing(stream);
}

// `attempt(Reservation*)` makes the program's call, again and again where its allocations are to wait for room.
template <class F>
CUresult or_wait(int device, uint64_t bytes, F&& attempt) {
  Reservation r;
  CUresult result = attempt(&r);
  for (memory::Wait wait(device, bytes); wait.again(result);) result = attempt(&r);
  if (r.refused) [[unlikely]]
    memory::count_refusal(device);
  return result;
}

template <class R, class F>
CUresult allocate_by(const R& to, F&& call) {
  return or_wait(to.device, to.bytes, [&](Reservation* r) {
    const memory::UnderWay under_way(to.device);
    if (!memory::reserve(to.device, to.bytes, r)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = with_memory(call);
    if (result == CUDA_SUCCESS)
      memory::settle(*r, to.enter);
    else
      memory::cancel(*r);
    return result;
  });
}

// Memory that is beyond a limit, as only the driver could say, goes back unused.
template <class Out, class F>
CUresult goes_back(Out* out, F&& free) {
  const Taken taken = memory::take(Space::kAddress, written(out));
  if (free() != CUDA_SUCCESS) return memory::kept(taken), CUDA_SUCCESS;
  memory::freed(taken);
  *out = 0;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class F>
CUresult once_from_pool(CUstream stream, CUdeviceptr* out, size_t bytes, uint32_t pool, int device, F&& call,
                        Reservation* r) {
  const memory::UnderWay under_way(device);
  uint64_t grows = 0;
  {
    const memory::Lock lock(memory::g_books);
    grows = memory::books().would_grow(pool, bytes);
  }
  if (!memory::reserve(device, grows, r)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = with_memory(call);
  if (result != CUDA_SUCCESS) return memory::cancel(*r), result;
  memory::settle(*r, [&](Ledger& ledger) { ledger.pool_allocated(pool, written(out), bytes); });
  // Without a limit it suffices to read its size when it must have grown.
  if (grows == 0 && !memory::has_limit(device)) return result;
  memory::look_at_pool(pool);
  if (!memory::beyond_limit(device)) return result;
  // The pool grew by more than it was asked for.
  return goes_back(out, [&] { return real().cuMemFreeAsync(*out, stream); });
}

template <class F>
CUresult from_pool(StreamArg stream, CUdeviceptr* out, size_t bytes, CUmemoryPool pool, F&& call) {
  if (captured(stream))  // belongs to the graph, which holds it from its first launch on
    return memory::graph_may_allocate(bytes) ? with_memory(call) : CUDA_ERROR_OUT_OF_MEMORY;
  CUdevice device = memory::place().device;
  if (!pool) {
    CUdevice of_stream = kNoDevice;
    if (stream.stream && real().cuStreamGetDevice(stream.stream, &of_stream) == CUDA_SUCCESS)
      device = of_stream;
    if (real().cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS) return with_memory(call);
  }
  const uint32_t i = memory::pool_of(pool);
  if (i == memory::Growing<memory::Pool>::kNone) return with_memory(call);
  Kind kind = Kind::kDevice;
  {
    const memory::Lock lock(memory::g_books);
    kind = memory::books().pool_at(i).kind;
    if (kind == Kind::kDevice) device = memory::books().pool_at(i).device;
  }
  if (kind != Kind::kDevice) return allocate_by(of_other_memory(out, bytes, kind, device), call);
  return or_wait(device, bytes, [&](Reservation* r) {
    return once_from_pool(driver_api::on(stream), out, bytes, i, device, call, r);
  });
}

template <class Name, class F, class... A>
CUresult allocating(Of<Name> of, F&& call, A... args) {
  if (!memory::counting()) return with_memory(call);
  if constexpr (std::is_same_v<decltype(route(of, args...)), Untold>)
    return with_memory(call);
  else
    return allocate_by(route(of, args...), call);
}
template <class F, class Out, class Size>
CUresult allocating(Of<name::cuMemAllocPitch> of, F&& call, Out* out, Size* pitch, Size width, Size height,
                    unsigned element_bytes) {
  if (!memory::counting()) return with_memory(call);
  const auto to = route(of, out, pitch, width, height, element_bytes);
  const CUresult result = allocate_by(to, call);
  if (result != CUDA_SUCCESS || !memory::beyond_limit(to.device)) return result;
  // Rows are longer than what was asked for.
  const CUresult beyond = goes_back(out, [&] { return real().cuMemFree_v2(written(out)); });
  if (beyond != CUDA_SUCCESS) memory::count_refusal(to.device);
  return beyond;
}
template <class F>
CUresult allocating(Of<name::cuMemAllocAsync> of, F&& call, CUdeviceptr* out, size_t bytes, CUstream) {
  return memory::counting() ? from_pool(of.stream, out, bytes, nullptr, call) : with_memory(call);
}
template <class F>
CUresult allocating(Of<name::cuMemAllocFromPoolAsync> of, F&& call, CUdeviceptr* out, size_t bytes,
                    CUmemoryPool pool, CUstream) {
  return memory::counting() ? from_pool(of.stream, out, bytes, pool, call) : with_memory(call);
}
template <class F>
CUresult allocating(Of<name::cuGraphUpload>, F&& call, CUgraphExec, CUstream) {
  const CUresult result = with_memory(call);
  if (memory::counting()) memory::graph_changed();
  return result;
}

// ---- release

inline bool best_effort() {
  return state::g_state.role.load(std::memory_order_relaxed) == state::Role::kBestEffort;
}

template <class F>
CUresult may_wait(F&& call) {
  return best_effort() ? gate::blocked(call) : call();
}

template <class F>
CUresult give_back(Space space, uint64_t value, F&& call) {
  const Taken taken = memory::take(space, value);
  const CUresult result = may_wait(call);
  if (result == CUDA_SUCCESS)
    memory::freed(taken);
  else
    memory::kept(taken);
  return result;
}

template <class F, class Address>
CUresult back(Of<name::cuMemFree>, F&& call, Address address) {
  return give_back(Space::kAddress, number(address), call);
}
template <class F>
CUresult back(Of<name::cuMemFreeAsync>, F&& call, CUdeviceptr address, CUstream) {
  return give_back(Space::kAddress, address, call);
}
template <class F>
CUresult back(Of<name::cuMemFreeHost>, F&& call, void* p) {
  return give_back(Space::kAddress, number(p), call);
}
template <class F>
CUresult back(Of<name::cuMemHostUnregister>, F&& call, void* p) {
  return give_back(Space::kAddress, number(p), call);
}
template <class F>
CUresult back(Of<name::cuIpcCloseMemHandle>, F&& call, CUdeviceptr address) {
  return give_back(Space::kAddress, address, call);
}
template <class F>
CUresult back(Of<name::cuArrayDestroy>, F&& call, CUarray array) {
  return give_back(Space::kArray, number(array), call);
}
template <class F>
CUresult back(Of<name::cuMipmappedArrayDestroy>, F&& call, CUmipmappedArray array) {
  return give_back(Space::kArray, number(array), call);
}
template <class F>
CUresult back(Of<name::cuDestroyExternalMemory>, F&& call, CUexternalMemory handle) {
  return give_back(Space::kExternal, number(handle), call);
}
template <class F>
CUresult back(Of<name::cuMemRelease>, F&& call, CUmemGenericAllocationHandle handle) {
  const Taken taken = memory::release_physical(handle);
  const CUresult result = may_wait(call);
  if (result == CUDA_SUCCESS) memory::freed(taken);
  return result;
}
template <class F>
CUresult back(Of<name::cuMemUnmap>, F&& call, CUdeviceptr address, size_t bytes) {
  const CUresult result = may_wait(call);
  if (result == CUDA_SUCCESS) memory::change_all([&](Ledger& ledger) { ledger.unmapped(address, bytes); });
  return result;
}
template <class F>
CUresult back(Of<name::cuMemPoolDestroy>, F&& call, CUmemoryPool pool) {
  const memory::Lock pools(memory::g_pools);
  const CUresult result = may_wait(call);
  if (result == CUDA_SUCCESS)
    memory::change_all([&](Ledger& ledger) { ledger.pool_destroyed(number(pool)); });
  return result;
}
template <class F>
CUresult back(Of<name::cuMemPoolTrimTo>, F&& call, CUmemoryPool, size_t) {
  const CUresult result = may_wait(call);
  if (result == CUDA_SUCCESS) memory::look_at_pools(true);
  return result;
}
template <class F>
CUresult back(Of<name::cuDeviceGraphMemTrim>, F&& call, CUdevice device) {
  const CUresult result = may_wait(call);
  if (result == CUDA_SUCCESS) memory::look_at_graphs(device);
  return result;
}

// ---- refer: what a call that succeeded means

inline void pinned(uint64_t address, uint64_t bytes) {
  memory::change(kNoDevice, [&](Ledger& ledger) {
    ledger.add({.value = address, .bytes = bytes, .context = memory::place().context, .kind = Kind::kPinned});
  });
}
template <class Size>
void noted(Of<name::cuMemHostAlloc>, void** out, Size bytes, unsigned) {
  pinned(written(out), bytes);
}
template <class Size>
void noted(Of<name::cuMemAllocHost>, void** out, Size bytes) {
  pinned(written(out), bytes);
}
template <class Size>
void noted(Of<name::cuMemHostRegister>, void* p, Size bytes, unsigned) {
  pinned(number(p), bytes);
}
inline void noted(Of<name::cuMemMap>, CUdeviceptr address, size_t bytes, size_t,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  memory::change_all([&](Ledger& ledger) { ledger.mapped(address, bytes, handle); });
}
inline void noted(Of<name::cuMemRetainAllocationHandle>, CUmemGenericAllocationHandle* out, void* address) {
  CUdeviceptr begin = number(address);
  size_t bytes = 0;
  if (real().cuMemGetAddressRange_v2(&begin, &bytes, number(address)) != CUDA_SUCCESS)
    begin = number(address);
  memory::change(kNoDevice, [&](Ledger& ledger) { ledger.retained(written(out), begin); });
}
inline void noted(Of<name::cuMemImportFromShareableHandle>, CUmemGenericAllocationHandle* out, void*,
                  CUmemAllocationHandleType) {
  CUmemAllocationProp prop{};
  const bool known = out && real().cuMemGetAllocationPropertiesFromHandle(&prop, *out) == CUDA_SUCCESS &&
                     prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int device = known ? prop.location.id : kNoDevice;
  memory::change(device, [&](Ledger& ledger) { ledger.created(written(out), device, 0, true); });
}
inline void imported(Space space, uint64_t value, uint64_t bytes) {
  const memory::Place p = memory::place();
  memory::change(p.device, [&](Ledger& ledger) {
    ledger.add({.value = value,
                .bytes = bytes,
                .context = p.context,
                .space = space,
                .kind = Kind::kImported,
                .device = int8_t(p.device)});
  });
}
inline void imported_address(uint64_t address) {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  if (real().cuMemGetAddressRange_v2(&begin, &bytes, address) != CUDA_SUCCESS) bytes = 0;
  imported(Space::kAddress, address, bytes);
}
inline void noted(Of<name::cuIpcOpenMemHandle>, CUdeviceptr* out, CUipcMemHandle, unsigned) {
  imported_address(written(out));
}
inline void noted(Of<name::cuMemPoolImportPointer>, CUdeviceptr* out, CUmemoryPool, CUmemPoolPtrExportData*) {
  imported_address(written(out));
}
inline void noted(Of<name::cuImportExternalMemory>, CUexternalMemory* out,
                  const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* handle) {
  imported(Space::kExternal, written(out), handle ? handle->size : 0);
}
inline void learn_pool(CUmemoryPool* out, Kind kind, int device = kNoDevice) {
  memory::change(kNoDevice, [&](Ledger& ledger) { ledger.learn_pool(written(out), kind, device); });
}
inline void learn_pool(CUmemoryPool* out, CUmemAllocationType type, const CUmemLocation& location) {
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
    learn_pool(out, Kind::kManaged);
  else if (location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    learn_pool(out, Kind::kPinned);
  else
    learn_pool(out, Kind::kDevice, location.id);
}
inline void noted(Of<name::cuMemPoolCreate>, CUmemoryPool* out, const CUmemPoolProps* p) {
  if (p) learn_pool(out, p->allocType, p->location);
}
inline void noted(Of<name::cuMemGetDefaultMemPool>, CUmemoryPool* out, CUmemLocation* location,
                  CUmemAllocationType type) {
  if (location) learn_pool(out, type, *location);
}
inline void noted(Of<name::cuMemGetMemPool>, CUmemoryPool* out, CUmemLocation* location,
                  CUmemAllocationType type) {
  if (location) learn_pool(out, type, *location);
}
inline void noted(Of<name::cuMemPoolImportFromShareableHandle>, CUmemoryPool* out, void*,
                  CUmemAllocationHandleType, unsigned long long) {
  learn_pool(out, Kind::kImported);
}
inline void noted(Of<name::cuMemPoolExportToShareableHandle>, void*, CUmemoryPool pool,
                  CUmemAllocationHandleType, unsigned long long) {
  memory::change(kNoDevice, [&](Ledger& ledger) { ledger.pool_shared(number(pool)); });
}
// The address of a variable that a module brought with it.
inline void noted(Of<name::cuLibraryGetManaged>, CUdeviceptr*, size_t*, CUlibrary, const char*) {
  track::has_managed_variables();
}
template <class Address>
void variable_at(const Address* address) {
  unsigned managed = 0;
  if (address &&
      real().cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, *address) == CUDA_SUCCESS &&
      managed != 0)
    track::has_managed_variables();
}
template <class Address, class Size>
void noted(Of<name::cuModuleGetGlobal>, Address* address, Size*, CUmodule, const char*) {
  variable_at(address);
}
inline void noted(Of<name::cuLibraryGetGlobal>, CUdeviceptr* address, size_t*, CUlibrary, const char*) {
  variable_at(address);
}
inline void exported(Space space, uint64_t value) {
  memory::change_all([&](Ledger& ledger) { ledger.mark_shared(space, value); });
}
inline void exported_address(CUdeviceptr address) {
  CUdeviceptr begin = address;
  size_t bytes = 0;
  if (real().cuMemGetAddressRange_v2(&begin, &bytes, address) != CUDA_SUCCESS) begin = address;
  exported(Space::kAddress, begin);
}
inline void noted(Of<name::cuIpcGetMemHandle>, CUipcMemHandle*, CUdeviceptr address) {
  exported_address(address);
}
inline void shared_event(CUevent event) {
  gate::leave_to_others(event);
  memory::g_shares_events.store(true, std::memory_order_relaxed);
}
inline void noted(Of<name::cuIpcGetEventHandle>, CUipcEventHandle*, CUevent event) {
  shared_event(event);
}
inline void noted(Of<name::cuIpcOpenEventHandle>, CUevent* out, CUipcEventHandle) {
  if (out) shared_event(*out);
}
inline void noted(Of<name::cuMemGetHandleForAddressRange>, void*, CUdeviceptr address, size_t,
                  CUmemRangeHandleType, unsigned long long) {
  exported_address(address);
}
inline void noted(Of<name::cuMemPoolExportPointer>, CUmemPoolPtrExportData*, CUdeviceptr address) {
  exported_address(address);
}
inline void noted(Of<name::cuMemExportToShareableHandle>, void*, CUmemGenericAllocationHandle handle,
                  CUmemAllocationHandleType, unsigned long long) {
  exported(Space::kPhysical, handle);
}

template <class Name, class F, class... A>
CUresult referring(Of<Name> of, F&& call, A... args) {
  const CUresult result = may_wait(call);
  if (result == CUDA_SUCCESS && memory::counting()) noted(of, args...);
  return result;
}

// ---- memory_size

template <class Size>
void lower(Size* to, uint64_t bytes) {
  if (to) *to = Size(std::min<uint64_t>(*to, bytes));
}
template <class Size>
void limited(int device, Size* free, Size* total) {
  memory::Limit limit;
  if (!memory::limit_of(device, &limit)) return;
  lower(free, limit.free_bytes);
  lower(total, limit.bytes);
}
template <class Size>
void answered(Size* free, Size* total) {  // cuMemGetInfo
  limited(memory::place().device, free, total);
}
template <class Size>
void answered(Size* total, CUdevice device) {  // cuDeviceTotalMem
  limited<Size>(device, nullptr, total);
}

}  // namespace
}  // namespace tessera::hooks

#define TS_HOOK_allocate(symbol, base, since, stream, ret, params, args)               \
  extern "C" ret hook_##symbol params noexcept {                                       \
    using namespace tessera::hooks;                                                    \
    return std::apply(                                                                 \
        [&](auto... a) {                                                               \
          return allocating(                                                           \
              Of<name::base>{TS_STREAM_ARG(stream)},                                   \
              [&]() -> ret { return tessera::driver_api::real().symbol args; }, a...); \
        },                                                                             \
        std::make_tuple args);                                                         \
  }
#define TS_HOOK_release(symbol, base, since, stream, ret, params, args)                                     \
  extern "C" ret hook_##symbol params noexcept {                                                            \
    using namespace tessera::hooks;                                                                         \
    const auto call = [&]() -> ret { return tessera::driver_api::real().symbol args; };                     \
    if (!tessera::memory::counting()) return may_wait(call);                                                \
    return std::apply([&](auto... a) { return back(Of<name::base>{}, call, a...); }, std::make_tuple args); \
  }
#define TS_HOOK_refer(symbol, base, since, stream, ret, params, args)                     \
  extern "C" ret hook_##symbol params noexcept {                                          \
    using namespace tessera::hooks;                                                       \
    const auto call = [&]() -> ret { return tessera::driver_api::real().symbol args; };   \
    return std::apply([&](auto... a) { return referring(Of<name::base>{}, call, a...); }, \
                      std::make_tuple args);                                              \
  }
#define TS_HOOK_memory_size(symbol, base, since, stream, ret, params, args)                   \
  extern "C" ret hook_##symbol params noexcept {                                              \
    const ret result = tessera::driver_api::real().symbol args;                               \
    if (result == CUDA_SUCCESS && tessera::memory::counting()) tessera::hooks::answered args; \
    return result;                                                                            \
  }
#include "driver_api/hooks.def"
