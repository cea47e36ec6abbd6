// From a cuBLAS call to the estimate of a launch below it, through both preloaded libraries and a daemon.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kPatienceS;

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
    auto status = program.stop(kPatienceS);
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

// Its results are compared in the program, round by round.
class Products : public Operations {
 protected:
  cli::Process start_products(const std::vector<std::string>& options,
                              const std::vector<std::string>& words = {}) {
    service_ = run("service", "high", {},
                   {TESSERA_SHARING_LOAD, "memory", "8", "8", "2", "0", "1000", path("service.steps")}, {});
    EXPECT_TRUE(steps_grow("service", 1));
    std::vector<std::string> program = {TESSERA_OPERATIONS_PRODUCTS, path("trainer.steps")};
    program.insert(program.end(), words.begin(), words.end());
    return run("trainer", "best-effort", options, program, {"XDG_CACHE_HOME=" + path("cache")});
  }
  uint64_t count(const char* name) { return client("trainer").value(name, uint64_t(0)); }
  // The text of `tessera ps`, on one line.
  std::string ps() {
    auto shown = cli::Process::start({test::kBin + "tessera", "ps", "--socket", socket()}, {}, path("ps.out"),
                                     path("ps.err"));
    EXPECT_TRUE(shown.ok() && shown->wait(kPatienceS).ok());
    std::string text = test::read_file(path("ps.out"));
    for (size_t at; (at = text.find_first_of("\n")) != text.npos;) text.replace(at, 1, " ");
    return text;
  }
};

TEST_F(Products, GoOutInPiecesOnceTheseWereFoundEqual) {
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = start_products({"--split-operations"});
  EXPECT_TRUE(eventually([&] { return count("split_proven") >= 2; })) << ask().dump();
  EXPECT_TRUE(eventually([&] { return count("split_calls") >= 4; })) << ask().dump();
  EXPECT_TRUE(steps_grow("trainer", 2));
  EXPECT_GE(count("split_pieces"), 2 * count("split_calls"));
  EXPECT_EQ(count("split_unequal"), 0u);
  EXPECT_EQ(count("splitting"), 1u);
  const std::string shown = ps();
  EXPECT_NE(shown.find("splits operations: "), shown.npos) << shown;
  EXPECT_NE(shown.find(" split in "), shown.npos) << shown;
  // And each is told with what it computes.
  const auto operations = client("trainer").value("operations", nlohmann::json::array());
  ASSERT_EQ(operations.size(), 2u) << ask().dump();
  for (const auto& o : operations) {
    const bool batch = o.value("name", "") == "cublasSgemmStridedBatched";
    const uint64_t flop = batch ? 2ull * 64 * 64 * 32 * 16 : 2ull * 520 * 512 * 16;
    // FLOP is counted for whole calls; one call may be counted without its FLOP yet.
    const double calls = o.value("flop", 0.0) / double(flop);
    EXPECT_EQ(calls, std::floor(calls)) << o.dump();
    EXPECT_NEAR(calls, double(o.value("calls", uint64_t(0))), 1) << o.dump();
    EXPECT_GT(o.value("gpu_ns", uint64_t(0)), 0u) << o.dump();
    EXPECT_GT(o.value("launches", uint64_t(0)), o.value("calls", uint64_t(0))) << o.dump();
  }
  end(trainer);
  end(service_);
}

TEST_F(Products, ATrialGivesItsMemoryToTheProgram) {
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = start_products({"--split-operations"}, {"memory"});
  EXPECT_TRUE(eventually([&] { return count("split_calls") >= 4 || !trainer.running(); })) << ask().dump();
  EXPECT_TRUE(steps_grow("trainer", 2));
  end(trainer);
  end(service_);
}

TEST_F(Products, AreProvenAgainAfterAResetOfTheDevice) {
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = start_products({"--split-operations"}, {"reset"});
  EXPECT_TRUE(eventually([&] { return count("split_proven") >= 2 || !trainer.running(); })) << ask().dump();
  EXPECT_TRUE(steps_grow("trainer", 2));
  end(trainer);
  end(service_);
}

TEST_F(Products, StayWholeUnlessAsked) {
  start_daemon("[daemon]\nprofiles = \"off\"\n");
  cli::Process trainer = start_products({});
  EXPECT_TRUE(steps_grow("trainer", 3));
  EXPECT_EQ(count("split_calls") + count("kept_unproven") + count("kept_form") + count("kept_short") +
                count("kept_free") + count("splitting"),
            0u);
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
