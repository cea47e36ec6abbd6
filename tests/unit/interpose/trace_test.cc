// Tracing inside the library: nothing is different while nobody traces; then each launch is said once.
#include "interpose/gate/trace.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "interpose/gate/requests.h"
#include "interpose/hooks/trace.h"
#include "interpose/state/note.h"
#include "ipc/channel/trace_ring.h"
#include "tests/unit/interpose/harness.h"

extern "C" const tessera::operations::NoteReader* tessera_note_reader(uint32_t version) noexcept;

namespace tessera::test {
namespace {

using state::Role;

class Traced : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    memory_ = std::aligned_alloc(4096, abi::kTraceBytes);  // never freed: a late thread may still write
    memset(memory_, 0, abi::kTraceBytes);
  }
  void TearDown() override {
    trace(false);
    Gate::TearDown();
  }
  void trace(bool on) {
    if (on) hooks::trace_driver_calls(true);
    gate::set_trace(on ? ring() : nullptr);
    if (!on) hooks::trace_driver_calls(false);
  }
  abi::TraceHeader* ring() { return static_cast<abi::TraceHeader*>(memory_); }
  std::vector<abi::TraceEvent> events(abi::TraceKind kind) {
    std::vector<abi::TraceEvent> out;
    ipc::TraceReader reader(ring());
    reader.from_what_is_kept();
    abi::TraceEvent e;
    while (reader.read(&e))
      if (e.kind == kind) out.push_back(e);
    return out;
  }
  void* memory_ = nullptr;
};

TEST_F(Traced, TheDriversEntryPointsAreItsOwnWhileNobodyTraces) {
  const auto before = driver_api::real();
  trace(true);
  EXPECT_NE(driver_api::real().cuLaunchKernel, before.cuLaunchKernel);
  EXPECT_NE(driver_api::real().cuMemcpyHtoD_v2, before.cuMemcpyHtoD_v2);
  EXPECT_EQ(driver_api::real().cuStreamQuery, before.cuStreamQuery) << "not work";
  trace(false);
  EXPECT_EQ(memcmp(&driver_api::real(), &before, sizeof before), 0);
}

TEST_F(Traced, EachLaunchOfEachRoleIsThereOnceWithItsArguments) {
  for (const Role role : {Role::kForward, Role::kBestEffort, Role::kProtected}) {
    attach(role);
    lease(abi::kLeaseGranted);
    const CUstream stream = new_stream();
    for (int i = 0; i < 5; i++) launch(stream, 3);  // by now repeats are not looked at
    memset(memory_, 0, abi::kTraceBytes);
    trace(true);
    for (uint32_t i = 0; i < 20; i++) ASSERT_EQ(launch(stream, 3 + i % 2), CUDA_SUCCESS);
    trace(false);
    launch(stream, 3);
    const auto launches = events(abi::kTraceLaunch);
    ASSERT_EQ(launches.size(), 20u) << int(role);
    for (uint32_t i = 0; i < 20; i++) {
      EXPECT_EQ(launches[i].at.b, 3 + i % 2);
      EXPECT_EQ(launches[i].a, reinterpret_cast<uint64_t>(function));
      EXPECT_EQ(launches[i].at.stream, reinterpret_cast<uint64_t>(stream));
      EXPECT_LE(launches[i].at.start_ns, launches[i].at.end_ns);
    }
  }
}

