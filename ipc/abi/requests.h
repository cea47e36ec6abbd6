// How long the requests of a protected client took (docs/requests.md), by kind: counts in the buckets of
// base/latency_buckets.h. The client writes all of it, the daemon reads it when somebody asks for its state (untrusted).
// Freestanding. tests/unit/ipc/layout_test.cc checks every offset.
//
// The kind of a row is for ever. Its name is written before `ready` (release); counters are added to one by one, so that a
// reader may see a request whose time is not in the sum yet. All-zero is a valid initial state.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

inline constexpr uint32_t kRequestRanges = 15;  // kinds of ranges that a program marks, most
// The first kinds stand for bursts, and for those of them that were told by their launches.
inline constexpr uint32_t kBurstKind = 0, kPrefillKind = 1, kDecodeKind = 2;
inline constexpr uint32_t kRequestKinds = 3 + kRequestRanges;
inline constexpr uint32_t kRequestNameBytes = 48;
inline constexpr uint32_t kRequestBuckets = 178;  // base::kLatencyBuckets

struct alignas(64) RequestTotals {
  uint64_t missed;       // ranges that were not measured: too many were open at once
  uint64_t reserved[7];  // zero
};
static_assert(sizeof(RequestTotals) == 64);

struct alignas(64) RequestKind {
  uint64_t sum_ns;  // of all requests
  uint32_t ready;   // 1: the name is there
  uint32_t reserved0;
  char name[kRequestNameBytes];  // zero-terminated
  uint64_t counts[kRequestBuckets];
  uint64_t slo_ns;        // what its requests shall take at most; 0: nobody said
  uint64_t within_slo;    // requests that took no longer
  uint64_t reserved1[4];  // zero
};
static_assert(sizeof(RequestKind) == 1536);

struct RequestTable {
  RequestTotals totals;
  RequestKind kinds[kRequestKinds];
};

}  // namespace tessera::ipc::abi
