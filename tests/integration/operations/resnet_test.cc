// A residual block on the software GPU's cuDNN (kernels/samples/resnet_block), trained beside one that serves: results are those of
// each alone. Behaviour only, never speed.
#include <gtest/gtest.h>

#include "cli/demo/measure.h"
#include "tests/integration/operations/pieces.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::further_launches;
using test::kBin;
using test::kPatience_s;
using test::read_file;

class ResnetBlock : public test::SharingFixture {
 protected:
  cli::Process train(const std::string& name, const std::string& how_long, const std::string& value,
                     const std::vector<std::string>& options = {}) const {
    return run(name, "best-effort", options,
               {kBin + "resnet_block", "train", "--preset", "soft", "--checksum-steps", "3", "--csv",
                path(name + ".csv"), how_long, value},
               {"XDG_CACHE_HOME=" + path("cache")});
  }
  cli::Process serve(const std::string& name, const std::string& requests = "10") const {
    return run(name, "high", {},
               {kBin + "resnet_block", "serve", "--preset", "soft", "--requests", requests, "--rate", "30"},
               {});
  }
  void succeeds(cli::Process process, const std::string& name) const {
    auto status = process.wait(kPatience_s);
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
  auto status = trainer.stop(kPatience_s);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
  EXPECT_EQ(checksum("service"), checksum("service_alone"));
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
  auto status = trainer.stop(kPatience_s);
  ASSERT_TRUE(status.ok() && *status == 0) << read_file(path("trainer.err"));
  EXPECT_EQ(checksum("trainer"), checksum("alone"));
}

}  // namespace
}  // namespace tessera
