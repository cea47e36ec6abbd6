// Traces made by hand: what is written, read again, and explained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/trace/explain.h"
#include "cli/trace/model.h"

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;
using nlohmann::json;
using testing::HasSubstr;

constexpr uint64_t us(uint64_t n) {
  return n * 1000;
}
constexpr uint64_t kStart_ns = 5'000'000'000;
constexpr uint32_t kService = 1, kTrainer = 2;

struct Made {
  Made() {
    trace.clients[kService] = {100, 5, "serve.py", "GPU-x", {{0xf0, "infer"}}};
    trace.clients[kTrainer] = {200, 0, "train.py", "GPU-x", {{0xf1, "_Z5traini"}}};
  }
  // Times in microseconds since the start.
  Made& add(uint32_t client, abi::TraceKind kind, uint64_t from, uint64_t to, uint64_t a = 0,
            uint64_t stream = 1, uint16_t detail = 0, uint64_t b = 0) {
    trace.items.push_back(
        {client, kind, detail, 1, kStart_ns + us(from), kStart_ns + us(to), stream, a, b, 0});
    return *this;
  }
  Trace& done() {
    sort_by_start(trace);
    return trace;
  }
  Trace trace;
};

// A burst from 1000 to 2000 us. A slice from 900 ended at 1200, another one from 1500 at 1600; launch calls of 50 us.
Made example() {
  Made m;
  m.add(kTrainer, abi::kTraceSlice, 900, 910, 0xf1).add(kTrainer, abi::kTraceMarker, 911, 911, 7);
  m.add(kTrainer, abi::kTraceDone, 1200, 1200, 7);
  m.add(kTrainer, abi::kTraceHold, 1010, 1490, 0, 1, abi::kTraceHeldByPulse);
  m.add(kTrainer, abi::kTraceSlice, 1500, 1510, 0xf1).add(kTrainer, abi::kTraceMarker, 1511, 1511, 9);
  m.add(kTrainer, abi::kTraceDone, 1600, 1600, 9);
  m.add(kService, abi::kTraceLaunch, 1150, 1250, 0xf0, 1, 0, 64);  // half of it while the slice drains
  m.add(kService, abi::kTraceBurst, 1000, 2000, 3, 0);
  m.add(kService, abi::kTraceBurst, 3000, 3010, 1, 0);
  return m;
}

TEST(Explain, KnowsThePartsOfABurst) {
  Made m = example();
  const auto bursts = slowest_bursts(m.done(), 1);
  ASSERT_EQ(bursts.size(), 1u);
  const BurstParts& b = bursts[0];
  EXPECT_EQ(b.client, kService);
  EXPECT_EQ(b.launches, 3u);
  EXPECT_EQ(b.drain_ns, us(200));   // 1000..1200
  EXPECT_EQ(b.beside_ns, us(100));  // 1500..1600
  EXPECT_EQ(b.host_ns, us(50));     // 1200..1250
  EXPECT_EQ(b.wait_ns, 0u);
  EXPECT_EQ(b.own_ns, us(650));
  EXPECT_EQ(b.length_ns(), us(1000));
  const std::string text = explanation(bursts, m.trace);
  EXPECT_THAT(text, HasSubstr("serve.py"));
  for (const char* part : {"65%", "20%", "10%", "5%", "1.0 ms"}) EXPECT_THAT(text, HasSubstr(part));
}

TEST(Explain, OverlappingWorkCountsOnceAndThatOfAnotherGpuNotAtAll) {
  Made m = example();
  m.add(kTrainer, abi::kTraceSlice, 950, 1100, 0xf1, 2);  // another stream, inside the drain
  m.trace.clients[3] = {300, 0, "elsewhere", "GPU-y", {}};
  m.add(3, abi::kTraceCopy, 900, 1900);
  EXPECT_EQ(slowest_bursts(m.done(), 1)[0].drain_ns, us(200));
  EXPECT_EQ(slowest_bursts(m.trace, 1)[0].beside_ns, us(100));
}

TEST(Explain, AWaitForABurstThatGoesFirstIsPartOfIt) {
  Made m = example();
  m.add(kService, abi::kTraceHold, 400, 1000, 0, 0, abi::kTraceHeldByBurst);
  const BurstParts b = slowest_bursts(m.done(), 5).front();
  EXPECT_EQ(b.wait_ns, us(600));
  EXPECT_EQ(b.length_ns(), us(1600));
}

