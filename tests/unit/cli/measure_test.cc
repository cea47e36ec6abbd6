// The demo's arithmetic on small files whose results were worked out by hand.
#include "cli/demo/measure.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "cli/demo/stretch.h"
#include "cli/demo/workload.h"

namespace tessera::cli {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    close(mkstemp(path_));
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { unlink(path_); }
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/measure-test-XXXXXX";
};

// The standard pair is stock PyTorch where there is a GPU and the user's python3 has it.
TEST(Workload, StandardIsStockPyTorchWhereItIs) {
  char folder[] = "/tmp/workload-test-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder));
  const std::string python = std::string(folder) + "/python3", path = getenv("PATH");
  setenv("PATH", folder, 1);
  const auto standard_if_python_says = [&](int status) {
    std::ofstream(python) << "#!/bin/sh\nexit " << status << "\n";
    chmod(python.c_str(), 0700);
    return standard_workload(/*soft=*/false);
  };
  EXPECT_EQ(standard_if_python_says(0), "torch");
  EXPECT_EQ(standard_workload(/*soft=*/true), "samples");
  EXPECT_EQ(standard_if_python_says(1), "samples");
  unlink(python.c_str());
  EXPECT_EQ(standard_workload(/*soft=*/false), "samples");
  setenv("PATH", path.c_str(), 1);
  rmdir(folder);
}

TEST(Quantile, NearestRank) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({7}, 0.99), 7);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 1.0), 5);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 0.0), 1);
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(quantile(hundred, 0.99), 99);
}

TEST(ServiceFigures, LatencyIsFromTheIntendedArrival) {
  const TemporaryFile file(
      "request,intended_ns,start_ns,end_ns\n0,1000000,1500000,3000000\n1,2000000,3000000,7000000\n");
  auto figures = service_figures(file.path());
  ASSERT_TRUE(figures.ok()) << figures.error().text;
  EXPECT_EQ(figures->latency_ms, (std::vector<double>{2.0, 5.0}));
  EXPECT_EQ(figures->first_ns, 1000000u);
  EXPECT_EQ(figures->last_ns, 7000000u);
}

TEST(ServiceFigures, SaysWhatIsMissing) {
  const TemporaryFile empty(""), other("a,b\n1,2\n"), none("request,intended_ns,start_ns,end_ns\n");
  EXPECT_FALSE(service_figures("/nonexistent").ok());
  EXPECT_FALSE(service_figures(empty.path()).ok());
  EXPECT_FALSE(service_figures(none.path()).ok());
  auto wrong = service_figures(other.path());
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().text.find("intended_ns"), std::string::npos);
}

TEST(Queue, RequestsWaitForThoseBeforeThem) {
  const TemporaryFile file("request,intended_ns\n0,1000000\n1,2000000\n2,9000000\n");
  auto all = queue_ms(file.path(), 3);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(*all, (std::vector<double>{3, 5, 3}));
  EXPECT_FALSE(queue_ms("/nonexistent", 3).ok());
}

TEST(StepsWithin, PartsOfStepsCountByTime) {
  // A cut-off last line, as a killed trainer leaves it, is not counted.
  const TemporaryFile file("step,start_ns,end_ns\n0,0,100\n1,100,200\n2,200,400\n3,400");
  auto all = steps_within(file.path(), 0, 400);
  ASSERT_TRUE(all.ok());
  EXPECT_DOUBLE_EQ(*all, 3.0);
  EXPECT_DOUBLE_EQ(*steps_within(file.path(), 50, 300), 0.5 + 1 + 0.5);
  EXPECT_DOUBLE_EQ(*steps_within(file.path(), 400, 500), 0.0);
}

constexpr char kTraceHead[] = "kind,enqueued_ns,start_ns,end_ns,functional_end_ns,lag_ns,delivery_ns\n";

TEST(Turnarounds, FromFirstCallOfABurstToItsFirstKernel) {
  const TemporaryFile file(std::string(kTraceHead) +
                           "copy,1000,1000,3000,0,0,0\n"       // burst 1 begins with its input copy
                           "kernel,1500,3000,9000,0,0,0\n"     // first kernel: 2000 ns after the burst began
                           "kernel,2000,9000,12000,0,0,0\n"    // same burst
                           "kernel,20000,25000,30000,0,0,0\n"  // burst 2: 5000 ns
                           "copy,40000,40000,41000,0,0,0\n");  // burst 3 has no kernel
  auto turnarounds = turnarounds_us(file.path());
  ASSERT_TRUE(turnarounds.ok()) << turnarounds.error().text;
  EXPECT_EQ(*turnarounds, (std::vector<double>{2.0, 5.0}));
}

