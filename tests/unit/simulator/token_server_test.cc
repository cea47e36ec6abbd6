// A language model's server: what a step consists of, when a request has its first token, and what is reported of both.
#include "simulator/token_server.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "simulator/report.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

// A prefill of 100 tokens is ten waves of 100 us; a decode step is weights for 1 ms and attention for 100 us per 1000 cached
// tokens. One collective of 20 us in each.
Serving small_model() {
  const Kernel wave{.n_blocks = 1080, .block_ns = us(100), .sms_per_block = 1};
  const Kernel weights{.n_blocks = 108, .block_ns = us(1000), .sms_per_block = 1};
  const Kernel attention{.n_blocks = 108, .block_ns = us(100), .sms_per_block = 1};
  Kernel collective = copy_kernel(us(20));
  collective.collective = true;
  Serving s;
  s.prefill = {{.segments = {{.kernel = wave}, {.kernel = collective}}}};
  s.decode = {{.segments = {{.kernel = weights, .graph = true},
                            {.kernel = attention, .graph = true, .joins = true, .of_tokens = true},
                            {.kernel = collective, .graph = true, .joins = true}}}};
  s.prefill_tokens = 100;
  s.decode_context = 1000;
  s.most_running = 2;
  s.step_tokens = 150;
  s.mean = {.prompt = 200, .output = 3};
  return s;
}

uint32_t blocks(const std::vector<Step>& steps, size_t segment) {
  return steps[0].segments[segment].kernel.n_blocks;
}

TEST(TokenServer, AStepTakesEveryRequestOneTokenFurther) {
  const Serving model = small_model();
  TokenServer server(model, Random(1));
  server.arrive(0);
  server.arrive(5);
  server.arrive(7);                                  // waits: two run
  EXPECT_EQ(blocks(server.begin_step(), 0), 1620u);  // 150 tokens of the first prompt
  EXPECT_TRUE(server.end_step(10).empty());
  EXPECT_EQ(blocks(server.begin_step(), 0), 1620u);  // the other 50, and 100 of the second
  server.end_step(20);
  EXPECT_EQ(server.tokens(), 1u);  // the first request has its first token
  std::vector<Step> mixed = server.begin_step();
  EXPECT_EQ(blocks(mixed, 0), 1091u);  // 100 of the second prompt and one token of the first request
  ASSERT_EQ(mixed[0].segments.size(), 3u);
  EXPECT_EQ(mixed[0].segments[2].kernel.block_ns, us(100) * 201 / 1000);  // attention over what it has cached
  server.end_step(30);
  std::vector<Step> decode = server.begin_step();
  ASSERT_EQ(decode[0].segments.size(), 3u);
  EXPECT_EQ(decode[0].segments[0].kernel.block_ns, us(1000));
  const std::vector<Answer> ended = server.end_step(45);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].to_first_ns(), 20u);
  EXPECT_EQ(ended[0].per_token_ns(), 12u);
  EXPECT_EQ(server.tokens(), 5u);
  EXPECT_EQ(blocks(server.begin_step(), 0), 1620u);  // 149 of the third prompt, and the second's token
}

Workload served() {
  Workload w{.name = "llm"};
  w.serving = small_model();
  w.steps = w.serving->one_request();
  return w;
}

TEST(TokenServer, OneRequestByItselfTakesAsLongAsTheArithmeticSays) {
  const Workload w = served();
  RunInput in{.clients = {{.name = "llm", .workload = &w, .priority = 7}}, .duration_ns = ms(2000)};
  in.clients[0].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.3};
  const RunResult r = simulate(in);
  ASSERT_GT(r.clients[0].answers.size(), 50u);
  const LaunchCosts costs{in.host.launch_ns, in.gpu.kernel_gap_ns, in.host.sync_ns};
  const auto alone_ns = double(w.alone_ns(in.gpu.sm_count, costs));
  EXPECT_NEAR(double(percentile_ns(r.clients[0].latencies_ns, 0.5)), alone_ns, alone_ns * 0.03);
  EXPECT_EQ(r.clients[0].tokens, 3 * r.clients[0].answers.size());
  for (const Answer& a : r.clients[0].answers)
    EXPECT_NEAR(double(a.per_token_ns()), double(us(1054)), double(us(10)));
}

// Many users are served by steps of two: more tokens than one user gets, each later.
TEST(TokenServer, RequestsThatRunTogetherShareSteps) {
  const Workload w = served();
  RunInput in{.clients = {{.name = "llm", .workload = &w, .priority = 7}}, .duration_ns = ms(2000)};
  const ClientResult one = simulate(in).clients[0];
  in.clients[0].arrivals.users = 2;
  const ClientResult two = simulate(in).clients[0];
  EXPECT_GT(double(two.tokens), 1.2 * double(one.tokens));
  EXPECT_GT(percentile_ns(two.further_ns, 0.5), percentile_ns(one.further_ns, 0.5));
}

TEST(TokenServer, TheReportHasBothTargetsAndWhoMeetsThem) {
  const char text[] = R"(
duration_ms = 4000
warmup_ms = 100
seeds = 1
[[workload]]
name = "llm"
[workload.server]
prefill_tokens = 100
prompt_tokens = 200
output_tokens = 20
step_tokens = 150
tokens_cv = 0.3
prefill = { segment = [{ us = 1000, block_us = 100 }, { us = 20, collective = true }] }
decode = { launches = "graph", host_us = 100, segment = [{ us = 900, class = "memory" }, { us = 100, of_tokens = true, class = "memory" }] }
[[workload]]
name = "trainer"
step = [{ segment = [{ count = 20, us = 2000, block_us = 200 }] }]
[[cell]]
client = [{ workload = "llm", priority = 7, load = 0.4 }, { workload = "trainer" }]
[[run]]
name = "alone"
policy = "reef_n"
[[run]]
name = "mps"
policy = "none"
regime = "mps"
)";
  const auto scenario = read_scenario(text, "test.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  const Report report = run_scenario(*scenario, {});
  ASSERT_EQ(report.rows.size(), 2u);
  const ProtectedRow &gated = report.rows[0].protected_clients[0], &mps = report.rows[1].protected_clients[0];
  EXPECT_GT(mps.tokens, 1000u);
  EXPECT_GT(mps.first_p99_over_alone, gated.first_p99_over_alone);
  EXPECT_GT(mps.further_p50_over_alone, 1.2);
  EXPECT_LT(mps.attainment, gated.attainment);
  EXPECT_LE(gated.attainment, 1.0);
  EXPECT_NE(tokens_text(*scenario, report).find("TTFT p99"), std::string::npos);
  EXPECT_NE(to_json(*scenario, report).find("\"attainment\""), std::string::npos);
}

TEST(TokenServer, RecordedRequestsAreReplayedInOrder) {
  Serving model = small_model();
  model.lengths = {{10, 1}, {20, 1}, {30, 1}};
  TokenServer server(model, Random(1));
  uint32_t before = 0;
  for (int i = 0; i < 7; ++i) {
    server.arrive(0);
    const uint32_t tokens = blocks(server.begin_step(), 0) * 100 / 1080;
    if (i > 0) {
      EXPECT_EQ(tokens, before == 30 ? 10u : before + 10);
    }
    before = tokens;
    EXPECT_EQ(server.end_step(1).size(), 1u);
  }
}

}  // namespace
}  // namespace tessera::simulator
