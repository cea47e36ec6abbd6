// Recordings that others published, replayed alone: the model must take as long as they did. The files are not in the
// tree: TESSERA_DATA, or ../shared/data beside the checkout.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "simulator/simulation.h"
#include "simulator/traces/program.h"
#include "simulator/traces/read.h"
#include "simulator/traces/requests.h"

namespace tessera::simulator::traces {
namespace {

std::string data_folder() {
  const char* given = std::getenv("TESSERA_DATA");
  return given != nullptr ? given : std::string(TESSERA_SOURCE_DIR) + "/../shared/data";
}

constexpr LaunchCosts kReplayCosts{.launch_ns = 3'000, .gap_ns = 500, .sync_ns = 5'000};

// Mean time of a job, of a program that has the GPU to itself.
double replayed_ns(const Workload& workload, const Device& device) {
  RunInput input;
  input.gpu.sm_count = device.sm.count;
  input.gpu.kernel_gap_ns = kReplayCosts.gap_ns;
  input.host.launch_ns = kReplayCosts.launch_ns;
  input.host.sync_ns = kReplayCosts.sync_ns;
  input.clients = {{.name = "alone", .workload = &workload, .priority = 7}};
  input.clients[0].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.5};
  input.run.regime = Regime::kMps;
  input.latency_from_arrival = false;
  input.duration_ns = 10 * workload.alone_ns(device.sm.count, kReplayCosts);
  const RunResult result = simulate(input);
  return double(percentile_ns(result.clients[0].latencies_ns, 0.5));
}

struct Row {
  const char* file;
  Use use;
};
class Replay : public testing::TestWithParam<Row> {};

TEST_P(Replay, TakesAsLongAsTheRecording) {
  const std::string path = data_folder() + "/" + GetParam().file;
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is not here: the published traces are not in the tree";
  const auto recording = read_recording(path);
  ASSERT_TRUE(recording.ok()) << recording.error().text;
  // One of the files does not say on which GPU it was recorded; its source does.
  const Device* device =
      recording->devices.empty() ? device_of_key("h100") : device_of_name(recording->devices.begin()->second);
  ASSERT_NE(device, nullptr);
  const Reading how{.target = device, .source = device, .costs = kReplayCosts, .use = GetParam().use};
  auto program = program_of(*recording, "p", how);
  ASSERT_TRUE(program.ok()) << program.error().text;
  EXPECT_FALSE(program->inferred.empty());
  program->workload.cv = 0;  // the job itself, not its spread
  const auto recorded_ns = double(program->recorded_ns);
  EXPECT_NEAR(double(program->workload.alone_ns(device->sm.count, kReplayCosts)) / recorded_ns, 1, 0.02);
  EXPECT_NEAR(replayed_ns(program->workload, *device) / recorded_ns, 1, 0.02);
}

INSTANTIATE_TEST_SUITE_P(
    Published, Replay,
    testing::Values(Row{"h100_bert-small_infer_b1_s141.csv.gz", Use::kRequest},
                    Row{"h100_timesformer_infer_b1_128frames.csv.gz", Use::kRequest},
                    Row{"h100_qwen1.5-0.5b_prefill_b16_s559.csv.gz", Use::kRequest},
                    Row{"b200_gpt-oss-120b_vllm_prefill_tp8_888tok.csv.gz", Use::kRequest},
                    Row{"mi300x_qwen3-8b_sglang_decode_b32.csv.gz", Use::kRequest},
                    Row{"mi300x_gpt-oss-20b_vllm_mixed_8192tok.csv.gz", Use::kRequest},
                    Row{"mi300x_sd3.5_infer_1024px.csv.gz", Use::kRequest},
                    Row{"a100_sam-vit-h-fast_infer.csv.gz", Use::kRequest},
                    Row{"h100_fastvideo-dit_infer_sp2.csv.gz", Use::kLoop},
                    Row{"a100_recsys_train_8gpu_b1024.csv.gz", Use::kLoop},
                    Row{"a100_resnet50_train_ddp.csv.gz", Use::kLoop},
                    Row{"v100_resnet50_train_b32_workers0.csv.gz", Use::kLoop},
                    Row{"v100_resnet50_train_ddp1.csv.gz", Use::kLoop},
                    Row{"v100_dlrm_train_8gpu_b16.csv.gz", Use::kLoop},
                    Row{"rtx2080ti_resnet_train.csv.gz", Use::kLoop},
                    Row{"original/a100_sam-vit-h-fast.pt.trace.json.gz", Use::kRequest},
                    Row{"original/b200_vllm_gpt-oss-120b_prefill.pt.trace.json.gz", Use::kRequest},
                    Row{"original/h100_bert-small_infer.pt.trace.json.gz", Use::kRequest},
                    Row{"original/mi300x_sglang_qwen3-8b_decode.pt.trace.json.gz", Use::kRequest},
                    Row{"original/h100_fastvideo_2gpu.nsys.sqlite.gz", Use::kLoop},
                    Row{"original/v100_resnet50_train_workers0.pt.trace.json.gz", Use::kLoop}),
    [](const auto& row) {
      std::string name = row.param.file;
      for (char& c : name)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
      return name;
    });

TEST(Requests, PublishedRecordsAreRead) {
  const std::pair<const char*, size_t> kFiles[] = {{"arrivals_azure_llm_2023_code.csv.gz", 8'819},
                                                   {"arrivals_mooncake_conversation.csv.gz", 12'031}};
  for (const auto& [file, n] : kFiles) {
    const std::string path = data_folder() + "/" + file;
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
    const auto requests = read_requests(path);
    ASSERT_TRUE(requests.ok()) << requests.error().text;
    EXPECT_EQ(requests->lengths.size(), n);
    EXPECT_EQ(requests->gaps_ns.size(), n - 1);
  }
}

}  // namespace
}  // namespace tessera::simulator::traces
