// Measures the preload library's addition to one cuLaunchKernel, on the null driver, with a real daemon:
//   bare         the null driver itself
//   passthrough  libtessera.so, TESSERA_DISABLE=1
//   unmanaged    no daemon
//   protected    attached at level 5, busy
//   best-effort  attached at level 0 under a granted lease, one idle protected peer whose pulse is watched
//   device       as best-effort, and its work waits on the device, in quanta of 40 us: boundaries included, how many is counted.
//                Beside it, the same with kernels of 23 us, as GPT-2's are on average, each of which has a boundary; and what
//                the helper thread takes of a processor meanwhile
// and to one launch with a synchronise call behind it, a burst of a protected client, also beside an idle best-effort
// client whose gate the burst closes (device) or does not (thread); and to one cuMemAlloc
// with its cuMemFree, which are counted, of a best-effort client without a limit of memory.
// Each regime is its own process (this program again, with --measure), so that each gets a fresh library.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "driver_api/cuda.h"
#include "tests/bench/timing.h"
#include "tests/null_driver/null_driver.h"

namespace {

using tessera::bench::per_call_ns;
using tessera::bench::quantile;

struct Driver {
  decltype(&cuInit) init;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuStreamCreate) stream_create;
  decltype(&cuLaunchKernel) launch;
  decltype(&cuStreamSynchronize) synchronize;
  decltype(&cuMemAlloc_v2) allocate;
  decltype(&cuMemFree_v2) free;
};

Driver open_driver(const char* path) {
  void* handle = dlopen(path, RTLD_NOW);
  if (!handle) {
    fprintf(stderr, "bench_launch: %s\n", dlerror());
    exit(1);
  }
  Driver d{};
  const auto get = [&](auto& slot, const char* name) {
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(dlsym(handle, name));
  };
  get(d.init, "cuInit");
  get(d.retain, "cuDevicePrimaryCtxRetain");
  get(d.set_current, "cuCtxSetCurrent");
  get(d.stream_create, "cuStreamCreate");
  get(d.launch, "cuLaunchKernel");
  get(d.synchronize, "cuStreamSynchronize");
  get(d.allocate, "cuMemAlloc_v2");
  get(d.free, "cuMemFree_v2");
  return d;
}

struct Totals {  // of this process
  double at_ns, helper_ns, boundaries, launches;
};

Totals totals() {
  Totals t{double(tessera::base::now_ns()), 0, 0, 0};
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "tessera") std::ifstream(task.path() / "schedstat") >> t.helper_ns;
  }
  void* null = dlopen(TS_NULL_DRIVER, RTLD_NOW);  // the one below the library
  const auto calls = reinterpret_cast<decltype(&tessera_null_calls)>(dlsym(null, "tessera_null_calls"));
  t.boundaries = double(calls("cuStreamWaitValue64_v2"));
  t.launches = double(calls("cuLaunchKernel"));
  return t;
}

