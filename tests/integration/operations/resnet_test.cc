// A residual block on the software GPU's cuDNN (kernels/samples/resnet_block), trained beside one that serves: results are those of
// each alone. Behaviour only, never speed.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "cli/demo/measure.h"
#include "tests/integration/operations/pieces.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::further_launches;
using test::kBin;
using test::kPatienceS;
using test::read_file;

class ResnetBlock : public test::SharingFixture {
 protected:
  cli::Process train(const std::string& name, const std::string& how_long, const std::string& value,
                     const std::vector<std::string>& options = {},
                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {
        kBin + "resnet_block", "train",  "--preset", "soft", "--checksum-steps", "3", "--csv",
        path(name + ".csv"),   how_long, value};
    words.insert(words.end(), more.begin(), more.end());
    return run(name, "best-effort", options, words, {"XDG_CACHE_HOME=" + path("cache")});
  }
  // So few requests a second that the GPU is idle in between on any machine.
  cli::Process serve(const std::string& name, const std::string& requests = "10") const {
    return run(name, "high", {},
               {kBin + "resnet_block", "serve", "--preset", "soft", "--requests", requests, "--rate", "3"},
               {});
  }
  void succeeds(cli::Process process, const std::string& name) const {
    auto status = process.wait(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0) << read_file(path(name + ".err"));
  }
  size_t steps(const std::string& name) const override {
    auto csv = cli::read_csv(path(name + ".csv"));
    return csv ? csv->rows.size() : 0;
  }
};

TEST_F(ResnetBlock, ResultsAreThoseOfEachAlone) {
  succeeds(train("alone", "--steps", "3"), "alone");
  succeeds(serve("service_alone"), "service_alone");

  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = train("trainer", "--seconds", "600");
  ASSERT_TRUE(eventually([&] { return steps("trainer") > 0; })) << read_file(path("trainer.err"));
  succeeds(serve("service"), "service");
  const auto state = client("trainer");
  EXPECT_GT(state.value("holds", 0), 0) << state.dump();
  auto status = trainer.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
  EXPECT_EQ(checksum("service"), checksum("service_alone"));
}

// Captured calls of cuDNN are known when their graph is launched: their class before the first launch, and each launch counts as the
// calls that it is. Of what was captured before the program was attached nothing is known, so it captures again and again.
TEST_F(ResnetBlock, TrainedByAGraphItsLayersCountWithEachLaunch) {
  succeeds(train("alone", "--steps", "3"), "alone");
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process service = serve("service", "1000000");
  ASSERT_TRUE(eventually([&] { return client("service").value("priority", 0) == 5; }));
  cli::Process trainer = train("trainer", "--seconds", "600", {}, {"--graph", "16"});
  const auto calls = [&](const std::string& function) -> double {
    for (const auto& o : client("trainer").value("operations", nlohmann::json::array()))
      if (o.value("name", "") == function && !o.value("class", "").empty()) return o.value("calls", 0.0);
    return 0;
  };
  EXPECT_TRUE(eventually([&] { return calls("cudnnConvolutionForward") > 60; })) << ask().dump();
  EXPECT_TRUE(eventually([&] { return calls("cudnnConvolutionBackwardData") > 40; })) << ask().dump();
  service.kill_now();
  auto status = trainer.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
}

// Two convolutions of the block and one that is its head; the way back of the first ends at its filter. Captured twice, launched
// four times.
TEST_F(ResnetBlock, ProfileCountsWhatWasCapturedWithEachLaunch) {
  for (const char* graph : {"0", "2"}) {
    auto profile = cli::Process::start(
        {kBin + "tessera", "profile", "--gpu", "soft", "-o", path("p.json"), "--", kBin + "resnet_block",
         "train", "--preset", "soft", "--steps", "5", "--checksum-steps", "5", "--graph", graph},
        {"TESSERA_SOFTGPU_DIR=" + path("gpu")}, path("p.out"), path("p.err"));
    ASSERT_TRUE(profile.ok());
    succeeds(std::move(*profile), "p");
    const auto file = nlohmann::json::parse(read_file(path("p.json")), nullptr, false);
    ASSERT_TRUE(file.contains("operations")) << read_file(path("p.err"));
    std::map<std::string, double> calls;
    for (const auto& operation : file["operations"])
      calls[operation.value("name", "")] += operation.value("calls", 0.0);
    EXPECT_EQ(calls["cudnnConvolutionForward"], 5 * 3) << graph;
    EXPECT_EQ(calls["cudnnConvolutionBackwardFilter"], 5 * 3) << graph;
    EXPECT_EQ(calls["cudnnConvolutionBackwardData"], 5 * 2) << graph;
    std::filesystem::remove(path("p.json"));
  }
}

// Forward and of the data's gradient by the image; that of the filter is a sum over images and stays whole.
TEST_F(ResnetBlock, TrainedInPiecesItIsTheSameToTheBit) {
  succeeds(train("alone", "--steps", "3"), "alone");
  start_daemon("[daemon]\nprofiles = \"off\"\n[policy]\nslice_us = 100\n");
  cli::Process trainer = train("trainer", "--seconds", "600", {"--split-operations"});
  cli::Process service = serve("service", "1000000");
  for (const char* function : {"cudnnConvolutionForward", "cudnnConvolutionBackwardData"})
    EXPECT_TRUE(eventually([&] { return further_launches(client("trainer"), function) > 100; }))
        << ask().dump();
  EXPECT_LE(further_launches(client("trainer"), "cudnnConvolutionBackwardFilter"), 0);
  EXPECT_EQ(client("trainer").value("split_unequal", -1), 0);
  service.kill_now();
  auto status = trainer.stop(kPatienceS);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
}

}  // namespace
}  // namespace tessera
