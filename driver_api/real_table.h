// Every driver entry point as the real driver answers it: one function pointer per row of entries.def.
//
// Who calls: hooks in interpose (all rooms) through `real().cuX(...)`; the stubs of
// interpose/entry. Threads: filled once by one thread (interpose/entry, first driver call), then read-only;
// any thread may read it after entry::ensure_ready() returned true. Ownership: static storage, never freed;
// the driver is never closed. Before it is filled every slot answers CUDA_ERROR_NOT_INITIALIZED, never a
// crash. An entry point that the installed driver lacks answers CUDA_ERROR_NOT_SUPPORTED, but for
// cuGetProcAddress (old_lookup.h); with no driver at all see docs/driver_api.md. It does not decide anything:
// which calls are gated stands in actions.def.
#pragma once

#include <cstdint>

#include "driver_api/cuda.h"

namespace tessera::driver_api {

// One enumerator per exported symbol, spelled as NVIDIA spells it: Entry::cuLaunchKernel_ptsz.
enum class Entry : uint16_t {
#define TS_CU(symbol, base, since, stream, ret, params, args) symbol,
#include "driver_api/entries.def"
  kCount
};
inline constexpr uint16_t kEntryCount = static_cast<uint16_t>(Entry::kCount);

// A class says what a call does to the GPU or to our bookkeeping; one hook family each (actions.def). kPass is never
// hooked.
enum class Class : uint8_t {
  kPass = 0,
#define TS_CLASS(name, meaning) k_##name,
#include "driver_api/classes.def"
};

// A flavour says which default stream a stream argument of 0 means. A whole word: StreamArg travels in registers, and
// loading eight bytes of which one was just stored waits until that store, and all before it, have left the
// store buffer.
enum class Flavour : uint64_t {
  kNone = 0,   // the call has no stream
  kLegacy,     // 0 is the legacy stream (CU_STREAM_LEGACY)
  kPerThread,  // 0 is the calling thread's stream (CU_STREAM_PER_THREAD); symbols that end in _ptds or _ptsz
};

struct EntryInfo {
  const char* symbol;  // exported name, "cuMemcpyHtoD_v2_ptds"
  const char* base;    // name that cuGetProcAddress knows, "cuMemcpyHtoD"
  int since;           // driver version from which cuGetProcAddress answers with this symbol; 0: not known
  Flavour flavour;     // kNone also where the call has no stream
  Class klass;         // from actions.def
};

extern const EntryInfo kEntryInfo[kEntryCount];
inline const EntryInfo& info(Entry e) {
  return kEntryInfo[static_cast<uint16_t>(e)];
}
// Entry of an exported name, kCount if there is none. Binary search; no allocation.
Entry find_entry(const char* symbol);
// True if some row has this base name.
bool known_base(const char* base);

// Typed view of the slots: real().cuLaunchKernel(f, ...). Member i is the slot of entry i.
struct RealDriver {
#define TS_CU(symbol, base, since, stream, ret, params, args) ret(*symbol) params;
#include "driver_api/entries.def"
};
static_assert(sizeof(RealDriver) == sizeof(void*) * kEntryCount);

}  // namespace tessera::driver_api

// real_slots.S; at namespace scope of C because the stubs in interpose/entry are assembly.
extern "C" __attribute__((visibility("hidden"))) tessera::driver_api::RealDriver tessera_real_driver;

namespace tessera::driver_api {

inline const RealDriver& real() {
  return tessera_real_driver;
}
// The same slot without its type.
inline void* real_slot(Entry e) {
  return reinterpret_cast<void* const*>(&tessera_real_driver)[static_cast<uint16_t>(e)];
}
// For who puts calls of its own before the driver's while threads run (interpose/hooks/trace.cc): one slot at a time,
// as a word.
inline RealDriver& exchangeable_real() {
  return tessera_real_driver;
}
// For tests that stand in for a driver: write slots before any hook runs.
inline RealDriver& mutable_real_for_tests() {
  return tessera_real_driver;
}

// The stream that a call names, as a hook sees it. Built from the stream column of a row:
//   tessera::driver_api::StreamArg s = TS_STREAM_ARG(stream);
struct StreamArg {
  CUstream stream;  // as passed by the program; 0, 1 (legacy) and 2 (per thread) are not resolved
  Flavour flavour;
};
// The handle by which calls of the legacy family mean the same stream: calls of Tessera's own are all of that family.
inline CUstream on(StreamArg s) {
  return s.stream == nullptr && s.flavour == Flavour::kPerThread ? CU_STREAM_PER_THREAD : s.stream;
}
#define TS_STREAM_none                             \
  ::tessera::driver_api::StreamArg {               \
    nullptr, ::tessera::driver_api::Flavour::kNone \
  }
#define TS_STREAM_legacy(expression)                    \
  ::tessera::driver_api::StreamArg {                    \
    expression, ::tessera::driver_api::Flavour::kLegacy \
  }
#define TS_STREAM_per_thread(expression)                   \
  ::tessera::driver_api::StreamArg {                       \
    expression, ::tessera::driver_api::Flavour::kPerThread \
  }
#define TS_STREAM_ARG(stream) TS_STREAM_##stream

}  // namespace tessera::driver_api
