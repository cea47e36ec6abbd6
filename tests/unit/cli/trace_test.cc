// Traces made by hand: what is written, read again, and explained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/look/cut_launches.h"
#include "cli/trace/chakra.h"
#include "cli/trace/explain.h"
#include "cli/trace/gpu_times.h"
#include "cli/trace/model.h"
#include "simulator/chakra_workload.h"

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;
using nlohmann::json;
using testing::HasSubstr;

constexpr uint64_t us(uint64_t n) {
  return n * 1000;
}
constexpr uint64_t kStartNs = 5'000'000'000;
constexpr uint32_t kService = 1, kTrainer = 2;

struct Made {
  Made() {
    trace.clients[kService] = {100, 5, "serve.py", "GPU-x", {{0xf0, "infer"}}};
    trace.clients[kTrainer] = {200, 0, "train.py", "GPU-x", {{0xf1, "_Z5traini"}}};
  }
  // Times in microseconds since the start.
  Made& add(uint32_t client, abi::TraceKind kind, uint64_t from, uint64_t to, uint64_t a = 0,
            uint64_t stream = 1, uint16_t detail = 0, uint64_t b = 0) {
    trace.items.push_back({client, kind, detail, 1, kStartNs + us(from), kStartNs + us(to), stream, a, b, 0});
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

TEST(Explain, NamesTheSlowestRequestsOfWhoHasSome) {
  Made m = example();
  m.trace.clients[kService].functions[0xdec] = "decode_step";
  m.add(kService, abi::kTraceRequest, 950, 2000, 0xdec).add(kService, abi::kTraceRequest, 2900, 3010, 0xdec);
  m.add(kService, abi::kTraceHold, 900, 1000, 0, 1, abi::kTraceHeldByBurst);
  const auto requests = slowest_bursts(m.done(), 1);
  ASSERT_EQ(requests.size(), 1u);
  const BurstParts& r = requests[0];
  EXPECT_EQ(r.request, "decode_step");
  EXPECT_EQ(r.length_ns(), us(1050));
  EXPECT_EQ(r.wait_ns, us(50));
  EXPECT_EQ(r.drain_ns, us(200));
  EXPECT_EQ(r.beside_ns, us(100));
  EXPECT_NE(explanation(requests, m.trace).find("decode_step of "), std::string::npos);
}

TEST(Traces, RequestsHaveATrackOfTheirOwnAndComeBack) {
  Made m = example();
  m.trace.clients[kService].functions[0xdec] = "decode_step";
  m.add(kService, abi::kTraceRequest, 1000, 2000, 0xdec);
  const nlohmann::json chrome = to_chrome(m.done());
  std::string track;
  for (const auto& event : chrome["traceEvents"]) {
    if (event.value("cat", "") != "request") continue;
    EXPECT_EQ(event["name"], "decode_step");
    for (const auto& named : chrome["traceEvents"])
      if (named["name"] == "thread_name" && named["tid"] == event["tid"] && named["pid"] == event["pid"])
        track = named["args"]["name"];
  }
  EXPECT_TRUE(track.ends_with(": requests")) << track;
  const auto read = from_chrome(chrome);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(slowest_bursts(*read, 1).at(0).request, "decode_step");
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

TEST(Explain, SaysWhatOfTheOthersCanBeCutAlsoFromAFile) {
  Made m = example();
  m.trace.clients[kTrainer].cutting =
      "cut: 0% of 280k launches; in the way: 62% NVIDIA's libraries; helps: --x";
  const std::string text = explanation(slowest_bursts(m.done(), 1), m.trace);
  for (const char* part : {"cut: 0% of 280k", "in the way: 62%", "helps: --x"})
    EXPECT_THAT(text, HasSubstr(part));
  const auto read = from_chrome(to_chrome(m.trace));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(explanation(slowest_bursts(*read, 1), *read), text);
}

TEST(Explain, SaysWhoHoldsTheGangsAlsoFromAFile) {
  Made m = example();
  m.trace.clients[kTrainer].gang = "2 of 8 in gang job, held: all are held by GPU-x: others fill the GPU";
  const std::string text = explanation(slowest_bursts(m.done(), 1), m.trace);
  EXPECT_THAT(text, HasSubstr("2 of 8 in gang job"));
  const auto read = from_chrome(to_chrome(m.trace));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(explanation(slowest_bursts(*read, 1), *read), text);
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

TEST(Explain, NamesTheKernelsThatBurstsWaitedForLongestAndWhatWouldShortenThat) {
  Made m = example();
  m.trace.clients[kTrainer].functions[0xf2] = "whole";
  // 300 us before a burst begins, and 700 inside it.
  m.add(kTrainer, abi::kTraceLaunch, 3700, 3710, 0xf2, 2).add(kTrainer, abi::kTraceMarker, 3711, 3711, 11, 2);
  m.trace.items[m.trace.items.size() - 2].c = abi::launch_facts(abi::kOutcomeNoPtx);
  m.add(kTrainer, abi::kTraceDone, 4700, 4700, 11, 2).add(kService, abi::kTraceBurst, 4000, 5000, 1, 0);
  const Trace& trace = m.done();
  const auto kernels = kernels_in_the_way(trace, 10);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].function, 0xf2u);
  EXPECT_EQ(kernels[0].waited_ns, us(700));
  EXPECT_EQ(kernels[0].outcome, "no_ptx");
  EXPECT_EQ(kernels[1].function, 0xf1u);
  EXPECT_EQ(kernels[1].bursts, 1u);
  EXPECT_EQ(kernels[1].waited_ns, us(200 + 100)) << "two slices";
  EXPECT_EQ(kernels[1].outcome, "") << "its launches are not in the trace";
  EXPECT_EQ(kernels_in_the_way(trace, 1).size(), 1u);
  const std::string text = told(kernels, trace);
  EXPECT_THAT(text,
              HasSubstr("whole                           train.py               1     700 us     700 us\n"));
  EXPECT_THAT(text, HasSubstr("cut: --keep-ptx"));
  EXPECT_THAT(text, HasSubstr("train(int)"));
  EXPECT_EQ(told({}, trace), "");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(Explain, EveryOutcomeSaysWhatShortensTheWait) {
#define TS_ROW(id, name) EXPECT_NE(shortens(name), "") << name;
  TS_LAUNCH_OUTCOMES(TS_ROW)
#undef TS_ROW
  EXPECT_THAT(shortens("nvidia_library"), HasSubstr("split: --split-operations; else confine"));
  EXPECT_THAT(shortens("waiting"), HasSubstr("confine"));
  EXPECT_THAT(shortens("waiting"), HasSubstr("only in gaps"));
  EXPECT_EQ(shortens("of a newer release"), "");
}

TEST(TraceModel, ALaunchSaysWhetherItsKernelCanBeCut) {
  Made m;
  m.add(kTrainer, abi::kTraceLaunch, 1, 2, 0xf1).add(kTrainer, abi::kTraceLaunch, 3, 4, 0xf1);
  m.add(kTrainer, abi::kTraceLaunch, 5, 6, 0xf1).add(kTrainer, abi::kTraceSlice, 7, 8, 0xf1);
  m.trace.items[0].c = abi::launch_facts(abi::kOutcomeSliced);
  m.trace.items[1].c = abi::launch_facts(abi::kOutcomeBits);
  m.trace.items[2].c = 0xff00;  // of a newer release
  const json file = to_chrome(m.done());
  EXPECT_THAT(file.dump(), HasSubstr(R"("outcome":"bits")"));
  auto read = from_chrome(file);
  ASSERT_TRUE(read.ok());
  for (const Trace* trace : {&m.trace, &*read}) {
    EXPECT_TRUE(was_cut(trace->items[0]));
    EXPECT_STREQ(outcome_of(trace->items[0]), "sliced");
    EXPECT_FALSE(was_cut(trace->items[1]));
    EXPECT_STREQ(outcome_of(trace->items[1]), "bits");
    EXPECT_STREQ(outcome_of(trace->items[2]), "");
    EXPECT_FALSE(is_piece(trace->items[0]));
    EXPECT_TRUE(is_piece(trace->items[3]));
  }
}

TEST(TraceModel, ACallOfALibraryHasItsNameShapeAndCost) {
  Made m;
  m.trace.clients[kTrainer] = {200, 0, "train.py", "GPU-x", {{0xc0, "cublasSgemm_v2 f32 64x32x16"}}};
  m.add(kTrainer, abi::kTraceOperation, 100, 250, 0xc0, 1, 0, 65'536);
  m.trace.items[0].c = 1024;
  const json file = to_chrome(m.done());
  const json& event = file["traceEvents"].back();
  EXPECT_EQ(event["name"], "cublasSgemm_v2 f32 64x32x16");
  EXPECT_EQ(event["cat"], "operation");
  EXPECT_EQ(event["args"]["flop"], 65'536);
  EXPECT_EQ(event["args"]["bytes"], 1024);
  EXPECT_EQ(event["dur"], 150.0);
  auto read = from_chrome(file);
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_EQ(to_chrome(*read), file);
  EXPECT_THAT(to_text(*read),
              HasSubstr("operation cublasSgemm_v2 f32 64x32x16, 65.5k FLOP, 1.02k bytes, 150 us"));
}

TEST(TraceModel, AFirstEstimateIsToldWithWhatItWasAnEstimateOf) {
  Made m;
  m.trace.clients[kTrainer] = {200, 0, "train.py", "GPU-x", {{0xf1, "gemm"}}};
  m.add(kTrainer, abi::kTraceEstimate, 100, 100, 0xf1, 0, 1, 250'000);
  m.trace.items[0].c = 1'000'000;
  const json file = to_chrome(m.done());
  const json& event = file["traceEvents"].back();
  EXPECT_EQ(event["cat"], "estimate");
  EXPECT_EQ(event["args"]["expected_ns"], 250'000);
  EXPECT_EQ(event["args"]["took_ns"], 1'000'000);
  EXPECT_EQ(event["args"]["below_call"], true);
  auto read = from_chrome(file);
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_EQ(to_chrome(*read), file);
  EXPECT_THAT(to_text(*read), HasSubstr("estimate gemm, expected 250 us, took 1.0 ms"));
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

// As of a program that unloads modules and loads others.
TEST(TraceModel, AHandleThatComesToAnotherFunctionHasItsNameFromThenOn) {
  Trace trace;
  const auto say = [&](const std::string& name) {
    for (uint16_t piece = 0; size_t(piece) * abi::kTraceNameBytes < name.size(); piece++) {
      abi::TraceEvent e{};
      e.kind = abi::kTraceName;
      e.a = 7;
      e.detail = piece;
      const std::string part = name.substr(size_t(piece) * abi::kTraceNameBytes, sizeof e.name);
      memcpy(e.name, part.data(), part.size());
      EXPECT_FALSE(add_event(trace, 1, e));
    }
  };
  const auto launch = [&] {
    abi::TraceEvent e{};
    e.kind = abi::kTraceLaunch;
    e.a = 7;
    EXPECT_TRUE(add_event(trace, 1, e));
    return item_title(trace, trace.items.back());
  };
  const std::string long_name(100, 'l'), other_end = std::string(99, 'l') + "x";
  const std::vector<std::string> names = {"first", "first", "second", "sec", long_name, long_name, other_end};
  for (const std::string& name : names) {
    say(name);
    EXPECT_EQ(launch(), name);
  }
  for (size_t i = 0; i < names.size(); i++) EXPECT_EQ(item_title(trace, trace.items[i]), names[i]);
  EXPECT_EQ(trace.items[0].a, trace.items[1].a);  // said again
  EXPECT_EQ(trace.items[4].a, trace.items[5].a);
  EXPECT_NE(trace.items[1].a, trace.items[2].a);
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

// The sum of what the GPU did for a kernel, in microseconds.
uint64_t gpu_us(const Trace& trace, uint64_t function) {
  const auto times = gpu_times_ns(trace);
  uint64_t sum = 0;
  for (size_t i = 0; i < times.size(); ++i)
    if (trace.items[i].kind == abi::kTraceLaunch && trace.items[i].a == function) sum += times[i];
  return sum / 1000;
}

TEST(GpuTimes, AreBetweenWhatShowsThatAStreamReachedAPoint) {
  Made m;
  // Two kernels up to a call that waits, one up to the next.
  m.add(kService, abi::kTraceLaunch, 1000, 1005, 0xf0).add(kService, abi::kTraceLaunch, 1010, 1015, 0xf1);
  m.add(kService, abi::kTraceSync, 1020, 1600);
  m.add(kService, abi::kTraceLaunch, 1700, 1705, 0xf1).add(kService, abi::kTraceSync, 1710, 2100);
  m.done();
  EXPECT_NEAR(double(gpu_us(m.trace, 0xf1)), 800, 2);  // 400 each
  EXPECT_NEAR(double(gpu_us(m.trace, 0xf0)), 200, 2);  // what is left of 600
}

TEST(GpuTimes, OfACutLaunchAreThoseOfItsSlices) {
  Made m;
  m.add(kTrainer, abi::kTraceSlice, 1001, 1002, 0xf1).add(kTrainer, abi::kTraceMarker, 1003, 1003, 7);
  m.add(kTrainer, abi::kTraceDone, 1101, 1101, 7);
  m.add(kTrainer, abi::kTraceSlice, 1201, 1202, 0xf1).add(kTrainer, abi::kTraceMarker, 1203, 1203, 9);
  m.add(kTrainer, abi::kTraceLaunch, 1000, 1210, 0xf1);
  m.trace.items.back().c = 1;
  m.add(kTrainer, abi::kTraceDone, 1301, 1301, 9);
  EXPECT_EQ(gpu_us(m.done(), 0xf1), 200u);
}

TEST(GpuTimes, AnEventShowsWhatWasRecordedBeforeIt) {
  Made m;
  m.add(kService, abi::kTraceLaunch, 1000, 1005, 0xf0).add(kService, abi::kTraceRecord, 1010, 1010, 0xe1);
  m.add(kService, abi::kTraceLaunch, 1020, 1025, 0xf1);
  m.add(kService, abi::kTraceSync, 1030, 1100, 0, 0, 0, 0xe1);  // for the event
  m.add(kService, abi::kTraceSync, 1110, 1400, 0, 0);           // for all
  m.done();
  EXPECT_EQ(gpu_us(m.trace, 0xf0), 100u);
  EXPECT_EQ(gpu_us(m.trace, 0xf1), 300u);
  EXPECT_EQ(gpu_times_ns(m.trace).size(), m.trace.items.size());
}

const simulator::chakra::Node* named(const simulator::chakra::Trace& trace, const std::string& name) {
  for (const auto& node : trace.nodes)
    if (node.name == name) return &node;
  return nullptr;
}

TEST(ChakraExport, KernelsDependOnTheirStreamOnEventsAndOnTheHost) {
  Made m;
  m.trace.clients[kService].functions = {{1, "first"}, {2, "second"}, {3, "third"}, {4, "fourth"}};
  m.add(kService, abi::kTraceLaunch, 0, 1, 1, 0xa).add(kService, abi::kTraceRecord, 2, 2, 0xe1, 0xa);
  m.add(kService, abi::kTraceLaunch, 3, 4, 2, 0xb);
  m.add(kService, abi::kTraceWait, 5, 5, 0xe1, 0xb).add(kService, abi::kTraceLaunch, 6, 7, 3, 0xb);
  m.add(kService, abi::kTraceSync, 8, 100, 0, 0xb).add(kService, abi::kTraceLaunch, 130, 131, 4, 0xa);
  const auto made = to_chakra(m.done());
  ASSERT_EQ(made.size(), 1u);
  const auto *first = named(made[0], "first"), *second = named(made[0], "second"),
             *third = named(made[0], "third"), *fourth = named(made[0], "fourth");
  ASSERT_TRUE(first && second && third && fourth);
  EXPECT_TRUE(first->data_dependencies.empty());
  EXPECT_TRUE(second->data_dependencies.empty()) << "another stream";
  EXPECT_THAT(third->data_dependencies, testing::UnorderedElementsAre(second->id, first->id));
  EXPECT_THAT(fourth->data_dependencies, testing::ElementsAre(first->id));
  ASSERT_EQ(fourth->control_dependencies.size(), 1u);
  const auto& host = made[0].nodes[fourth->control_dependencies[0] - 1];
  EXPECT_TRUE(simulator::chakra::flag(host.attributes, "is_cpu_op"));
  EXPECT_THAT(host.data_dependencies, testing::ElementsAre(third->id));
  EXPECT_EQ(host.duration_us, 30u);
}

TEST(ChakraExport, BecomesAWorkloadWithTheSameKernelsAndTimes) {
  Made m;
  for (uint64_t i = 0; i < 5; ++i) {  // requests: a copy in, two kernels, a copy out that waits
    const uint64_t at = 10'000 * i;
    m.add(kService, abi::kTraceBusy, at, at).add(kService, abi::kTraceCopy, at + 1, at + 2);
    m.add(kService, abi::kTraceLaunch, at + 10, at + 11, 0xf0, 1, 0, 64);
    m.add(kService, abi::kTraceSync, at + 12, at + 210);
    m.add(kService, abi::kTraceLaunch, at + 250, at + 251, 0xf0, 1, 0, 64);
    m.add(kService, abi::kTraceCopy, at + 252, at + 460);
    m.trace.items.back().c = abi::kTraceCopyEnded | abi::kTraceCopyOut;
    m.add(kService, abi::kTraceBurst, at, at + 461, 4);
  }
  m.done();
  const auto times = gpu_times_ns(m.trace);
  uint64_t all_ns = 0;
  for (size_t i = 0; i < times.size(); ++i) all_ns += times[i];
  const auto made = to_chakra(m.trace);
  ASSERT_EQ(made.size(), 1u);
  const auto read = simulator::chakra::decode(simulator::chakra::encode(made[0]));
  ASSERT_TRUE(read.ok()) << read.error().text;
  const auto workload = simulator::workload_of(*read, "service", 4);
  ASSERT_TRUE(workload.ok()) << workload.error().text;
  ASSERT_EQ(workload->steps.size(), 2u);
  EXPECT_EQ(workload->steps[0].segments.size(), 2u);
  EXPECT_EQ(workload->steps[0].gap_ns, us(40));
  EXPECT_EQ(workload->steps[1].gap_ns, us(1));  // to the end of the burst, not to the next request
  EXPECT_EQ(workload->recorded_gaps_ns.size(), 4u);
  EXPECT_EQ(workload->recorded_gaps_ns[0], double(us(10'000)));
  EXPECT_NEAR(double(workload->alone_ns(4, {})), double(all_ns) / 5 + double(us(41)), double(us(1)));
}

}  // namespace
}  // namespace tessera::cli
