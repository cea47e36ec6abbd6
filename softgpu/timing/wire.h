// Messages between the engine of a client process and the arbiter, over a UNIX stream socket: Header, then
// `bytes` of payload. Same machine, same build tree in practice, but neither side trusts the other: the
// arbiter checks size, kind and every field; a bad client is disconnected. Plain structs, host byte order,
// explicit padding.
#pragma once

#include <cstdint>
#include <type_traits>

#include "softgpu/timing/work.h"

namespace tessera::softgpu::timing::wire {

inline constexpr uint32_t kMagic = 0x54'53'47'31;  // "TSG1"
inline constexpr uint32_t kVersion = 4;
inline constexpr uint32_t kMaxDeps = 4096;  // per Submit; the engine joins more with extra operations
inline constexpr uint32_t kMaxPayload = 64 * 1024;
inline constexpr uint32_t kMaxOperations = 1u << 18;  // outstanding per client
inline constexpr uint32_t kMaxPath = 1024;

enum class Type : uint16_t { kHello = 1, kSubmit, kReport, kDone, kAbort, kWelcome = 64, kEnded };

struct Header {
  uint32_t bytes;  // of the payload
  Type type;
  uint16_t zero;
};

struct Hello {  // client, first
  uint32_t magic, version;
  int32_t client_priority;
  uint32_t zero;
};

struct Submit {       // client; followed by n_deps ids
  uint64_t stamp_ns;  // CLOCK_MONOTONIC of submit()
  uint64_t id;
  uint64_t n_blocks, cost_key, copy_bytes;
  BlockWork work;
  int32_t priority;
  uint32_t threads_per_block, registers_per_thread, shared_bytes_per_block;
  uint32_t first_sm, n_sms;  // n_sms 0: all
  uint8_t kind, direction, flags, zero[1];
  uint32_t n_deps;
};
inline constexpr uint8_t kHasBody = 1, kCooperative = 2, kWorkKnown = 4;

struct Report {  // client: mean work per block
  uint64_t stamp_ns, id;
  BlockWork work;
};

struct Done {  // client: the body has run
  uint64_t stamp_ns, id;
};

struct Abort {  // client: drop everything up to this id
  uint64_t stamp_ns, up_to;
};

struct Welcome {  // arbiter, first
  uint32_t version, timesliced;
  double stretch;  // how much slower than its description the device runs
  uint8_t uuid[16];
  char path[kMaxPath];  // of the description, zero-terminated
};

struct Ended {  // arbiter: the modelled part is over
  uint64_t id, start_ns, end_ns, stall_ns;
};

static_assert(sizeof(Header) == 8 && sizeof(Submit) == 11 * 8 + 4 * 4 + 8 + 8 && sizeof(Report) == 64);
static_assert(std::is_trivially_copyable_v<Submit> && std::is_trivially_copyable_v<Welcome>);

}  // namespace tessera::softgpu::timing::wire
