// The output of ps and top for given answers of the daemon.
#include "cli/look/client_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/look/device_memory.h"
#include "cli/look/request_table.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json client(uint64_t id, const char* name, uint64_t priority, uint64_t launches, uint64_t gpu_ns,
            uint64_t held_ns) {
  return {{"id", id},
          {"pid", 4000 + id},
          {"name", name},
          {"priority", priority},
          {"state", priority ? "idle" : "free"},
          {"launches", launches},
          {"slices", launches * 3},
          {"holds", 12},
          {"held_ns", held_ns},
          {priority ? "busy_ns" : "completed_ns", gpu_ns},
          {"bursts_recorded", priority ? launches / 10 : 0},
          {"slowdown_permille", priority ? 1084 : 0}};
}

json state(std::vector<json> clients) {
  return {{"clients", clients},
          {"gpus",
           {{{"uuid", "GPU-01234567-89ab-cdef-0123-456789abcdef"},
             {"policy", "tessera"},
             {"mps", false},
             {"clients", clients.size()}}}}};
}

// Two clients after two seconds: one computed for 1.8 s of it, the other one was busy for 0.5 s.
TwoLooks two_looks() {
  return {state({client(1, "train.py", 0, 1000, 5'000'000'000, 0), client(2, "serve.py", 3, 500, 100, 0)}),
          state({client(1, "train.py", 0, 25'000, 6'800'000'000, 400'000'000),
                 client(2, "serve.py", 3, 700, 500'000'100, 850'000)}),
          2};
}

std::string row_of(const std::string& table, const std::string& name) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);)
    if (line.find(name) != std::string::npos) return line;
  return "";
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

TEST(ClientTable, PsSaysWhatWasNotManaged) {
  json train = client(1, "train.py", 0, 1000, 5'000'000'000, 0), serve = client(2, "serve.py", 5, 0, 0, 0);
  EXPECT_EQ(ps_unmanaged(state({train, serve})), "");
  train["unmanaged_launches"] = 12;
  serve["unmanaged_launches"] = 3;
  EXPECT_EQ(ps_unmanaged(state({train, serve})),
            "launches before they were managed: 4001 train.py: 12, 4002 serve.py: 3\n");
}

TEST(ClientTable, PsSaysWhereWorkWaits) {
  json train = client(1, "train.py", 0, 1000, 5'000'000'000, 0), other = client(2, "other.py", 0, 0, 0, 0);
  EXPECT_EQ(ps_gates(state({train})), "");
  train["gate"] = other["gate"] = "thread: nobody asks";
  const std::string prices = wrapped(kGatePrices);
  EXPECT_EQ(ps_gates(state({train, other})),
            "4001 train.py, 4002 other.py: waits in its thread: nobody asks\n" + prices);
  train["gate"] = "device";
  train["gate_quantum_ns"] = 27'000;
  train["gate_boundaries"] = 12'000;
  EXPECT_EQ(ps_gates(state({train})),
            "4001 train.py: waits on the device, quanta of 27 us; 12.0k boundaries\n" + prices);
  train["gate"] = "thread: without MPS best-effort clients take turns";
  train["gate_openings"] = 3;
  const std::string said = ps_gates(state({train, other}));
  EXPECT_THAT(said, HasSubstr("waits in its thread: without MPS"));
  EXPECT_THAT(said, HasSubstr("3 openings"));
  EXPECT_THAT(said, HasSubstr("4002 other.py: waits in its thread: nobody asks\n"));
}

TEST(ClientTable, PsShowsSumsAndTheShareOfTheGpuBetweenTheLooks) {
  const std::string table = ps_table(two_looks());
  EXPECT_THAT(words(row_of(table, "train.py")), testing::ElementsAre("4001", "train.py", "0", "free", "90%",
                                                                     "25.0k", "75.0k", "12", "400", "ms"));
  EXPECT_THAT(words(row_of(table, "serve.py")), testing::ElementsAre("4002", "serve.py", "3", "idle", "25%",
                                                                     "700", "2.10k", "12", "850", "us"));
}

TEST(ClientTable, TopShowsRates) {
  const std::string table = top_table(two_looks());
  EXPECT_THAT(table, HasSubstr("GPU-01234567-89ab-cdef-0123-456789abcdef: tessera, turns, 2 clients\n"));
  EXPECT_THAT(words(row_of(table, "train.py")), testing::ElementsAre("4001", "train.py", "0", "free", "90%",
                                                                     "20%", "12.0k", "36.0k", "0", "-"));
  EXPECT_THAT(words(row_of(table, "serve.py")),
              testing::ElementsAre("4002", "serve.py", "3", "idle", "25%", "0%", "100", "300", "10", "1.08"));
}

TEST(ClientTable, PsSaysHowManySmsAreReservedAndBecauseOfWhichMechanism) {
  TwoLooks looks = two_looks();
  EXPECT_EQ(ps_reserves(looks.now), "");
  looks.now["gpus"][0]["sm_count"] = 132;
  json& c = looks.now["clients"][0];
  c["gpu"] = looks.now["gpus"][0]["uuid"];
  c["reserved_sms"] = 16;
  EXPECT_EQ(ps_reserves(looks.now), "");  // not of use to any of its launches
  c["confined_launches"] = 12'345;
  EXPECT_EQ(ps_reserves(looks.now),
            "4001 train.py: reserve: 16 of 132 SMs by green contexts, 12.3k launches\n");
}

TEST(ClientTable, PsSaysWhichWorkStartsBesideBurstsAndHowOftenItDid) {
  TwoLooks looks = two_looks();
  json& c = looks.now["clients"][0];
  c["during_bursts"] = {"compute"};
  EXPECT_EQ(ps_beside(looks.now), "");  // nothing of it came to that
  c["during_bursts_compute"] = 12'345;
  c["during_bursts_memory"] = 3;
  EXPECT_EQ(ps_beside(looks.now),
            "4001 train.py: during bursts: 12.3k compute, 3 memory launches so far; now of\n"
            "    class: compute\n");
  c["during_bursts"] = json::array();
  EXPECT_THAT(ps_beside(looks.now), HasSubstr("class: none\n"));
}

json operation(const char* name, double flop, double gpu_ns) {
  return {{"name", name}, {"type", "f32"}, {"class", "compute"}, {"calls", 12'345},
          {"flop", flop}, {"bytes", 2e9},  {"gpu_ns", gpu_ns},   {"launches", 3}};
}

TEST(ClientTable, OperationsShowWhatTheyComputedBetweenTheLooks) {
  TwoLooks looks = two_looks();
  EXPECT_EQ(operation_table(looks, 10), "");
  looks.before["clients"][0]["operations"] = {operation("cublasSgemm_v2", 1e12, 1e9)};
  looks.now["clients"][0]["operations"] = {operation("cublasSgemm_v2", 5e12, 2e9),
                                           operation("cublasSgemmStridedBatched", 6e20, 0.5e9)};
  const std::string table = operation_table(looks, 10);
  EXPECT_EQ(
      words(row_of(table, "cublasSgemm_v2")),
      (std::vector<std::string>{"4001", "cublasSgemm_v2", "f32", "12.3k", "2.00T", "0", "50%", "compute"}));
  EXPECT_THAT(words(row_of(table, "Strided")), testing::Contains("25%"));  // it came in between
  EXPECT_LT(table.find("cublasSgemm_v2"), table.find("Strided"));
  EXPECT_THAT(top_table(looks), HasSubstr("cublasSgemm_v2"));
  EXPECT_THAT(operation_table(looks, 1), HasSubstr("... and 1 more"));
  EXPECT_EQ(row_of(operation_table(looks, 1), "Strided"), "");
}

json requests(const char* kind, uint64_t n, uint64_t sum_ns) {
  return {{"kind", kind}, {"count", n + 1}, {"sum_ns", sum_ns}, {"buckets", {{1u << 20, n}, {1u << 23, 1u}}}};
}

TEST(ClientTable, RequestsShowHowLongTheyTookByKind) {
  TwoLooks looks = two_looks();
  EXPECT_EQ(request_table(looks.now, {}, 10), "");
  looks.before["clients"][0]["requests"] = {requests("decode", 9, 10'000'000)};
  looks.now["clients"][0]["requests"] = {requests("decode", 99, 100'000'000),
                                         requests("prefill", 1, 9'000'000)};
  const std::string all = request_table(looks.now, {}, 10);
  EXPECT_THAT(words(row_of(all, "decode")), testing::IsSupersetOf({"4001", "decode", "100", "1.0"}));
  // Since the look before: 90 requests in 90 ms, none of them long.
  EXPECT_THAT(row_of(request_table(looks.now, looks.before, 10), "decode"),
              testing::ContainsRegex("90 +1.0 ms +1.0 ms +1.0 ms"));
  EXPECT_THAT(row_of(top_table(looks), "decode"), testing::ContainsRegex("90 +1.0 ms"));
  json& with_slo = looks.now["clients"][0]["requests"][0];
  with_slo["slo_ns"] = 30'000'000, with_slo["within_slo"] = 98;
  looks.before["clients"][0]["requests"][0]["within_slo"] = 10;
  EXPECT_THAT(row_of(request_table(looks.now, {}, 10), "decode"), HasSubstr("98.0% in 30 ms"));
  EXPECT_THAT(row_of(request_table(looks.now, looks.before, 10), "decode"), HasSubstr("97.8% in 30 ms"));
  EXPECT_THAT(row_of(request_table(looks.now, {}, 10), "prefill"), Not(HasSubstr("%")));
  EXPECT_THAT(request_table(looks.now, {}, 1), HasSubstr("... and 1 more"));
  looks.now["clients"][0]["requests"] = R"([{}, {"kind": "odd", "sum_ns": -1, "buckets":
      [[0, 1], [null, 1], [-5, 1], [7], 8, [9, "x"], [10, -1]]}])"_json;
  EXPECT_THAT(row_of(request_table(looks.now, {}, 10), "odd"), testing::ContainsRegex(" 3 +0 .*> 69 s"));
}

std::string unwrapped(std::string lines) {
  for (size_t at = 0; (at = lines.find("\n    ", at)) != lines.npos;) lines.replace(at, 5, " ");
  return lines;
}

TEST(ClientTable, PsSaysHowManyLibraryCallsAreSplitAndWhyOthersAreNot) {
  TwoLooks looks = two_looks();
  EXPECT_EQ(ps_splits(looks.now), "");
  json& c = looks.now["clients"][0];
  c["splitting"] = 1;
  EXPECT_EQ(unwrapped(ps_splits(looks.now)),
            "4001 train.py: splits operations: no library call seen; --audit shows those of libraries opened "
            "by path\n");
  c["operations"] = {{{"name", "cublasSaxpy_v2"}}};
  EXPECT_EQ(unwrapped(ps_splits(looks.now)),
            "4001 train.py: splits operations: no product or convolution among its library calls\n");
  c["kept_short"] = 2'000;
  c["kept_free"] = 7;
  EXPECT_EQ(
      unwrapped(ps_splits(looks.now)),
      "4001 train.py: splits operations: 2.01k products and convolutions seen, none split; whole: 2.00k "
      "shorter than two slices, 7 alone on the GPU or captured\n");
  c["kept_short"] = c["kept_free"] = 0;
  c.update({{"split_calls", 12}, {"split_pieces", 48}, {"kept_unproven", 3}, {"kept_form", 1}});
  EXPECT_EQ(
      unwrapped(ps_splits(looks.now)),
      "4001 train.py: splits operations: 16 products and convolutions seen, 12 split in 48; whole: 3 not "
      "compared yet, 1 of a form that has no pieces\n");
  c["priority"] = 3;
  EXPECT_EQ(ps_splits(looks.now), "") << "calls of protected programs are left alone";
}

TEST(ClientTable, NoLineIsWiderThanEightyColumnsWhateverTheDaemonSays) {
  TwoLooks looks = two_looks();
  json& wide = looks.now["clients"][0];
  for (auto& [key, value] : wide.items())
    if (value.is_number()) value = UINT64_MAX;
  wide["name"] = std::string(200, 'x') + "\x1b[2J";
  wide["reserved_sms"] = wide["confined_launches"] = UINT64_MAX;
  wide["state"] = std::string(50, 's');
  wide["priority"] = 0;
  wide["split_calls"] = wide["kept_short"] = wide["kept_free"] = wide["splitting"] = wide["split_pieces"] =
      wide["kept_unproven"] = wide["kept_unequal"] = wide["kept_form"] = wide["during_bursts_memory"] =
          UINT64_MAX;
  wide["during_bursts"] = {std::string(300, 'b') + "\x1b[2J", 7};
  looks.now["gpus"][0]["policy"] = std::string(100, 'p');
  wide["operations"] = {operation("x\x1b[2J", 1e300, 1e300)};
  wide["operations"][0]["name"] = std::string(300, 'n') + "\x1b[2J";
  wide["operations"][0]["type"] = wide["operations"][0]["class"] = std::string(300, 't');
  for (const std::string& table : {ps_table(looks), ps_reserves(looks.now), top_table(looks),
                                   operation_table(looks, 10), ps_splits(looks.now), ps_beside(looks.now)}) {
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    EXPECT_EQ(table.find('\x1b'), std::string::npos);
  }
}

TEST(ClientTable, WhatIsMissingOrOfAnotherKindReadsAsNothing) {
  TwoLooks looks{{}, state({json{{"id", 1}, {"pid", "seven"}, {"name", 7}}}), 0};
  EXPECT_THAT(words(row_of(ps_table(looks), "0%")), testing::Contains("0%"));
  looks.now["clients"] = 5;
  EXPECT_EQ(row_of(top_table(looks), "PID").substr(0, 3), "PID");
}

TEST(ClientTable, ANewClientDidNothingBeforeAndShrinkingSumsAreNotNegative) {
  TwoLooks looks = two_looks();
  looks.before["clients"][0]["id"] = 99;
  EXPECT_THAT(row_of(top_table(looks), "train.py"), HasSubstr(" 100% "));
  std::swap(looks.before, looks.now);
  EXPECT_THAT(row_of(top_table(looks), "serve.py"), HasSubstr(" 0% "));
}

TEST(ClientTable, CountsAndTimesAreShort) {
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(999.6), "1.00k");
  EXPECT_EQ(short_count(12'345), "12.3k");
  EXPECT_EQ(short_count(999'600), "1.00M");
  EXPECT_EQ(short_count(4.56e9), "4.56G");
  EXPECT_EQ(short_duration(0), "0");
  EXPECT_EQ(short_duration(1'500), "1.5 us");
  EXPECT_EQ(short_duration(12e6), "12 ms");
  EXPECT_EQ(short_duration(999.7e6), "1.0 s");
  EXPECT_EQ(short_duration(90e9), "1.5 min");
  EXPECT_EQ(short_duration(36000e9), "10 h");
}

TEST(ClientTable, PsSaysWhoStarvesWhyAndWhatHelps) {
  json train = client(1, "train.py", 0, 10, 10, 0), serve = client(2, "serve.py", 3, 10, 10, 0);
  EXPECT_EQ(ps_starved(state({train, serve})), "");
  train["starved"] = nullptr;  // as the daemon says it of one that does not
  EXPECT_EQ(ps_starved(state({train, serve})), "");
  train["starved"] = {
      {"share", 0.004},
      {"why", "protected programs work 96 % of the time, most of it 'serve.py' (4002)"},
      {"remedy", "policy.min_share_percent = 5 (now 0); its price: a burst may take up to 5 ms longer"}};
  const std::string said = ps_starved(state({train, serve}));
  EXPECT_THAT(said, HasSubstr("4001 train.py: starves, 0.4% of the GPU: protected programs"));
  EXPECT_THAT(said, HasSubstr("\n  helps: policy.min_share_percent = 5"));
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), size_t(kTableColumns)) << line;
}

TEST(ClientTable, PsAndTopSayWhoIsInAGangAndWhoHoldsIt) {
  json rank = client(1, "rank.py", 0, 10, 10, 0), other = client(2, "other.py", 0, 10, 10, 0);
  other["gang"] = nullptr;
  EXPECT_EQ(ps_gangs(state({other})), "");
  rank["gang"] = {{"name", "job"}, {"member", 2}, {"members", 8}, {"held_at", ""}, {"why", ""}};
  rank["state"] = "granted";
  EXPECT_EQ(ps_gangs(state({rank, other})), "4001 rank.py: 2 of 8 in gang job, granted\n");
  rank["gpu"] = "GPU-a";
  rank["further_gpus"] = {"GPU-b", "GPU-c"};
  EXPECT_EQ(ps_gangs(state({rank, other})),
            "4001 rank.py: 2 of 8 in gang job, granted on GPU-a, GPU-b, GPU-c\n");
  rank["further_gpus"] = nlohmann::json::array();
  rank["state"] = "held";
  rank["gang"]["held_at"] = "GPU-x";
  rank["gang"]["why"] = "others fill the GPU";
  EXPECT_EQ(ps_gangs(state({rank, other})),
            "4001 rank.py: 2 of 8 in gang job, held: all are held by GPU-x: others fill the\n    GPU\n");
  EXPECT_THAT(top_table({state({rank}), state({rank}), 1}), HasSubstr("2 of 8 in gang job"));
}

json outcome(const char* name, uint64_t launches, uint64_t gpu_ns) {
  return {{"name", name}, {"launches", launches}, {"gpu_ns", gpu_ns}};
}

TEST(ClientTable, PsSaysHowMuchCanBeCutWhatIsInTheWayAndWhatHelps) {
  json train = client(1, "train.py", 0, 10, 10, 0), serve = client(2, "serve.py", 3, 10, 10, 0);
  EXPECT_EQ(ps_cutting(state({train, serve})), "");
  train["outcomes"] = json::array();  // alone: nothing was looked at
  EXPECT_EQ(ps_cutting(state({train, serve})), "");
  // Eager PyTorch: machine code only, and cuBLAS.
  train["outcomes"] = {outcome("no_ptx", 200'000, 9'000'000'000),
                       outcome("nvidia_library", 79'900, 3'000'000'000), outcome("other", 100, 0)};
  train["operations"] = {{{"name", "cublasSgemm_v2"}}};
  EXPECT_EQ(unwrapped(ps_cutting(state({train, serve}))),
            "4001 train.py: cut: 0% of 280k launches, 0% of 12 s on the GPU; can be cut: 0%, 0%; in the way: "
            "75% machine code without PTX for this GPU, 25% NVIDIA's libraries; helps: --keep-ptx, for what "
            "Triton, torch.compile or XLA compiles as it runs; else a build with PTX; --split-operations\n");
  train["operations"] = json::array();  // cuBLAS was called past the library
  EXPECT_THAT(unwrapped(ps_cutting(state({train}))), HasSubstr("--audit --split-operations"));
  train["splitting"] = 1;
  EXPECT_THAT(unwrapped(ps_cutting(state({train}))), Not(HasSubstr("split")));
  train["outcomes"] = {outcome("sliced", 10, 600), outcome("can_be_cut", 80, 300), outcome("bits", 10, 100)};
  EXPECT_EQ(unwrapped(ps_cutting(state({train}))),
            "4001 train.py: cut: 10% of 100 launches, 60% of 1.0 us on the GPU; can be cut: 90%, 90%; in the "
            "way: 10% last bits that compiling again may change; helps: tessera prepare, or --bit-stability "
            "relaxed\n");
  train["outcomes"] = {outcome("sliced", 10, 0), outcome("other", 30, 0)};  // nothing was timed yet
  EXPECT_THAT(unwrapped(ps_cutting(state({train}))), HasSubstr("in the way: 75% limits"));
  train["outcomes"] = {outcome("sliced", 10, 60)};
  EXPECT_THAT(ps_cutting(state({train})), Not(HasSubstr("in the way")));
  train["outcomes"] = {1, {{"name", 7}, {"launches", "x"}}, nullptr};  // no daemon of ours
  EXPECT_EQ(ps_cutting(state({train})), "");
}

TEST(ClientTable, PsSaysWhatTheMinimumShareCosts) {
  json serve = client(2, "serve.py", 3, 10, 10, 0);
  serve["minimum_share_slowdown_permille"] = 1310;
  serve["other_slowdown_permille"] = 1020;
  json s = state({serve});
  EXPECT_EQ(ps_minimum(s), "");  // no such share: a slice before a hold expired
  s["daemon"] = {{"min_share_percent", 5}};
  EXPECT_THAT(ps_minimum(s),
              HasSubstr("4002 serve.py: minimum share of 5%: bursts beside it take 1.31 of their"));
  EXPECT_THAT(ps_minimum(s), HasSubstr("others 1.02"));
}

TEST(Memory, IsSaidByGpuWithWhatNvmlCountsBesides) {
  json trainer = client(1, "train.py", 0, 1, 1, 0), other = client(2, "serve.py", 3, 1, 1, 0);
  const json row = {{"gpu", "GPU-1"},       {"used", 12884901888u},
                    {"peak", 15032385536u}, {"managed", 0},
                    {"imported", 1048576},  {"shared", 0},
                    {"refusals", 2},        {"limit", 21474836480u},
                    {"waits", 1048576},     {"waits_for_ns", 12000000000}};
  trainer["gpu"] = "GPU-1";
  trainer["memory"] = {row};
  json now = state({trainer, other});
  EXPECT_EQ(unwrapped(ps_memory(now)),
            "4001 train.py: memory 12.0 GiB of 20.0 GiB, peak 14.0 GiB, imported 1.0 MiB, refused 2 times, "
            "waits for 1.0 MiB "
            "more since 12 s\n");
  add_residuals({{{"GPU-1", 4001}, 13421772800u}, {{"GPU-1", 4002}, 5}}, &now);
  EXPECT_EQ(now["clients"][0]["memory_residual_bytes"], 536870912u);
  EXPECT_THAT(unwrapped(ps_memory(now)), HasSubstr("besides 512.0 MiB"));
  EXPECT_FALSE(now["clients"][1].contains("memory_residual_bytes")) << "no books of it";
  add_residuals({{{"GPU-1", 4001}, 1}}, &now);
  EXPECT_EQ(now["clients"][0]["memory_residual_bytes"], 0u) << "never below zero";
  add_residuals({{{"GPU-1", 4001}, std::nullopt}}, &now);
  EXPECT_THAT(unwrapped(ps_memory(now)), HasSubstr("besides unknown"));
  now["clients"][0]["memory"].push_back({{"gpu", "GPU-2"}, {"used", 5}});
  EXPECT_THAT(unwrapped(ps_memory(now)), HasSubstr("5 B on GPU-2"));
  EXPECT_EQ(ps_memory(json::parse(R"({"clients":[{"memory":[7]},{"memory":{}},3]})")).find("GiB"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::cli
