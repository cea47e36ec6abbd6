// A decoder on the software GPU's cuBLAS and cuBLASLt (kernels/samples/transformer), trained beside one that serves: results, and
// what is known of its products. Behaviour only, never speed.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "cli/demo/measure.h"
#include "ipc/abi/region.h"
#include "tests/integration/operations/pieces.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using nlohmann::json;
using test::eventually;
using test::further_launches;
using test::kBin;
using test::kPatienceS;
using test::read_file;

constexpr int kBatch = 2, kLength = 32, kWidth = 32, kHeads = 2, kHidden = 64, kLayers = 2, kVocabulary = 64;

class Transformer : public test::SharingFixture {
 protected:
  std::vector<std::string> program(const std::string& mode, std::vector<std::string> more) const {
    std::vector<std::string> words = {kBin + "transformer", mode, "--preset", "soft"};
    const std::pair<const char*, int> sizes[] = {
        {"--batch", batch_},   {"--length", length_}, {"--width", kWidth},          {"--heads", kHeads},
        {"--hidden", kHidden}, {"--layers", kLayers}, {"--vocabulary", kVocabulary}};
    for (const auto& [name, value] : sizes) more.insert(more.end(), {name, std::to_string(value)});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  cli::Process train(const std::string& name, std::vector<std::string> more,
                     const std::vector<std::string>& run_options = {}) const {
    more.insert(more.end(), {"--checksum-steps", "3", "--csv", path(name + ".csv")});
    std::vector<std::string> environment = environment_;
    environment.push_back("XDG_CACHE_HOME=" + path("cache"));
    return run(name, "best-effort", run_options, program("train", more), environment);
  }
  // So few requests a second that the GPU is idle in between on any machine.
  cli::Process serve(const std::string& name, int requests) const {
    return run(name, "high", {}, program("serve", {"--requests", std::to_string(requests), "--rate", "3"}),
               environment_);
  }
  // A protected program that leaves the GPU alone most of the time, on any machine.
  cli::Process now_and_then() const {
    return run("neighbour", "high", {},
               {TESSERA_SHARING_LOAD, "memory", "8", "8", "2", "0", "50000", path("neighbour.steps")}, {});
  }
  void profile_lists_exact_flop(const char* steps_of_a_graph);
  void succeeds(cli::Process process, const std::string& name) const {
    auto status = process.wait(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << read_file(path(name + ".err"));
  }
  size_t steps(const std::string& name) const override {
    auto csv = cli::read_csv(path(name + ".csv"));
    return csv ? csv->rows.size() : 0;
  }

  std::vector<std::string> environment_;   // of the software GPU
  int batch_ = kBatch, length_ = kLength;  // of the model
};

TEST_F(Transformer, ResultsAreThoseOfEachAlone) {
  succeeds(train("alone", {"--steps", "3"}), "alone");
  succeeds(serve("service_alone", 10), "service_alone");

  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = train("trainer", {"--seconds", "600"});
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; })) << read_file(path("trainer.err"));
  cli::Process service = serve("service", 10);
  ASSERT_TRUE(eventually([&] { return client("service").value("priority", 0) == 5; }));
  succeeds(std::move(service), "service");
  const json state = client("trainer");
  EXPECT_GT(state.value("holds", 0), 0) << state.dump();

  // Beside a service again, so that launches are gated: its products are compute-bound by what cuBLAS was asked for. Its own
  // kernels are not, and the PTX of cuBLAS's says nothing.
  cli::Process neighbour = serve("neighbour", 100'000);
  EXPECT_TRUE(eventually([&] {
    return client("trainer").value("resource_class", 0) == ipc::abi::kResourceCompute;
  })) << client("trainer").dump();
  neighbour.kill_now();
  auto status = trainer.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
  EXPECT_EQ(checksum("service"), checksum("service_alone"));
}

