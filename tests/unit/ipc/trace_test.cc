// The ring of a trace: many writers, readers that take nothing away, and words that lie.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "ipc/channel/trace_ring.h"

namespace tessera::ipc {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<abi::TraceHeader, Free>;

Memory ring() {
  void* memory = std::aligned_alloc(4096, abi::kTraceBytes);
  std::memset(memory, 0, abi::kTraceBytes);
  return Memory(static_cast<abi::TraceHeader*>(memory));
}

// Every word says the same, so that a torn event is seen.
abi::TraceEvent event(uint64_t n, uint32_t thread = 0) {
  abi::TraceEvent e{};
  e.kind = abi::kTraceLaunch;
  e.thread = thread;
  e.a = n;
  e.at = {n, n, n, n, n};
  return e;
}
bool whole(const abi::TraceEvent& e) {
  return e.kind == abi::kTraceLaunch && e.at.start_ns == e.a && e.at.end_ns == e.a && e.at.stream == e.a &&
         e.at.b == e.a && e.at.c == e.a;
}

TEST(TraceRing, SeveralReadersSeeEverythingInOrder) {
  Memory memory = ring();
  TraceReader one(memory.get()), two(memory.get());
  for (uint64_t n = 1; n <= 100; ++n) trace_write(memory.get(), event(n));
  for (TraceReader* reader : {&one, &two}) {
    abi::TraceEvent e;
    for (uint64_t n = 1; n <= 100; ++n) {
      ASSERT_TRUE(reader->read(&e));
      EXPECT_EQ(e.a, n);
    }
    EXPECT_FALSE(reader->read(&e));
    EXPECT_EQ(reader->lost(), 0u);
  }
}

TEST(TraceRing, WhatWasOverwrittenIsCounted) {
  Memory memory = ring();
  TraceReader reader(memory.get());
  constexpr uint64_t kWritten = 3 * abi::kTraceSlots + 5;
  for (uint64_t n = 1; n <= kWritten; ++n) trace_write(memory.get(), event(n));
  abi::TraceEvent e;
  uint64_t seen = 0, last = 0;
  while (reader.read(&e)) {
    EXPECT_GT(e.a, last);
    last = e.a;
    ++seen;
  }
  EXPECT_EQ(last, kWritten);
  EXPECT_GE(seen, abi::kTraceSlots / 2);
  EXPECT_EQ(seen + reader.lost(), kWritten);
}

TEST(TraceRing, WritersInManyThreadsLoseNothingThatIsNotCounted) {
  Memory memory = ring();
  constexpr uint64_t kEach = 50'000, kWriters = 4;
  std::atomic<uint32_t> running{kWriters};
  TraceReader reader(memory.get());
  std::vector<std::thread> writers;
  for (uint32_t t = 0; t < kWriters; ++t)
    writers.emplace_back([&, t] {
      for (uint64_t n = 1; n <= kEach; ++n) trace_write(memory.get(), event(n, t));
      running--;
    });
  std::map<uint32_t, uint64_t> last;
  uint64_t seen = 0;
  const auto drain = [&](bool end) {
    abi::TraceEvent e;
    while (reader.read(&e, end)) {
      ASSERT_TRUE(whole(e));
      ASSERT_GT(e.a, last[e.thread]) << "of one thread in order";
      last[e.thread] = e.a;
      ++seen;
    }
  };
  while (running != 0) drain(false);
  for (std::thread& t : writers) t.join();
  drain(true);
  EXPECT_EQ(seen + reader.lost(), kEach * kWriters);
  EXPECT_GT(seen, 0u);
}

TEST(TraceRing, AnUnfinishedEventIsWaitedForUnlessItIsTheEnd) {
  Memory memory = ring();
  TraceReader reader(memory.get());
  trace_write(memory.get(), event(1));
  std::atomic_ref(memory->head).fetch_add(1);  // a writer that was stopped, or killed
  trace_write(memory.get(), event(3));
  abi::TraceEvent e;
  ASSERT_TRUE(reader.read(&e));
  EXPECT_FALSE(reader.read(&e));
  ASSERT_TRUE(reader.read(&e, true));
  EXPECT_EQ(e.a, 3u);
  EXPECT_EQ(reader.lost(), 1u);
}

TEST(TraceRing, AHeadThatLiesEndsNoLoopAndReadsNothingOutside) {
  Memory memory = ring();
  TraceReader reader(memory.get());
  abi::TraceEvent e;
  for (const uint64_t head : {uint64_t(5), UINT64_MAX, uint64_t(0), uint64_t(1) << 40, uint64_t(3)}) {
    std::atomic_ref(memory->head).store(head);
    for (uint32_t n = 0; n < 4 * abi::kTraceSlots && reader.read(&e, true); ++n) {
    }
  }
  std::atomic_ref(memory->head).store(UINT64_MAX - 3);  // the writer goes on across the wrap
  for (uint64_t n = 1; n <= 10; ++n) trace_write(memory.get(), event(n));
  for (uint32_t n = 0; n < 4 * abi::kTraceSlots && reader.read(&e, true); ++n) EXPECT_TRUE(whole(e));
}

}  // namespace
}  // namespace tessera::ipc
