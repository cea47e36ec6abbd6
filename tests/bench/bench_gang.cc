// A protected service on the first GPU of a job of several ranks, compared with one beside a job of one rank. Both pairs run at
// the same time, and each job a second time without a service, so that the machine's other work meets all of them alike.
// Each job has a daemon and GPUs of its own, the software GPU's. Times are its model's, to the nanosecond, of each kernel.
//   bench_gang [RANKS [ROUNDS [SECONDS [STRETCH]]]]      2 ranks, 5 rounds of 20 s, stretched 20 times
//   gang.share, gang.single_share       steps beside the service over steps without it, in the same time
//   gang.share_over_single              one over the other
//   gang.{mean,p50,p99}_over_single     bursts of the service beside the ranks over those beside the one
//   gang.rounds                         those that count: 99 % of the services' kernels were executed in time (docs/softgpu-timing.md)
// Each is the median of these rounds, with the least and the greatest. The device is stretched, so that its model is slower than
// this machine.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/demo/process.h"
#include "ipc/channel/client.h"
#include "tests/support/eventually.h"

namespace {

using namespace tessera;

constexpr unsigned kLaunchesOfABurst = 2;
constexpr double kMostLag = 0.05;  // over the kernel's duration, of all but 1 %

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench_gang: %s\n", what.c_str());
  exit(1);
}

// The test GPU, with 100 times its instructions per second: it still has the memory's speed that all of these kernels wait
// for. Of a ring that waits the software GPU counts all instructions, and charges them when the wait is over.
std::string gpu_of_cheap_instructions() {
  std::ifstream in(TS_GPU);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"clock_mhz = 1.5", "clock_mhz = 150"},
                                 {"bytes_per_clock = 134", "bytes_per_clock = 1.34"}}) {
    const size_t at = text.find(from);
    if (at == std::string::npos) fail("no " + from + " in " TS_GPU);
    text.replace(at, from.size(), to);
  }
  return text;
}

struct Kernel {
  std::string name;
  double enqueued_ns, end_ns, lag;  // modelled; lag over its duration
};

// In the order in which they were enqueued, of one process and all of its devices.
std::vector<Kernel> kernels(const std::string& folder) {
  std::vector<Kernel> all;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".csv") continue;
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      std::vector<std::string> columns;
      std::istringstream words(line);
      for (std::string word; columns.size() < 10 && std::getline(words, word, ',');) columns.push_back(word);
      if (columns.size() < 10 || columns[0] != "kernel") continue;
      all.push_back({columns[1], std::stod(columns[3]),
                     std::max(std::stod(columns[5]), std::stod(columns[7])), std::stod(columns[9])});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Kernel& a, const Kernel& b) { return a.enqueued_ns < b.enqueued_ns; });
  return all;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) fail("nothing was measured");
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, size_t(share * double(values.size())))];
}

struct Window {
  double begin_ns, end_ns;  // modelled
  bool has(double ns) const { return ns >= begin_ns && ns < end_ns; }
};

struct Bursts {
  std::vector<double> ns, lags;
  double mean_ns() const {
    double sum = 0;
    for (const double n : ns) sum += n;
    return sum / double(ns.size());
  }
};

Bursts bursts(const std::string& folder, const Window& window) {
  Bursts found;
  std::vector<Kernel> memory = kernels(folder);
  std::erase_if(memory, [](const Kernel& k) { return k.name.find("memory") == std::string::npos; });
  for (size_t i = 0; i + kLaunchesOfABurst <= memory.size(); i += kLaunchesOfABurst) {
    const Kernel &first = memory[i], &last = memory[i + kLaunchesOfABurst - 1];
    if (!window.has(first.enqueued_ns) || !window.has(last.end_ns)) continue;
    found.ns.push_back(last.end_ns - first.enqueued_ns);
    for (size_t k = i; k < i + kLaunchesOfABurst; ++k) found.lags.push_back(memory[k].lag);
  }
  return found;
}

double steps_per_ns(const std::string& folder, const Window& window) {
  std::vector<double> ends;
  for (const Kernel& k : kernels(folder))
    if (k.name.find("ncclRing") != std::string::npos && window.has(k.end_ns)) ends.push_back(k.end_ns);
  if (ends.size() < 2) fail("a job made no steps");
  return double(ends.size() - 1) / (ends.back() - ends.front());
}

struct Measured {
  Bursts single, gang;
  double single_share, gang_share;
};

class Run {
 public:
  Run(int ranks, int stretch) : stretch_(stretch) {
    if (!mkdtemp(folder_)) fail("no folder");
    std::ofstream(path("gpu.toml")) << gpu_of_cheap_instructions();
    std::ofstream(path("d.toml")) << "[daemon]\nprofiles = \"off\"\n";
    add("single", 1, true);
    add("gang", ranks, true);
    add("single_alone", 1, false);
    add("gang_alone", ranks, false);
    until([&] { return clients_with_gpu() == processes_.size() - jobs_.size(); });
    for (const std::string& job : jobs_) std::ofstream(path(job + "/go")) << "";
    for (const std::string& job : jobs_) until([&] { return bytes(job + "/rank0.steps") > 5; });
    until([&] { return bytes("single/service.steps") > 20 && bytes("gang/service.steps") > 20; });
  }
  ~Run() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Measured measure(int seconds) {
    Window window;
    window.begin_ns = double(base::now_ns()) / stretch_;
    poll(nullptr, 0, seconds * 1000);
    window.end_ns = double(base::now_ns()) / stretch_;
    end();
    const auto share = [&](const std::string& job) {
      return steps_per_ns(path(job + "/rank0"), window) / steps_per_ns(path(job + "_alone/rank0"), window);
    };
    return {bursts(path("single/service"), window), bursts(path("gang/service"), window), share("single"),
            share("gang")};
  }