TEST_F(Traced, ACallOfALibraryIsOneEventAroundItsLaunches) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted);
  const auto* reader = tessera_note_reader(operations::kNoteVersion);
  const CUstream stream = new_stream();
  const auto call = [&] {
    operations::Note note{.flop = 6,
                          .bytes = 7,
                          .entry = 1,
                          .name = "f",
                          .describe = [](const operations::Note*, char* text, uint32_t bytes) -> uint64_t {
                            if (text) snprintf(text, bytes, "f f32 1x1x3");
                            return 0xabcdef0123456789;
                          }};
    reader->begin(&note);
    launch(stream, 3);
    reader->end(&note);
  };
  call();
  trace(true);
  call();
  call();
  trace(false);
  const auto calls = events(abi::kTraceOperation), launches = events(abi::kTraceLaunch);
  ASSERT_EQ(calls.size(), 2u);
  ASSERT_EQ(launches.size(), 2u);
  for (size_t i = 0; i < 2; i++) {
    EXPECT_EQ(calls[i].a, 0xabcdef0123456789);
    EXPECT_EQ(calls[i].at.b, 6u);
    EXPECT_EQ(calls[i].at.c, 7u);
    EXPECT_EQ(calls[i].at.stream, launches[i].at.stream);
    EXPECT_LE(calls[i].at.start_ns, launches[i].at.start_ns);
    EXPECT_GE(calls[i].at.end_ns, launches[i].at.end_ns);
  }
  std::vector<std::string> said;
  for (const abi::TraceEvent& e : events(abi::kTraceName))
    if (e.a == 0xabcdef0123456789) said.emplace_back(reinterpret_cast<const char*>(e.name));
  EXPECT_EQ(said, (std::vector<std::string>{"f f32 1x1x3"}));  // once
}

// Its module was unloaded, and the driver gave the handle to another one's kernel.
TEST_F(Traced, AFunctionThatGetsAHandleAgainSaysItsName) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted);
  int modules[2];
  trace(true);
  for (const char* name : {"first", "second"}) {
    track::kernel_found(function, &modules[0], false, name);
    launch();
    launch();
  }
  track::image_unloaded(&modules[0], 0);
  track::kernel_found(function, &modules[1], false, "third");
  launch();
  trace(false);
  std::vector<std::string> said;
  for (const abi::TraceEvent& e : events(abi::kTraceName))
    said.emplace_back(reinterpret_cast<const char*>(e.name));
  EXPECT_EQ(said, (std::vector<std::string>{"first", "second", "third"}));
  track::image_unloaded(&modules[1], 0);
}

TEST_F(Traced, AHoldIsOneEventWithItsReasonHoweverOftenItWasAskedMeanwhile) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  trace(true);
  std::thread held([&] { launch(); });
  ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
  lease(abi::kLeaseHold, 3'000'000, 1'000'000, 1, 10'000);  // it looks again, and waits on
  lease(abi::kLeaseGranted);
  held.join();
  const auto holds = events(abi::kTraceHold);
  ASSERT_EQ(holds.size(), 1u);
  EXPECT_EQ(holds[0].detail, abi::kTraceHeldByLease);
  EXPECT_LT(holds[0].at.start_ns, holds[0].at.end_ns);
  EXPECT_EQ(events(abi::kTraceLaunch).size(), 1u);
}

TEST_F(Traced, BurstsAreSaidWhenTheyBeginAndWhenTheyEnd) {
  attach(Role::kProtected);
  trace(true);
  launch();
  EXPECT_EQ(events(abi::kTraceBusy).size(), 1u);
  EXPECT_EQ(events(abi::kTraceBurst).size(), 0u);
  gate::forgive_all();
  ASSERT_TRUE(gate::try_idle());
  const auto bursts = events(abi::kTraceBurst);
  ASSERT_EQ(bursts.size(), 1u);
  EXPECT_EQ(bursts[0].a, 1u);
}

TEST_F(Traced, ARequestIsSaidWithItsKindsName) {
  attach(Role::kProtected);
  trace(true);
  const uint64_t request = gate::begin_request(gate::request_kind("decode", false), true);
  launch();
  gate::end_request(request);
  EXPECT_EQ(events(abi::kTraceRequest).size(), 0u);
  gate::forgive_all();
  gate::look_at_requests();
  const auto requests = events(abi::kTraceRequest);
  ASSERT_EQ(requests.size(), 1u);
  const auto names = events(abi::kTraceName);
  EXPECT_TRUE(std::ranges::any_of(names, [&](const abi::TraceEvent& e) {
    return e.a == requests[0].a && strcmp(reinterpret_cast<const char*>(e.name), "decode") == 0;
  }));
}

}  // namespace
}  // namespace tessera::test
