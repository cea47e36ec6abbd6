// From a cuBLAS call to the estimate of a launch below it, through both preloaded libraries and a daemon.
#include <gtest/gtest.h>

#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kPatience_s;

class Operations : public test::SharingFixture {
 protected:
  // Beside a protected program, so that its launches are gated.
  cli::Process start_trainer(const std::vector<std::string>& options) {
    service_ = run("service", "high", {},
                   {TESSERA_SHARING_LOAD, "memory", "8", "8", "2", "0", "1000", path("service.steps")}, {});
    EXPECT_TRUE(steps_grow("service", 1));
    cli::Process trainer =
        run("trainer", "best-effort", options, {TESSERA_OPERATIONS_PROGRAM, path("trainer.steps")}, {});
    // Some of its launches were gated, timed and told.
    EXPECT_TRUE(eventually([&] { return client("trainer").value("kernels_recorded", 0) > 0; }))
        << ask().dump();
    EXPECT_TRUE(steps_grow("trainer", 3));
    return trainer;
  }
  void end(cli::Process& program) {
    auto status = program.stop(kPatience_s);
    EXPECT_TRUE(status.ok() && *status == 0);
  }
  cli::Process service_;
};

TEST_F(Operations, NoLaunchBelowACallIsAGuess) {
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = start_trainer({});
  EXPECT_EQ(client("trainer").value("unknown_estimates", -1), 0) << ask().dump();
  end(trainer);
  end(service_);
}

TEST_F(Operations, SwitchedOffTheFirstOnesAre) {
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = start_trainer({"--no-operations"});
  EXPECT_TRUE(eventually([&] { return client("trainer").value("unknown_estimates", 0) > 0; }))
      << ask().dump();
  end(trainer);
  end(service_);
}

}  // namespace
}  // namespace tessera