 private:
  std::string path(const std::string& name) const { return std::string(folder_) + "/" + name; }
  template <class F>
  static void until(F&& condition) {
    if (!test::eventually(condition)) fail("a program does not get on");
  }
  static std::string program_of(const std::string& name) { return TS_PREFIX "/bin/" + name; }
  void start(const std::string& job, const std::string& name, const std::vector<std::string>& words) {
    auto process = cli::Process::start(
        words,
        {"TESSERA_SOFTGPU_DIR=" + path(job + "/gpu"), "TESSERA_SOFTGPU_GPU=" + path("gpu.toml"),
         "TESSERA_SOFTGPU_TRACE=" + path(job + "/" + name),
         "TESSERA_SOFTGPU_DEVICES=" + std::to_string(n_gpus_),
         "TESSERA_SOFTGPU_STRETCH=" + std::to_string(stretch_), "TESSERA_CACHE_MAX_MB=0"},
        path(job + "/" + name + ".out"), path(job + "/" + name + ".err"));
    if (!process.ok()) fail(process.error().text);
    processes_.push_back(std::move(*process));
  }
  void program(const std::string& job, const std::string& name, const std::vector<std::string>& options,
               const std::vector<std::string>& work) {
    std::vector<std::string> words = {program_of("tessera"), "run",    "--gpu", "soft", "--socket",
                                      path(job + "/d.sock"), "--name", name};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    words.insert(words.end(), work.begin(), work.end());
    start(job, name, words);
  }
  // A job in a folder of its own. The service is on the first of its GPUs.
  void add(const std::string& job, int ranks, bool has_service) {
    std::filesystem::create_directory(path(job));
    jobs_.push_back(job);
    n_gpus_ = ranks;
    start(job, "daemon",
          {program_of("tesserad"), "--socket", path(job + "/d.sock"), "--config", path("d.toml")});
    until([&] { return ipc::query(path(job + "/d.sock")).ok(); });
    if (has_service)
      program(job, "service", {"--priority", "high"},
              {TS_LOAD, "memory", "64", "4", std::to_string(kLaunchesOfABurst), "0", "60000",
               path(job + "/service.steps")});
    for (int rank = 0; rank < ranks; ++rank)
      program(job, "rank" + std::to_string(rank), {"--priority", "best-effort", "--gang", job},
              {TS_RANK, std::to_string(rank), std::to_string(ranks), "0", path(job), "256", "60"});
  }
  // All end as they are asked to, so that their traces are whole.
  void end() {
    for (const std::string& job : jobs_) std::ofstream(path(job + "/stop")) << "";  // rings wait for nobody
    for (; !processes_.empty(); processes_.pop_back())
      if (const auto status = processes_.back().stop(60); !status.ok() || *status != 0)
        fail("a program failed");
  }
  size_t bytes(const std::string& name) const {
    std::error_code none;
    const auto n = std::filesystem::file_size(path(name), none);
    return none ? 0 : size_t(n);
  }
  size_t clients_with_gpu() const {
    size_t n = 0;
    for (const std::string& job : jobs_) {
      const auto answer = ipc::query(path(job + "/d.sock"));
      if (!answer.ok()) return 0;
      const nlohmann::json all = nlohmann::json::parse(*answer)["clients"];
      n += size_t(std::count_if(all.begin(), all.end(), [](const auto& c) { return c["gpu"] != ""; }));
    }
    return n;
  }

  const int stretch_;
  int n_gpus_ = 0;  // of the job that is started
  char folder_[32] = "/tmp/tessera-bench-XXXXXX";
  std::vector<std::string> jobs_;
  std::vector<cli::Process> processes_;  // each daemon before its programs, so that it ends after them
};

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? atoi(argv[1]) : 2, rounds = argc > 2 ? atoi(argv[2]) : 5,
            seconds = argc > 3 ? atoi(argv[3]) : 20, stretch = argc > 4 ? atoi(argv[4]) : 20;
  std::map<std::string, std::vector<double>> all;
  for (int round = 0; round < rounds; ++round) {
    const Measured m = Run(ranks, stretch).measure(seconds);
    if (std::max(quantile(m.gang.lags, 0.99), quantile(m.single.lags, 0.99)) > kMostLag) continue;
    const auto ratio = [&](double share) {
      return quantile(m.gang.ns, share) / quantile(m.single.ns, share);
    };
    all["gang.share"].push_back(m.gang_share);
    all["gang.single_share"].push_back(m.single_share);
    all["gang.share_over_single"].push_back(m.gang_share / m.single_share);
    all["gang.mean_over_single"].push_back(m.gang.mean_ns() / m.single.mean_ns());
    all["gang.p50_over_single"].push_back(ratio(0.5));
    all["gang.p99_over_single"].push_back(ratio(0.99));
    all["gang.bursts"].push_back(double(std::min(m.gang.ns.size(), m.single.ns.size())));
  }
  if (all.empty()) fail("the software GPU lagged in all rounds");
  printf("{\n  \"gang.rounds\": %zu", all.begin()->second.size());
  for (auto& [name, values] : all)
    printf(",\n  \"%s\": %.3f, \"%s_least\": %.3f, \"%s_most\": %.3f", name.c_str(), quantile(values, 0.5),
           name.c_str(), quantile(values, 0), name.c_str(), quantile(values, 1));
  printf("\n}\n");
}