// Packing by what was asked of cuBLAS: under MPS products of a narrow trainer start during bursts of a service, because its lease
// names compute-bound work. Nothing but the call says that they are: the trainer's own kernels are bound by memory or latency.
TEST_F(Transformer, PackingActsByTheClassOfItsProducts) {
  // The software GPU's own description, with SMs enough to divide.
  std::string gpu = read_file(TESSERA_GPUS "test4.toml");
  const std::string four = "\ncount = 4 ";
  ASSERT_NE(gpu.find(four), std::string::npos);
  std::ofstream(path("gpu.toml")) << gpu.replace(gpu.find(four), four.size(), "\ncount = 80 ");
  environment_ = {"TESSERA_SOFTGPU_GPU=" + path("gpu.toml"), "TESSERA_SOFTGPU_MODE=mps"};
  succeeds(train("alone", {"--steps", "3"}), "alone");

  // Whatever a burst beside such work turns out to cost on this machine, it is not too dear.
  start_daemon("[daemon]\nprofiles = \"off\"\n[policy]\nslowdown_target_percent = 100\n");
  cli::Process service = serve("service", 1'000'000);
  ASSERT_TRUE(eventually([&] { return client("service").value("burst_solo_ns", 0) > 0; })) << ask().dump();
  cli::Process trainer = train("trainer", {"--seconds", "600"});
  bool named = false;
  EXPECT_TRUE(eventually([&] {
    const json now = client("trainer");
    for (const json& of : now.value("during_bursts", json::array())) named |= of == "compute";
    return named && now.value("during_bursts_compute", 0) >= 10;
  })) << ask().dump();
  service.kill_now();
  auto status = trainer.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
}

// Captured calls are known when their graph is launched, whole or in pieces: each launch counts as its calls. Calls
// captured before the program was attached are not known, so it captures again and again.
TEST_F(Transformer, TrainedByAGraphItsProductsCountWithEachLaunch) {
  constexpr double kCalls = 4.0 * kLayers, kSteps = 20;  // of cublasLtMatmul, in one step
  const double linear = 3 * kWidth * kWidth + kWidth * kWidth + 2 * kWidth * kHidden;
  const double biases = 3 * kWidth + kWidth + kHidden + kWidth;
  const double flop = kLayers * double(kBatch) * kLength * (2 * linear + biases);
  succeeds(train("alone", {"--steps", "3"}), "alone");
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process neighbour = now_and_then();
  ASSERT_TRUE(eventually([&] { return client("neighbour").value("priority", 0) == 5; }));
  cli::Process trainer = train("trainer", {"--seconds", "600", "--graph", "16"});
  json seen = json::object();
  EXPECT_TRUE(eventually([&] {
    for (const json& o : client("trainer").value("operations", json::array()))
      if (o.value("name", "") == "cublasLtMatmul") seen = o;
    return seen.value("calls", 0.0) > kCalls * kSteps;
  })) << ask().dump();
  // One call may be counted, but not its FLOP yet; a launch of the graph may be half counted.
  EXPECT_NEAR(seen.value("flop", 0.0) / flop, seen.value("calls", 0.0) / kCalls, 1) << seen.dump();
  EXPECT_EQ(seen.value("class", ""), "compute");
  EXPECT_GT(seen.value("launches", 0.0), 0);
  EXPECT_GT(seen.value("gpu_ns", 0.0), 0);
  neighbour.kill_now();
  auto status = trainer.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
}

// Linear layers have biases, so that products of cublasLtMatmul are cut by their 256 tokens.
TEST_F(Transformer, TrainedInPiecesItIsTheSameToTheBit) {
  batch_ = 4, length_ = 64;
  succeeds(train("alone", {"--steps", "3"}), "alone");
  start_daemon("[daemon]\nprofiles = \"off\"\n[policy]\nslice_us = 100\n");
  cli::Process trainer = train("trainer", {"--seconds", "600"}, {"--split-operations"});
  cli::Process neighbour = now_and_then();
  EXPECT_TRUE(eventually([&] { return client("trainer").value("split_calls", 0) > 10; })) << ask().dump();
  EXPECT_TRUE(eventually([&] { return further_launches(client("trainer"), "cublasLtMatmul") > 100; }))
      << ask().dump();
  EXPECT_EQ(client("trainer").value("split_unequal", -1), 0);
  neighbour.kill_now();
  auto status = trainer.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
}

