// A residual block on the software GPU's cuDNN (kernels/samples/resnet_block), trained beside one that serves: results are those of
// each alone. Behaviour only, never speed.
#include <gtest/gtest.h>

#include "cli/demo/measure.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kBin;
using test::kPatience_s;
using test::read_file;

class ResnetBlock : public test::SharingFixture {
 protected:
  cli::Process train(const std::string& name, const std::string& how_long, const std::string& value) const {
    return run(name, "best-effort", {},
               {kBin + "resnet_block", "train", "--preset", "soft", "--checksum-steps", "3", "--csv",
                path(name + ".csv"), how_long, value},
               {});
  }
  cli::Process serve(const std::string& name) const {
    return run(name, "high", {},
               {kBin + "resnet_block", "serve", "--preset", "soft", "--requests", "10", "--rate", "30"}, {});
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

}  // namespace
}  // namespace tessera