// Prints median and 90th percentile over all batches of all threads, ns per launch; boundaries per launch; and what the helper
// takes of a processor, in percent.
int measure(const char* path, int threads, const char* wait_for) {
  const Driver d = open_driver(path);
  CUcontext context = nullptr;
  if (d.init(0) != CUDA_SUCCESS || d.retain(&context, 0) != CUDA_SUCCESS) return 1;
  d.set_current(context);
  // The helper attaches and calibrates its clock in the background.
  if (*wait_for) usleep(1'500'000);
  std::atomic<int> ready{0};
  std::vector<std::vector<double>> all(static_cast<size_t>(threads));
  std::vector<std::thread> pool;
  pool.reserve(size_t(threads));
  Totals before{};
  for (int t = 0; t < threads; t++) {
    pool.emplace_back([&, t] {
      d.set_current(context);
      CUstream stream = nullptr;
      d.stream_create(&stream, 0);
      const auto f = reinterpret_cast<CUfunction>(uintptr_t{0x5000});
      const bool burst = getenv("TESSERA_BENCH_BURST") != nullptr;
      const bool allocates = getenv("TESSERA_BENCH_ALLOC") != nullptr;
      const auto one = [&] {
        if (allocates) {
          CUdeviceptr p = 0;
          d.allocate(&p, 4096);
          d.free(p);
          return;
        }
        d.launch(f, 64, 1, 1, 128, 1, 1, 0, stream, nullptr, nullptr);
        if (burst) d.synchronize(stream);
      };
      for (int i = 0; i < 20'000; i++) one();
      if (t == 0) before = totals();
      ready++;
      while (ready < threads) std::this_thread::yield();
      all[size_t(t)] = per_call_ns(400, 2'500, one);
    });
  }
  for (auto& t : pool) t.join();
  const Totals after = totals();
  std::vector<double> merged;
  for (auto& v : all) merged.insert(merged.end(), v.begin(), v.end());
  printf("%.3f %.3f %.4f %.4f\n", quantile(merged, 0.5), quantile(merged, 0.9),
         (after.boundaries - before.boundaries) / std::max(1.0, after.launches - before.launches),
         100 * (after.helper_ns - before.helper_ns) / (after.at_ns - before.at_ns));
  return 0;
}

std::string g_self, g_folder;

struct Result {
  double median = 0, p90 = 0, boundaries = 0, helper_percent = 0;
};

Result run(const char* driver, int threads, const std::vector<std::pair<std::string, std::string>>& env,
           bool managed) {
  int out[2];
  if (pipe(out) != 0) exit(1);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    close(out[0]);
    for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
    execl(g_self.c_str(), g_self.c_str(), "--measure", driver, std::to_string(threads).c_str(),
          managed ? "daemon" : "", nullptr);
    _exit(127);
  }
  close(out[1]);
  char text[128] = {};
  size_t used = 0;
  ssize_t n;
  while (used + 1 < sizeof text && (n = read(out[0], text + used, sizeof text - 1 - used)) > 0)
    used += size_t(n);
  close(out[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Result r;
  if (status != 0 ||
      sscanf(text, "%lf %lf %lf %lf", &r.median, &r.p90, &r.boundaries, &r.helper_percent) != 4) {
    fprintf(stderr, "bench_launch: a measuring process failed\n");
    exit(1);
  }
  return r;
}

pid_t spawn(const std::vector<std::string>& arguments,
            const std::vector<std::pair<std::string, std::string>>& env) {
  const pid_t child = fork();
  if (child != 0) return child;
  for (const auto& [name, value] : env) setenv(name.c_str(), value.c_str(), 1);
  const int nowhere = open("/dev/null", O_RDWR);
  dup2(nowhere, 1);
  dup2(nowhere, 2);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

int idle_peer(const char* path) {  // a client that does nothing, until it is told to end
  const Driver d = open_driver(path);
  CUcontext context = nullptr;
  if (d.init(0) != CUDA_SUCCESS || d.retain(&context, 0) != CUDA_SUCCESS) return 1;
  d.set_current(context);
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && !strcmp(argv[1], "--measure")) return measure(argv[2], atoi(argv[3]), argv[4]);
  if (argc == 3 && !strcmp(argv[1], "--peer")) return idle_peer(argv[2]);
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return 1;
  g_self = self;
  char folder[] = "/tmp/tessera-bench-XXXXXX";
  if (!mkdtemp(folder)) return 1;
  const std::string socket = std::string(folder) + "/tesserad.sock";
  const std::vector<std::pair<std::string, std::string>> bare = {{"TESSERA_DRIVER", TS_NULL_DRIVER},
                                                                 {"TESSERA_SOCKET", socket}};
  const auto with = [&](std::vector<std::pair<std::string, std::string>> more) {
    more.insert(more.end(), bare.begin(), bare.end());
    return more;
  };
  const std::string config = std::string(folder) + "/tesserad.toml";
  std::ofstream(config) << "[policy]\nslice_us = 40\n";  // bounds a quantum, and nothing else here
  const pid_t daemon = spawn({TS_DAEMON, "--socket", socket, "--config", config}, {});
  for (int i = 0; i < 200 && access(socket.c_str(), F_OK) != 0; i++) usleep(10'000);
  const pid_t peer = spawn({g_self, "--peer", TS_SHIM}, with({{"TESSERA_PRIORITY", "high"}}));

  tessera::bench::Report report;
  double open_alone = 0;
  for (const int threads : {1, 8}) {
    const std::string suffix = threads == 1 ? "" : "_8_threads";
    // Three interleaved rounds, the best of each: the machine has other work.
    Result base{1e9, 1e9}, off = base, alone = base, high = base, open = base, device = base;
    Result burst = base, high_burst = base, pair = base, counted_pair = base;
    Result device_23us = base;
    for (int round = 0; round < 3; round++) {
      const auto better = [](Result& best, Result r) {
        if (r.median < best.median) best = r;
      };
      better(base, run(TS_NULL_DRIVER, threads, bare, false));
      better(off, run(TS_SHIM, threads, with({{"TESSERA_DISABLE", "1"}}), false));
      better(alone, run(TS_SHIM, threads, with({{"TESSERA_SOCKET", socket + ".none"}}), false));
      better(high, run(TS_SHIM, threads, with({{"TESSERA_PRIORITY", "high"}}), true));
      better(open, run(TS_SHIM, threads, with({{"TESSERA_PRIORITY", "best-effort"}}), true));
      better(device, run(TS_SHIM, threads,
                         with({{"TESSERA_PRIORITY", "best-effort"}, {"TESSERA_GATE", "device"}}), true));
      better(device_23us, run(TS_SHIM, threads,
                              with({{"TESSERA_PRIORITY", "best-effort"},
                                    {"TESSERA_GATE", "device"},
                                    {"TESSERA_NULL_ELAPSED_NS", "23000"}}),
                              true));
      better(burst, run(TS_NULL_DRIVER, threads, with({{"TESSERA_BENCH_BURST", "1"}}), false));
      better(high_burst,
             run(TS_SHIM, threads, with({{"TESSERA_PRIORITY", "high"}, {"TESSERA_BENCH_BURST", "1"}}), true));
      better(pair, run(TS_NULL_DRIVER, threads, with({{"TESSERA_BENCH_ALLOC", "1"}}), false));
      better(counted_pair, run(TS_SHIM, threads, with({{"TESSERA_BENCH_ALLOC", "1"}}), true));
    }
    report.add("launch.null_driver_ns" + suffix, base.median);
    report.add("launch.disabled_added_ns" + suffix, off.median - base.median);
    report.add("launch.unmanaged_added_ns" + suffix, alone.median - base.median);
    report.add("launch.protected_added_ns" + suffix, high.median - base.median);
    report.add("launch.protected_added_p90_ns" + suffix, high.p90 - base.p90);
    report.add("launch.best_effort_open_added_ns" + suffix, open.median - base.median);
    report.add("launch.best_effort_open_added_p90_ns" + suffix, open.p90 - base.p90);
    report.add("launch.device_gate_added_ns" + suffix, device.median - base.median);
    report.add("launch.device_gate_boundaries" + suffix, device.boundaries);
    report.add("launch.device_gate_23us_added_ns" + suffix, device_23us.median - base.median);
    report.add("launch.device_gate_23us_boundaries" + suffix, device_23us.boundaries);
    report.add("launch.device_gate_23us_helper_percent" + suffix, device_23us.helper_percent);
    report.add("launch.device_gate_boundary_added_ns" + suffix,
               (device_23us.median - device.median) / (device_23us.boundaries - device.boundaries));
    report.add("launch.protected_burst_added_ns" + suffix, high_burst.median - burst.median);
    report.add("memory.alloc_free_added_ns" + suffix, counted_pair.median - pair.median);
    // Peers can be compared by these: added cost over the driver's own launch, in the same run.
    report.add("launch.unmanaged_added_over_null" + suffix, (alone.median - base.median) / base.median);
    report.add("launch.protected_added_over_null" + suffix, (high.median - base.median) / base.median);
    report.add("launch.best_effort_open_added_over_null" + suffix, (open.median - base.median) / base.median);
    report.add("launch.protected_p90_over_median" + suffix, high.p90 / high.median);
    if (threads == 1) open_alone = open.median;
    if (threads == 8) report.add("launch.best_effort_open_8_threads_over_1", open.median / open_alone);
  }
  const auto burst = [&](const char* driver, bool managed) {
    return run(driver, 1, with({{"TESSERA_PRIORITY", "high"}, {"TESSERA_BENCH_BURST", "1"}}), managed).median;
  };
  for (const char* gate : {"thread", "device"}) {
    const pid_t idle = spawn({g_self, "--peer", TS_SHIM},
                             with({{"TESSERA_PRIORITY", "best-effort"}, {"TESSERA_GATE", gate}}));
    double added_ns = 1e9;
    for (int round = 0; round < 3; round++)
      added_ns = std::min(added_ns, burst(TS_SHIM, true) - burst(TS_NULL_DRIVER, false));
    report.add(std::string("launch.protected_burst_beside_") + gate + "_gate_added_ns", added_ns);
    kill(idle, SIGTERM);
    waitpid(idle, nullptr, 0);
  }
  for (const pid_t p : {peer, daemon}) {
    kill(p, SIGTERM);
    waitpid(p, nullptr, 0);
  }
  unlink(config.c_str());
  unlink(socket.c_str());
  rmdir(folder);
  report.print();
  return 0;
}