TEST(Explain, TheSlowestComeFirstAndNoneIsSaidSo) {
  Made m = example();
  const auto bursts = slowest_bursts(m.done(), 5);
  ASSERT_EQ(bursts.size(), 2u);
  EXPECT_GT(bursts[0].length_ns(), bursts[1].length_ns());
  EXPECT_THAT(explanation({}, m.trace), HasSubstr("no burst"));
}

TEST(TraceModel, WhatIsWrittenIsReadAgain) {
  Made m = example();
  m.trace.lost = 17;
  const json written = to_chrome(m.done());
  const auto read = from_chrome(json::parse(written.dump()));
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_EQ(read->lost, 17u);
  ASSERT_EQ(read->items.size(), m.trace.items.size());
  for (size_t i = 0; i < read->items.size(); ++i) {
    EXPECT_EQ(read->items[i].kind, m.trace.items[i].kind);
    EXPECT_EQ(read->items[i].start_ns, m.trace.items[i].start_ns);
    EXPECT_EQ(read->items[i].end_ns, m.trace.items[i].end_ns);
    EXPECT_EQ(read->items[i].a, m.trace.items[i].a);
    EXPECT_EQ(read->items[i].detail, m.trace.items[i].detail);
  }
  EXPECT_EQ(explanation(slowest_bursts(*read, 2), *read), explanation(slowest_bursts(m.trace, 2), m.trace));
}

TEST(TraceModel, EachClientStreamAndGpuHasATrack) {
  Made m = example();
  m.add(kService, abi::kTraceLaunch, 2000, 2001, 0xf0, 0xabc);
  std::set<std::string> names;
  std::map<std::pair<json, json>, int> named;
  const json written = to_chrome(m.done());
  for (const json& e : written["traceEvents"])
    if (e["ph"] == "M") {
      names.insert(e["args"]["name"].get<std::string>());
      if (e["name"] == "thread_name") named[{e["pid"], e["tid"]}]++;
    }
  EXPECT_THAT(names, testing::IsSupersetOf({"serve.py (100)", "train.py (200)", "default stream",
                                            "stream 0xabc", "GPU-x", "serve.py (100): bursts"}));
  for (const json& e : written["traceEvents"])
    if (e["ph"] != "M") {
      const std::pair<json, json> track{e["pid"], e["tid"]};
      EXPECT_EQ(named[track], 1) << e;
    }
}

TEST(TraceModel, TextHasOneLinePerEvent) {
  Made m = example();
  const std::string text = to_text(m.done());
  EXPECT_EQ(size_t(std::count(text.begin(), text.end(), '\n')), m.trace.items.size());
  EXPECT_THAT(text, HasSubstr("train.py/200  default stream  held: pulse, 480 us"));
  EXPECT_THAT(text, HasSubstr("slice train(int)"));
  EXPECT_THAT(text, HasSubstr("launch infer, 64 blocks, 100 us"));
}

TEST(TraceModel, EventsOfAClientAreBounded) {
  Trace trace;
  trace.clients[1] = {};
  abi::TraceEvent e{};
  e.kind = 999;
  EXPECT_FALSE(add_event(trace, 1, e));
  e.kind = abi::kTraceHold;
  e.detail = 999;
  e.a = UINT64_MAX;
  e.at = {UINT64_MAX, 5, 0, 0, 0};
  EXPECT_TRUE(add_event(trace, 1, e));
  EXPECT_GE(trace.items[0].end_ns, trace.items[0].start_ns);
  e.kind = abi::kTraceName;
  memset(e.name, 'n', sizeof e.name);
  for (int i = 0; i < 100; i++, e.detail++) EXPECT_FALSE(add_event(trace, 1, e));
  EXPECT_LE(trace.clients[1].functions[UINT64_MAX].size(), 240u);
  EXPECT_NE(to_text(trace), "");
  EXPECT_NE(to_chrome(trace).dump(), "");
}

TEST(TraceModel, OtherFilesAreRefusedWithAReason) {
  for (
      const char* text :
      {"[]", "{}", "7", R"({"otherData":7})", R"({"otherData":{"format":"tessera trace 1"}})",
       R"({"otherData":{"format":"tessera trace 1","clients":[7]},"traceEvents":[]})",
       R"({"otherData":{"format":"tessera trace 1"},"traceEvents":[{"ph":"X","args":{"kind":"launch"}}]})"}) {
    const auto read = from_chrome(json::parse(text));
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(read.error().text, HasSubstr("tessera trace"));
  }
}

}  // namespace
}  // namespace tessera::cli
