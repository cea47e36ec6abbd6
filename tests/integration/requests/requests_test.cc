// The daemon tells of a service's requests as the service measured them itself: the same number, and the same quantiles.
// Durations are the machine's; that they are equal to the nanosecond on a clock that stands still is interpose_requests_test.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "cli/look/request_table.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kPatienceS;

constexpr int kRequests = 20, kSteps = 5;

class RequestsOfAService : public test::SharingFixture {
 protected:
  void serve(const std::vector<std::string>& options) {
    start_daemon("[daemon]\nprofiles = \"off\"\n");
    service_ = run(
        "service", "high", options,
        {TESSERA_REQUEST_SERVICE, std::to_string(kRequests), std::to_string(kSteps), path("measured")}, {});
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path("measured")); }))
        << test::read_file(path("service.err"));
    std::ifstream in(path("measured"));
    std::string kind;
    for (uint64_t ns = 0; in >> kind >> ns;) {
      for (const std::string& of : {kind, std::string("all")}) {
        measured_[of].count++;
        measured_[of].sum_ns += ns;
        measured_[of].counts[base::latency_bucket(ns)]++;
      }
    }
    for (const cli::RequestHistogram& h : cli::requests_of(client("service"))) told_[h.kind] = h;
  }
  // Both looked at their clocks at other moments, so that a request may be on either side of a bucket's end.
  void expect_same_quantiles(const std::string& kind, const std::string& measured) {
    const cli::RequestHistogram &a = told_[kind], &b = measured_[measured];
    for (const double share : {0.1, 0.25, 0.5})
      EXPECT_NEAR(double(base::latency_quantile(a.counts, share)),
                  double(base::latency_quantile(b.counts, share)), 1)
          << kind << " " << share;
  }
  void TearDown() override {
    const auto status = service_.stop(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0);
    SharingFixture::TearDown();
  }
  cli::Process service_;
  std::map<std::string, cli::RequestHistogram> measured_, told_;
};

TEST_F(RequestsOfAService, AreItsRanges) {
  serve({"--request-range", "engine/prefill", "--request-range", "decode *"});
  ASSERT_EQ(measured_["prefill"].count, uint64_t(kRequests));
  ASSERT_EQ(measured_["decode"].count, uint64_t(kRequests) * kSteps);
  EXPECT_EQ(told_["engine/prefill"].count, measured_["prefill"].count);
  EXPECT_EQ(told_["decode *"].count, measured_["decode"].count);
  expect_same_quantiles("engine/prefill", "prefill");
  expect_same_quantiles("decode *", "decode");
  EXPECT_EQ(client("service").value("missed_requests", -1), 0);
}

TEST_F(RequestsOfAService, AreItsBurstsWithoutRanges) {
  serve({});
  // Two of them are one burst where the next one begins while the end of the one before is being looked at.
  EXPECT_LE(told_["burst"].count, measured_["all"].count);
  EXPECT_GT(told_["burst"].count, measured_["all"].count / 2);
  expect_same_quantiles("burst", "all");
  // How many of them were told apart depends on the machine: gaps and merged bursts are its own.
  EXPECT_LE(told_["prefill"].count, measured_["prefill"].count);
  EXPECT_LE(told_["decode"].count, measured_["decode"].count);
  if (told_["decode"].count > measured_["decode"].count / 2) expect_same_quantiles("decode", "decode");
}

}  // namespace
}  // namespace tessera