// 10^4 tokens (TESSERA_TOKENS: others, scripts/tokens.sh), each the most likely one after those before, as best-effort work on SMs
// enough to divide: kernels cut, kept to some SMs, calls of the library in pieces, all of it stopped by bursts of a service that
// comes and goes at random. Tokens and probabilities are those of the run that nothing was done to, to the bit.
TEST_F(Transformer, TokensAreThoseOfTheUncutRun) {
  std::string gpu = read_file(TESSERA_GPUS "test4.toml");
  const std::string four = "\ncount = 4 ";
  ASSERT_NE(gpu.find(four), std::string::npos);
  std::ofstream(path("gpu.toml")) << gpu.replace(gpu.find(four), four.size(), "\ncount = 80 ");
  environment_ = {"TESSERA_SOFTGPU_GPU=" + path("gpu.toml"), "TESSERA_SOFTGPU_MODE=mps",
                  "XDG_CACHE_HOME=" + path("cache")};
  const char* given = getenv("TESSERA_TOKENS");
  const int n_tokens = given != nullptr ? std::stoi(given) : 10'000;
  const double patience_s = kPatienceS * std::max(4.0, n_tokens / 2'500.0);  // of a machine that is busy
  const auto generate = [&](const std::string& name, const std::vector<std::string>& options) {
    batch_ = 256, length_ = 4;
    return run(name, "best-effort", options,
               program("generate", {"--tokens", std::to_string(n_tokens), "--csv", path(name + ".csv")}),
               environment_);
  };
  const auto serve = [&] {
    batch_ = kBatch, length_ = kLength;
    return run("service", "high", {}, program("serve", {"--requests", "1000000", "--rate", "3"}),
               environment_);
  };
  cli::Process alone = generate("alone", {});
  auto status = alone.wait(patience_s);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("alone.err"));

  start_daemon(
      "[daemon]\nprofiles = \"off\"\n[policy]\nslice_us = 10\nwindow_us = 50\nslowdown_target_percent = "
      "100\n");
  cli::Process service = serve();
  ASSERT_TRUE(eventually([&] { return client("service").value("priority", 0) == 5; })) << ask().dump();
  cli::Process generator = generate("beside", {"--split-operations"});
  std::mt19937 random(7);
  json seen = json::object();
  for (bool serves = true; generator.running(); serves = !serves) {
    const size_t until = steps("beside") + 1 + random() % 4;
    EXPECT_TRUE(eventually([&] {
      if (const json now = client("beside"); !now.empty()) seen = now;
      return steps("beside") >= until || !generator.running();
    })) << ask().dump();
    if (serves)
      service.kill_now();
    else
      service = serve();
  }
  status = generator.wait(patience_s);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("beside.err"));
  EXPECT_EQ(read_file(path("beside.out")), read_file(path("alone.out")));
  for (const char* done : {"slices", "confined_launches", "split_calls", "preemptions", "holds"})
    EXPECT_GT(seen.value(done, 0), 0) << done << " in " << seen.dump();
  EXPECT_EQ(seen.value("split_unequal", -1), 0) << seen.dump();
}

// By the loops of kernels/samples/transformer/model.cuh, counted by hand.
void Transformer::profile_lists_exact_flop(const char* steps_of_a_graph) {
  constexpr double kSteps = 5, kTokens = kBatch * kLength;
  std::vector<std::string> words = {kBin + "tessera", "profile", "--gpu", "soft", "-o", path("p.json"), "--"};
  const std::vector<std::string> command =
      program("train", {"--steps", "5", "--checksum-steps", "5", "--graph", steps_of_a_graph});
  words.insert(words.end(), command.begin(), command.end());
  auto profile =
      cli::Process::start(words, {"TESSERA_SOFTGPU_DIR=" + path("gpu")}, path("p.out"), path("p.err"));
  ASSERT_TRUE(profile.ok());
  succeeds(std::move(*profile), "p");

  const json file = json::parse(read_file(path("p.json")), nullptr, false);
  ASSERT_TRUE(file.contains("operations")) << read_file(path("p.err"));
  std::map<std::string, double> flop;
  for (const json& operation : file["operations"])
    flop[operation.value("name", "")] += operation.value("flop", 0.0);
  // Two products on the way back of each linear layer, three of the head, six of attention; 2mnk each.
  const double linear = 3 * kWidth * kWidth + kWidth * kWidth + 2 * kWidth * kHidden;
  const double single = 2 * kTokens * (2 * kLayers * linear + 3 * kWidth * kVocabulary);
  const double batched = kLayers * 6 * 2.0 * kTokens * kLength * kWidth;
  // The way forward of each linear layer, each with a bias.
  const double biases = 3 * kWidth + kWidth + kHidden + kWidth;
  EXPECT_EQ(flop["cublasLtMatmul"], kSteps * kLayers * kTokens * (2 * linear + biases))
      << file["operations"].dump(1);
  EXPECT_EQ(flop["cublasSgemm_v2"], kSteps * single) << file["operations"].dump(1);
  EXPECT_EQ(flop["cublasSgemmStridedBatched"], kSteps * batched) << file["operations"].dump(1);
}

TEST_F(Transformer, ProfileListsItsProductsWithTheirExactFlop) {
  profile_lists_exact_flop("0");
}

// Captured twice, launched four times.
TEST_F(Transformer, ProfileCountsWhatWasCapturedWithEachLaunch) {
  profile_lists_exact_flop("2");
}

}  // namespace
}  // namespace tessera
