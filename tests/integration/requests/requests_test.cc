// The daemon tells of a service's requests as the service measured them itself: the same number, and each as long. The service
// looks at its clock before its first call and behind its wait. What Tessera measured lies within, whatever the machine does
// between the two. In most requests that is next to nothing, so that medians are compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "cli/look/request_table.h"
#include "cli/trace/take.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using ipc::abi::TraceKind;
using test::eventually;
using test::kPatienceS;

constexpr int kRequests = 20, kSteps = 5;
constexpr double kMostLonger = 1.02;

struct Measured {
  std::string kind;
  uint64_t start_ns, end_ns;
};

class RequestsOfAService : public test::SharingFixture {
 protected:
  void serve(const std::vector<std::string>& options) {
    start_daemon("[daemon]\nprofiles = \"off\"\n");
    cli::TraceTaker taker;
    ASSERT_TRUE(taker.start(socket(), 0).ok());
    service_ = run(
        "service", "high", options,
        {TESSERA_REQUEST_SERVICE, std::to_string(kRequests), std::to_string(kSteps), path("measured")}, {});
    const auto is_traced = [&] {
      const bool pumped = taker.pump().ok();
      const auto& items = taker.so_far().items;
      return pumped && std::any_of(items.begin(), items.end(), [](const cli::TraceItem& item) {
               return item.kind == TraceKind::kTraceSync;
             });
    };
    ASSERT_TRUE(eventually(is_traced)) << test::read_file(path("service.err"));
    std::ofstream(path("measured.go")) << "";
    ASSERT_TRUE(eventually([&] { return taker.pump().ok() && std::filesystem::exists(path("measured")); }))
        << test::read_file(path("service.err"));
    ASSERT_TRUE(taker.pump().ok());
    trace_ = taker.finish();
    std::ifstream in(path("measured"));
    for (Measured m; in >> m.kind >> m.start_ns >> m.end_ns;) measured_.push_back(m);
    for (const cli::RequestHistogram& h : cli::requests_of(client("service"))) told_[h.kind] = h;
  }
  std::vector<Measured> measured(const std::string& kind) const {
    std::vector<Measured> of_kind;
    std::copy_if(measured_.begin(), measured_.end(), std::back_inserter(of_kind),
                 [&](const Measured& m) { return kind.empty() || m.kind == kind; });
    return of_kind;
  }
  // How much longer each of them was by the service's own clock; those that are no event of their own are not there.
  std::vector<double> longer(TraceKind kind, const std::vector<Measured>& requests) const {
    std::vector<double> ratios;
    for (const Measured& m : requests) {
      const auto lies_within = [&](const cli::TraceItem& item) {
        return item.kind == kind && item.start_ns >= m.start_ns && item.end_ns <= m.end_ns;
      };
      const auto item = std::find_if(trace_.items.begin(), trace_.items.end(), lies_within);
      if (item == trace_.items.end()) continue;
      ratios.push_back(double(m.end_ns - m.start_ns) / double(item->end_ns - item->start_ns));
    }
    std::sort(ratios.begin(), ratios.end());
    return ratios;
  }
  uint64_t traced_ns(TraceKind kind) const {
    uint64_t sum = 0;
    for (const cli::TraceItem& item : trace_.items)
      if (item.kind == kind) sum += item.end_ns - item.start_ns;
    return sum;
  }
  void TearDown() override {
    const auto status = service_.stop(kPatienceS);
    EXPECT_TRUE(status.ok() && *status == 0);
    SharingFixture::TearDown();
  }
  cli::Process service_;
  cli::Trace trace_;
  std::vector<Measured> measured_;
  std::map<std::string, cli::RequestHistogram> told_;
};

TEST_F(RequestsOfAService, AreItsRanges) {
  serve({"--request-range", "engine/prefill", "--request-range", "decode *"});
  for (const auto& [kind, range, count] :
       {std::tuple("prefill", "engine/prefill", kRequests), {"decode", "decode *", kRequests * kSteps}}) {
    ASSERT_EQ(measured(kind).size(), size_t(count));
    EXPECT_EQ(told_[range].count, uint64_t(count));
    const std::vector<double> ratios = longer(TraceKind::kTraceRequest, measured(kind));
    ASSERT_EQ(ratios.size(), size_t(count)) << kind;
    EXPECT_LE(ratios[ratios.size() / 2], kMostLonger) << kind;
  }
  EXPECT_EQ(told_["engine/prefill"].sum_ns + told_["decode *"].sum_ns, traced_ns(TraceKind::kTraceRequest));
  EXPECT_EQ(client("service").value("missed_requests", -1), 0);
}

TEST_F(RequestsOfAService, AreItsBurstsWithoutRanges) {
  serve({});
  // Two of them are one burst where the next one begins while the end of the one before is being looked at.
  EXPECT_LE(told_["burst"].count, measured("").size());
  EXPECT_GT(told_["burst"].count, measured("").size() / 2);
  EXPECT_EQ(told_["burst"].sum_ns, traced_ns(TraceKind::kTraceBurst));
  const std::vector<double> ratios = longer(TraceKind::kTraceBurst, measured(""));
  ASSERT_GT(ratios.size(), measured("").size() / 4);
  EXPECT_LE(ratios[ratios.size() / 2], kMostLonger);
  // How many of them were told apart depends on the machine: gaps and merged bursts are its own.
  EXPECT_LE(told_["prefill"].count, measured("prefill").size());
  EXPECT_LE(told_["decode"].count, measured("decode").size());
}

}  // namespace
}  // namespace tessera
