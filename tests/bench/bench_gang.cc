// The tail of a protected service on the software GPU, beside one rank of a job and beside two. The second of two has another GPU.
//   gang.burst_over_single       mean burst of the service beside two ranks, over that beside one
//   gang.p99_over_single         likewise its p99; buckets are an eighth wide
// Each with the least and the greatest of the rounds. The device is stretched, so that its model is slower than this machine.
// What the ranks get is not measured: they do too few steps on a stretched device.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/demo/process.h"
#include "ipc/channel/client.h"
#include "tests/support/eventually.h"

namespace {

using namespace tessera;

constexpr int kRounds = 3;
constexpr int kMeasuredMs = 2500;

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench_gang: %s\n", what.c_str());
  exit(1);
}

struct Measured {
  double burst_ns = 0, p99_ns = 0;
};

// A job of `ranks` beside the service, in a folder of its own.
class Run {
 public:
  explicit Run(int ranks) : ranks_(ranks) {
    if (!mkdtemp(folder_)) fail("no folder");
    std::ofstream(path("d.toml")) << "[daemon]\nprofiles = \"off\"\n";
    start({TS_PREFIX "/bin/tesserad", "--socket", path("d.sock"), "--config", path("d.toml")}, "daemon");
    until([&] { return ipc::query(path("d.sock")).ok(); });
    program("service", "high", {TS_LOAD, "memory", "64", "4", "4", "0", "20000", path("service.steps")});
    for (int rank = 0; rank < ranks; ++rank)
      program("rank" + std::to_string(rank), "best-effort",
              {TS_RANK, std::to_string(rank), std::to_string(ranks), "0", folder_}, {"--gang", "job"});
    until([&] { return clients_with_gpu() == size_t(ranks) + 1; });
    std::ofstream(path("go")) << "";
    until([&] { return steps("service") > 20 && steps("rank0") > 5; });
  }
  ~Run() {
    std::ofstream(path("stop")) << "";  // rings wait for nobody
    while (!processes_.empty()) processes_.pop_back();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Measured measure() const {
    const nlohmann::json before = bursts();
    poll(nullptr, 0, kMeasuredMs);
    Measured m;
    const nlohmann::json after = bursts();
    const double n = after["count"].get<double>() - before["count"].get<double>();
    m.burst_ns = (after["sum_ns"].get<double>() - before["sum_ns"].get<double>()) / n;
    std::map<double, double> counts;
    for (const auto& [histogram, sign] : {std::pair(&after, 1.0), std::pair(&before, -1.0)})
      for (const auto& bucket : (*histogram)["buckets"])
        counts[bucket[0].is_null() ? 1e12 : bucket[0].get<double>()] += sign * bucket[1].get<double>();
    double below = 0;
    for (const auto& [end_ns, count] : counts)
      if ((below += count) >= 0.99 * n) {
        m.p99_ns = end_ns;
        break;
      }
    return m;
  }

 private:
  std::string path(const std::string& name) const { return std::string(folder_) + "/" + name; }
  template <class F>
  static void until(F&& condition) {
    if (!test::eventually(condition)) fail("a program does not get on");
  }
  void start(const std::vector<std::string>& words, const std::string& name) {
    auto process = cli::Process::start(
        words,
        {"TESSERA_SOFTGPU_DIR=" + path("gpu"), "TESSERA_SOFTGPU_DEVICES=" + std::to_string(ranks_),
         "TESSERA_SOFTGPU_STRETCH=20", "TESSERA_CACHE_MAX_MB=0"},
        path(name + ".out"), path(name + ".err"));
    if (!process.ok()) fail(process.error().text);
    processes_.push_back(std::move(*process));
  }
  void program(const std::string& name, const std::string& priority, const std::vector<std::string>& work,
               const std::vector<std::string>& options = {}) {
    std::vector<std::string> words = {TS_PREFIX "/bin/tessera", "run",    "--gpu", "soft",       "--socket",
                                      path("d.sock"),           "--name", name,    "--priority", priority};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    words.insert(words.end(), work.begin(), work.end());
    start(words, name);
  }
  size_t steps(const std::string& name) const {
    std::error_code none;
    const auto n = std::filesystem::file_size(path(name + ".steps"), none);
    return none ? 0 : size_t(n);
  }
  nlohmann::json clients() const {
    const auto answer = ipc::query(path("d.sock"));
    return answer.ok() ? nlohmann::json::parse(*answer)["clients"] : nlohmann::json::array();
  }
  size_t clients_with_gpu() const {
    const nlohmann::json all = clients();
    return size_t(std::count_if(all.begin(), all.end(), [](const auto& c) { return c["gpu"] != ""; }));
  }
  nlohmann::json bursts() const {
    for (const auto& client : clients())
      if (client["name"] == "service")
        for (const auto& kind : client["requests"])
          if (kind["kind"] == "burst") return kind;
    fail("the service has no bursts");
  }

  const int ranks_;
  char folder_[32] = "/tmp/tessera-bench-XXXXXX";
  std::vector<cli::Process> processes_;  // the daemon first, so that it ends last
};

struct Ratios {
  std::vector<double> of_rounds;
  double median() {
    std::sort(of_rounds.begin(), of_rounds.end());
    return of_rounds[of_rounds.size() / 2];
  }
};

}  // namespace

int main() {
  std::map<std::string, Ratios> all;
  for (int round = 0; round < kRounds; ++round) {
    const Measured one = Run(1).measure(), two = Run(2).measure();
    all["gang.burst_over_single"].of_rounds.push_back(two.burst_ns / one.burst_ns);
    all["gang.p99_over_single"].of_rounds.push_back(two.p99_ns / one.p99_ns);
  }
  const char* comma = "{";
  for (auto& [name, ratios] : all) {
    const double median = ratios.median();
    printf("%s\n  \"%s\": %.3f, \"%s_least\": %.3f, \"%s_most\": %.3f", comma, name.c_str(), median,
           name.c_str(), ratios.of_rounds.front(), name.c_str(), ratios.of_rounds.back());
    comma = ",";
  }
  printf("\n}\n");
}
