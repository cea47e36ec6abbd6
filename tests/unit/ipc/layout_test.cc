// The shared-memory contract, offset by offset (docs/abi.md), and what a client accepts of a region header.
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <type_traits>

#include "ipc/abi/gang.h"
#include "ipc/abi/memory.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/trace.h"
#include "ipc/channel/packet.h"
#include "ipc/channel/region_layout.h"

namespace tessera::ipc {
namespace {

#define TS_AT(type, field, at) static_assert(offsetof(abi::type, field) == (at))
TS_AT(RegionHeader, magic, 0);
TS_AT(RegionHeader, version, 4);
TS_AT(RegionHeader, compat_version, 6);
TS_AT(RegionHeader, header_bytes, 8);
TS_AT(RegionHeader, region_bytes, 12);
TS_AT(RegionHeader, features, 16);
TS_AT(RegionHeader, required_features, 24);
TS_AT(RegionHeader, daemon_epoch, 32);
TS_AT(RegionHeader, client_id, 40);
TS_AT(RegionHeader, priority, 44);
TS_AT(RegionHeader, on_daemon_loss, 48);
TS_AT(RegionHeader, answer_within_ms, 52);
TS_AT(RegionHeader, guard_ns, 56);
TS_AT(RegionHeader, keeps_profiles, 64);
TS_AT(MemoryTotals, pinned_bytes, 0);
TS_AT(MemoryTotals, untracked, 8);
TS_AT(MemoryTotals, waits_since_ns, 16);
TS_AT(MemoryDevice, uuid, 0);
TS_AT(MemoryDevice, ready, 16);
TS_AT(MemoryDevice, used_bytes, 24);
TS_AT(MemoryDevice, peak_bytes, 32);
TS_AT(MemoryDevice, pool_bytes, 40);
TS_AT(MemoryDevice, graph_bytes, 48);
TS_AT(MemoryDevice, managed_bytes, 56);
TS_AT(MemoryDevice, imported_bytes, 64);
TS_AT(MemoryDevice, shared_bytes, 72);
TS_AT(MemoryDevice, refusals, 80);
TS_AT(MemoryDevice, wanted_bytes, 88);
TS_AT(MemoryDevice, left_bytes, 96);
TS_AT(MemoryDevice, total_bytes, 104);
TS_AT(MemoryDevice, question, 112);
TS_AT(MemoryDevice, waits_bytes, 120);
TS_AT(MemoryDevice, limit_bytes, 128);
TS_AT(MemoryDevice, free_bytes, 136);
TS_AT(MemoryDevice, answered, 144);
TS_AT(MemoryDevice, refused, 148);
TS_AT(CuttingLines, outcomes, 0);
TS_AT(OutcomeCounts, launches, 0);
TS_AT(OutcomeCounts, gpu_ns, 8);
TS_AT(OperationTotals, further_calls, 0);
TS_AT(OperationTotals, split_calls, 8);
TS_AT(OperationTotals, split_pieces, 16);
TS_AT(OperationTotals, split_proven, 24);
TS_AT(OperationTotals, split_unequal, 32);
TS_AT(OperationTotals, kept_unproven, 40);
TS_AT(OperationTotals, kept_unequal, 48);
TS_AT(OperationTotals, kept_form, 56);
TS_AT(OperationTotals, narrowed_calls, 64);
TS_AT(OperationTotals, during_bursts, 72);
TS_AT(OperationTotals, kept_short, 104);
TS_AT(OperationTotals, kept_free, 112);
TS_AT(OperationTotals, splitting, 120);
TS_AT(OperationCounts, calls, 0);
TS_AT(OperationCounts, flop, 8);
TS_AT(OperationCounts, bytes, 24);
TS_AT(OperationCounts, gpu_ns, 40);
TS_AT(OperationCounts, launches, 48);
TS_AT(OperationCounts, key, 56);
TS_AT(OperationCounts, ready, 64);
TS_AT(OperationCounts, type, 68);
TS_AT(OperationCounts, resource_class, 72);
TS_AT(OperationCounts, name, 80);
TS_AT(LeaseLine, word, 0);
TS_AT(LeaseLine, max_hold_ms, 4);
TS_AT(LeaseLine, expires_ns, 8);
TS_AT(LeaseLine, window_ns, 16);
TS_AT(LeaseLine, slice_ns, 24);
TS_AT(LeaseLine, rights, 32);
TS_AT(LeaseLine, marker_spacing_ns, 40);
TS_AT(LeaseLine, watch_spin_us, 6);
TS_AT(LeaseLine, ends_by_us, 44);
TS_AT(LeaseLine, slo_us, 48);
TS_AT(LeaseLine, long_block_us, 52);
TS_AT(LeaseLine, long_width_percent, 54);
TS_AT(LeaseLine, quantum_us, 56);
TS_AT(LeaseLine, reserved_sms, 58);
TS_AT(LeaseRights, priority, 0);
TS_AT(LeaseRights, passthrough, 1);
TS_AT(LeaseRights, packed, 2);
TS_AT(LeaseRights, tell_busy, 3);
TS_AT(LeaseRights, defers, 4);
TS_AT(LeaseRights, keeps_closed, 5);
TS_AT(LeaseRights, confine_all, 6);
TS_AT(LeaseRights, burst_classes, 7);
TS_AT(UsageLine, in_flight_ns, 0);
TS_AT(UsageLine, queued_ns, 8);
TS_AT(UsageLine, waiting_since_ns, 16);
TS_AT(UsageLine, waiting, 24);
TS_AT(UsageLine, drained_word, 28);
TS_AT(UsageLine, launches, 32);
TS_AT(UsageLine, heartbeat_ns, 120);
TS_AT(SignalLine, resource_class, 0);
TS_AT(SignalLine, wave_blocks, 4);
TS_AT(SignalLine, launch_sms, 8);
TS_AT(SignalLine, slice_overhead_ns, 12);
TS_AT(SignalLine, uncut_launches, 16);
TS_AT(SignalLine, blocks_launched, 24);
TS_AT(SignalLine, in_flight_end_ns, 32);
TS_AT(SignalLine, whole_releases, 40);
TS_AT(SignalLine, cutting_off, 48);
TS_AT(SignalLine, watchdog_releases, 52);
TS_AT(SignalLine, refused_waiting, 72);
TS_AT(SignalLine, refused_other, 92);
TS_AT(SignalLine, question, 96);
TS_AT(SignalLine, daemon_losses, 104);
TS_AT(SignalLine, bypassed, 108);
TS_AT(SignalLine, confined_launches, 120);
TS_AT(SignalLine, in_flight_since_ns, 112);
TS_AT(AnswerLine, answered, 0);
TS_AT(AnswerLine, quiet, 8);
TS_AT(ParkOrder, number, 0);
TS_AT(ParkOrder, parked, 4);
TS_AT(ParkOrder, room_for, 8);
TS_AT(ParkOrder, gpu, 12);
TS_AT(ParkOrder, by_parker, 28);
TS_AT(ParkOrder, answered, 32);
TS_AT(ParkOrder, result, 36);
TS_AT(ParkOrder, driver_state, 40);
TS_AT(ParkCall, number, 0);
TS_AT(ParkCall, step, 4);
TS_AT(ParkCall, within_ms, 8);
TS_AT(ParkCall, from, 12);
TS_AT(ParkCall, to, 28);
TS_AT(ParkReport, state, 0);
TS_AT(ParkReport, answered, 4);
TS_AT(ParkReport, refusal, 8);
TS_AT(ParkReport, need, 12);
TS_AT(ParkReport, bytes, 16);
TS_AT(ParkReport, since_ns, 24);
TS_AT(ParkReport, park_ns, 32);
TS_AT(ParkReport, return_ns, 40);
TS_AT(ParkReport, parks, 48);
TS_AT(ParkReport, lacks_bytes, 56);
TS_AT(ParkLines, report, 64);
TS_AT(ParkLines, call, 128);
TS_AT(RecordRing, head, 0);
TS_AT(RecordRing, tail, 64);
TS_AT(RecordRing, slots, 128);
TS_AT(PulsePage, client_id, 8);
TS_AT(PulsePage, busy, 64);
TS_AT(PulsePage, burst, 72);
TS_AT(PulsePage, busy_since_ns, 80);
TS_AT(PulsePage, heartbeat_ns, 128);
TS_AT(PulsePage, idle_since_ns, 136);
TS_AT(Hello, priority, 16);
TS_AT(Hello, features, 32);
TS_AT(Hello, name, 64);
TS_AT(Hello, gang, 128);
TS_AT(GangPage, collectives, 64);
TS_AT(CollectiveLine, begun, 0);
TS_AT(CollectiveLine, changes, 8);
TS_AT(CollectiveLine, waiting, 12);
TS_AT(CollectiveLine, uncounted, 16);
TS_AT(SetPriority, priority, 16);
TS_AT(PeerPulse, slo_ns, 24);
TS_AT(Welcome, daemon_epoch, 24);
TS_AT(Welcome, now_ns, 32);
TS_AT(Device, uuid, 16);
TS_AT(Device, gate, 44);
TS_AT(Refused, text, 20);
TS_AT(Traced, uuid, 32);
TS_AT(Traced, name, 48);
TS_AT(Record, kind, 0);
TS_AT(Record, request_kind, 2);
TS_AT(Record, resource_class, 4);
TS_AT(Record, key, 8);
TS_AT(RequestKind, ready, 8);
TS_AT(RequestKind, name, 16);
TS_AT(RequestKind, counts, 64);
TS_AT(RequestKind, slo_ns, 1488);
TS_AT(RequestKind, within_slo, 1496);
TS_AT(RequestTable, kinds, 64);
TS_AT(TraceHeader, slots, 8);
TS_AT(TraceHeader, head, 64);
TS_AT(TraceEvent, a, 8);
TS_AT(TraceEvent, kind, 16);
TS_AT(TraceEvent, thread, 20);
TS_AT(TraceEvent, at, 24);
TS_AT(TraceEvent, name, 24);
#undef TS_AT
template <class T>
constexpr bool kPlain = std::is_standard_layout_v<T>&& std::is_trivially_copyable_v<T>;
static_assert(kPlain<abi::RegionHeader> && kPlain<abi::LeaseLine> && kPlain<abi::UsageLine> &&
              kPlain<abi::RecordRing> && kPlain<abi::PulsePage> && kPlain<abi::Hello> &&
              kPlain<abi::OperationTotals> && kPlain<abi::OperationCounts> && kPlain<abi::Welcome> &&
              kPlain<abi::CuttingLines> && kPlain<abi::RequestKind> && kPlain<abi::TraceHeader> &&
              kPlain<abi::TraceEvent>);

// Each structure lies where the header and the page say.
TEST(Region, IsLaidOutAsTheHeaderAndThePageSay) {
  const std::map<std::string, size_t> parts = {
#define TS_PART(structure, field) {#structure, offsetof(abi::Region, field)}
      TS_PART(RegionHeader, header),       TS_PART(LeaseLine, lease),      TS_PART(AnswerLine, answer),
      TS_PART(UsageLine, usage),           TS_PART(SignalLine, signals),   TS_PART(CuttingLines, cutting),
      TS_PART(OperationTable, operations), TS_PART(MemoryTable, memory),   TS_PART(ParkLines, park),
      TS_PART(RecordRing, ring),           TS_PART(RequestTable, requests)
#undef TS_PART
  };
  const std::pair<const char*, std::regex> places[] = {
      {"/ipc/abi/region.h", std::regex(R"(//   (\d+) +(\w+) .*)")},
      {"/docs/abi.md", std::regex(R"(\| (\d+) \| `(\w+)` \|.*)")}};
  for (const auto& [file, row] : places) {
    std::ifstream in(std::string(TS_SOURCE) + file);
    std::map<std::string, size_t> told;
    for (std::string line; std::getline(in, line);)
      if (std::smatch found; std::regex_match(line, found, row)) told[found[2]] = std::stoul(found[1]);
    EXPECT_EQ(told, parts) << file;
  }
}

TEST(RegionHeader, WhatTheDaemonWritesIsAccepted) {
  const base::Status checked = check_region_header(make_region_header(7, 1, 3), abi::kRegionBytes);
  EXPECT_TRUE(checked.ok()) << checked.error().text;
}

TEST(RegionHeader, EveryWrongFieldIsRefused) {
  struct Case {
    const char* what;
    std::function<void(abi::RegionHeader&)> spoil;
    base::Code code;
  };
  const Case cases[] = {
      {"magic", [](auto& h) { h.magic ^= 1; }, base::Code::kInvalid},
      {"daemon too old", [](auto& h) { h.version = abi::kCompatVersion - 1; }, base::Code::kVersion},
      {"library too old", [](auto& h) { h.compat_version = abi::kVersion + 1; }, base::Code::kVersion},
      {"required feature", [](auto& h) { h.required_features = uint64_t(1) << 63; }, base::Code::kVersion},
      {"short header", [](auto& h) { h.header_bytes = 8; }, base::Code::kInvalid},
      {"size", [](auto& h) { h.region_bytes *= 2; }, base::Code::kInvalid},
  };
  for (const Case& c : cases) {
    abi::RegionHeader h = make_region_header(7, 1, 0);
    c.spoil(h);
    auto numbers = check_region_header(h, abi::kRegionBytes);
    ASSERT_FALSE(numbers.ok()) << c.what;
    EXPECT_EQ(numbers.error().code, c.code) << c.what;
  }
}

TEST(Versions, NewerAndOlderPeersWithinTheirCompatRangeAgree) {
  EXPECT_TRUE(versions_agree(abi::kVersion, abi::kCompatVersion));
  EXPECT_TRUE(versions_agree(abi::kVersion + 5, abi::kVersion));       // a newer peer that still speaks ours
  EXPECT_FALSE(versions_agree(abi::kVersion + 5, abi::kVersion + 1));  // one that no longer does
  EXPECT_FALSE(versions_agree(abi::kCompatVersion - 1, 0));            // one that is too old for us
}

TEST(RegionHeader, NewerDaemonWithUnknownOptionalFeaturesAndALongerHeaderIsAccepted) {
  abi::RegionHeader h = make_region_header(7, 1, 0);
  h.version = abi::kVersion + 1;
  h.features = ~uint64_t(0);
  h.header_bytes += 64;
  EXPECT_TRUE(check_region_header(h, abi::kRegionBytes).ok());
}

}  // namespace
}  // namespace tessera::ipc