TEST(Lag, WhatWaitedBehindALateResultStartsEarlierWithoutIt) {
  // 1: on time. 2: its kernel is 2 ms late. 3: arrives while 2 runs, starts 1 ms after its end. 4: alone
  // again.
  const TemporaryFile requests(
      "request,intended_ns,start_ns,end_ns\n"
      "0,1000000,1000000,3000000\n"
      "1,10000000,10000000,15000000\n"
      "2,11000000,16000000,18000000\n"
      "3,30000000,30000000,32000000\n");
  const TemporaryFile trace(std::string(kTraceHead) +
                            "kernel,500000,500000,600000,900000,300000,0\n"  // before the first request
                            "kernel,1000000,1000000,3000000,2000000,0,0\n"
                            "kernel,10000000,10000000,13000000,15000000,2000000,0\n"
                            "action,10000000,10000000,10000000,15000000,5000000,0\n"  // nobody waits for it
                            "kernel,16000000,16000000,18000000,17000000,0,0\n"
                            "kernel,30000000,30000000,32000000,31000000,0,0\n");
  auto without = latency_without_lag_ms(requests.path(), trace.path());
  ASSERT_TRUE(without.ok()) << without.error().text;
  EXPECT_EQ(*without, (std::vector<double>{2, 3, 5, 2}));
  EXPECT_DOUBLE_EQ(*lag_share(trace.path(), 0, 40'000'000), 2.3 / 40);
  EXPECT_DOUBLE_EQ(*lag_share(trace.path(), 1'000'000, 11'000'000), 0);
}

TEST(Lag, SlowdownThatGivesResultsTheirTime) {
  // Results take 8 ms, the device 2 ms: with a clock that is four times slower nothing is late.
  const TemporaryFile trace(std::string(kTraceHead) + "kernel,0,0,2000000,8000000,6000000,0\n");
  EXPECT_NEAR(*slowdown_needed(trace.path(), 0, 10'000'000, 0.0), 4, 1);
  EXPECT_GE(*slowdown_needed(trace.path(), 0, 10'000'000, 0.0), 4);
  EXPECT_LT(*slowdown_needed(trace.path(), 0, 10'000'000, 0.2), 4);  // 2 ms of 10 may be lag
  EXPECT_EQ(*slowdown_needed(trace.path(), 0, 10'000'000, 0.6), 1);
  EXPECT_EQ(*slowdown_needed(trace.path(), 3'000'000, 10'000'000, 0.0), 1);  // none there
  // On time, but known 4 ms later.
  const TemporaryFile news(std::string(kTraceHead) + "kernel,0,0,2000000,1000000,0,4000000\n");
  EXPECT_NEAR(*slowdown_needed(news.path(), 0, 10'000'000, 0.1), 4, 1);
}

// The stretches that a phase is measured with which always lags by a factor of two.
std::vector<double> stretches_from(double stretch, uint64_t patience_ends_ns = UINT64_MAX) {
  Setting setting;
  setting.patience_ends_ns = patience_ends_ns;
  setting.stretch = stretch;
  setting.most_stretch = 32;
  std::vector<double> tried;
  const auto measure = [&](const Setting& now) -> base::Result<Figures> {
    tried.push_back(now.stretch);
    Figures figures;
    figures.lag = {.share = 1, .stretch = 2};
    return figures;
  };
  EXPECT_TRUE(measure_until_kept_up(&setting, measure, [](const Setting&) {}));
  EXPECT_EQ(setting.stretch, tried.back());  // for the next phase
  return tried;
}

TEST(Stretch, OfAPhaseThatLagsGrowsUpToTheLimitAndNeverShrinks) {
  EXPECT_EQ(stretches_from(4), (std::vector<double>{4, 16, 32}));
  EXPECT_EQ(stretches_from(100), (std::vector<double>{100, 100, 100}));
}

TEST(Stretch, GoesToTheLimitAtOnceWhenPatienceHasEnded) {
  EXPECT_EQ(stretches_from(4, 0), (std::vector<double>{4, 32}));
  EXPECT_EQ(stretches_from(32, 0), (std::vector<double>{32}));
}

TEST(Stretch, TakesRequestsFromAPhaseNotTimeUntilTheyAreTooFew) {
  Setting setting;
  setting.wall_seconds = 20;
  setting.least_requests = 30;
  setting.rate_per_s = 100;
  const auto requests = [&](double stretch) {
    set_stretch(stretch, &setting);
    return setting.seconds * setting.rate_per_s;
  };
  EXPECT_DOUBLE_EQ(requests(1), 2000);
  EXPECT_DOUBLE_EQ(requests(32), 62.5);
  EXPECT_DOUBLE_EQ(requests(128), 30);
}

}  // namespace
}  // namespace tessera::cli
