// Measures the cost of the software GPU in real time:
//   softgpu.<kernel>.time_ms, .time_over_pocl   launch to end, all cores, against PoCL in turns with it
//   softgpu.warp_instructions_per_s_per_core    the interpreter alone, one thread, tiled matrix product
//   softgpu.startup_ms                          a new process until its first kernel has ended
//   softgpu.launch_us.processes_<n>             per empty launch, n processes at once
// The last two run this program again. Without OpenCL the comparison is left out, and said so.
// `bench_softgpu --kernel NAME` compares only that kernel.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "driver_api/cuda.h"
#include "kernels/ptx/parser.h"
#include "softgpu/exec/exec.h"
#include "tests/bench/bench_softgpu_opencl.h"
#include "tests/bench/timing.h"

namespace {

using tessera::base::now_ns;
using tessera::bench::OpenCl;
using tessera::bench::OpenClArgument;
using tessera::bench::quantile;
using tessera::bench::Report;

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench_softgpu: %s\n", what.c_str());
  exit(1);
}

// The software GPU's driver, as a program would use it.
struct Driver {
  decltype(&cuInit) init;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuModuleLoadData) load;
  decltype(&cuModuleGetFunction) function;
  decltype(&cuMemAlloc_v2) allocate;
  decltype(&cuMemcpyHtoD_v2) upload;
  decltype(&cuMemcpyDtoH_v2) download;
  decltype(&cuLaunchKernel) launch;
  decltype(&cuCtxSynchronize) synchronize;
  CUmodule module = nullptr;

  void check(CUresult code, const char* what) const {
    if (code != CUDA_SUCCESS)
      fail(std::string(what) + " of the software GPU answers " + std::to_string(code));
  }
  CUfunction get(const char* name) const {
    CUfunction f = nullptr;
    check(function(&f, module, name), name);
    return f;
  }
  void run(CUfunction f, const size_t (&global)[2], const size_t (&local)[2], void** arguments) const {
    check(launch(f, unsigned(global[0] / local[0]), unsigned(global[1] / local[1]), 1, unsigned(local[0]),
                 unsigned(local[1]), 1, 0, nullptr, arguments, nullptr),
          "cuLaunchKernel");
    check(synchronize(), "cuCtxSynchronize");
  }
};

std::string ptx_text() {
  std::stringstream text;
  text << std::ifstream(TS_BENCH_PTX).rdbuf();
  return text.str();
}

Driver open_driver() {
  void* handle = dlopen(TS_SOFTGPU, RTLD_NOW);
  if (!handle) fail(dlerror());
  Driver d{};
  const auto get = [&](auto& slot, const char* name) {
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(dlsym(handle, name));
    if (!slot) fail(std::string("no ") + name);
  };
  get(d.init, "cuInit");
  get(d.retain, "cuDevicePrimaryCtxRetain");
  get(d.set_current, "cuCtxSetCurrent");
  get(d.load, "cuModuleLoadData");
  get(d.function, "cuModuleGetFunction");
  get(d.allocate, "cuMemAlloc_v2");
  get(d.upload, "cuMemcpyHtoD_v2");
  get(d.download, "cuMemcpyDtoH_v2");
  get(d.launch, "cuLaunchKernel");
  get(d.synchronize, "cuCtxSynchronize");
  CUcontext context = nullptr;
  d.check(d.init(0), "cuInit");
  d.check(d.retain(&context, 0), "cuDevicePrimaryCtxRetain");
  d.check(d.set_current(context), "cuCtxSetCurrent");
  d.check(d.load(&d.module, ptx_text().c_str()), "cuModuleLoadData");
  return d;
}

// --- kernels, in turns with PoCL

struct Argument {
  int buffer = -1;  // or
  float f = 0;
  int i = 0;
  bool is_float = false;
};
struct Work {
  const char* name;
  size_t global[2], local[2];
  std::vector<Argument> arguments;
  int result;  // the buffer that is compared
};

void compare_kernels(Report& report, const std::string& only) {
  const Driver driver = open_driver();
  std::string why_not;
  const std::unique_ptr<OpenCl> opencl = OpenCl::open(&why_not);
  if (!opencl) fail("no comparison with PoCL: " + why_not);

  constexpr size_t kMany = size_t{16} << 20;
  constexpr int kEdge = 512;
  std::vector<float> data(kMany);
  for (size_t i = 0; i < kMany; ++i) data[i] = float(int(i * 2654435761u >> 20) - 2048) / 1024;
  const size_t counts[] = {kMany, kMany, kEdge * kEdge};
  CUdeviceptr device[3];
  int other[3] = {};
  for (int k = 0; k < 3; ++k) {
    driver.check(driver.allocate(&device[k], counts[k] * 4), "cuMemAlloc");
    other[k] = opencl->buffer(data.data(), counts[k] * 4);
  }
  const auto buffer = [](int k) { return Argument{.buffer = k}; };
  const auto value = [](int i) { return Argument{.i = i}; };
  const std::vector<Work> works = {
      {"saxpy", {kMany, 1}, {256, 1}, {{.f = 1.5f, .is_float = true}, buffer(0), buffer(1)}, 1},
      {"sgemm_naive", {kEdge, kEdge}, {16, 16}, {buffer(0), buffer(1), buffer(2), value(kEdge)}, 2},
      {"sgemm_tiled", {kEdge, kEdge}, {16, 16}, {buffer(0), buffer(1), buffer(2), value(kEdge)}, 2},
      {"reduction", {size_t{1} << 20, 1}, {256, 1}, {buffer(0), buffer(2)}, 2},
      {"mandelbrot", {kEdge, kEdge}, {16, 16}, {buffer(2), value(kEdge), value(kEdge), value(256)}, 2}};
  for (const Work& work : works) {
    if (!only.empty() && only != work.name) continue;
    for (int k = 0; k < 3; ++k) {
      driver.check(driver.upload(device[k], data.data(), counts[k] * 4), "cuMemcpyHtoD");
      opencl->write(other[k], data.data(), counts[k] * 4);
    }
    std::vector<void*> pointers;
    std::vector<OpenClArgument> arguments;
    for (const Argument& a : work.arguments) {
      const void* p = a.buffer >= 0 ? static_cast<const void*>(&device[a.buffer])
                      : a.is_float  ? static_cast<const void*>(&a.f)
                                    : &a.i;
      pointers.push_back(const_cast<void*>(p));
      arguments.push_back({4, p, a.buffer >= 0 ? other[a.buffer] : -1});
    }
    const CUfunction function = driver.get(work.name);
    double own = 1e30, theirs = 1e30;
    for (int round = 0; round < 11; ++round) {  // the first warms up
      uint64_t start = now_ns();
      driver.run(function, work.global, work.local, pointers.data());
      if (round) own = std::min(own, double(now_ns() - start));
      start = now_ns();
      if (!opencl->run(work.name, work.global, work.local, arguments)) exit(1);
      if (round) theirs = std::min(theirs, double(now_ns() - start));
      if (round) continue;
      const size_t n = counts[work.result];
      std::vector<float> x(n), y(n);
      driver.check(driver.download(x.data(), device[work.result], n * 4), "cuMemcpyDtoH");
      opencl->read(other[work.result], y.data(), n * 4);
      size_t wrong = 0;
      for (size_t i = 0; i < n; ++i)
        if (work.name == std::string("mandelbrot"))  // counts of iterations: contraction may shift a few
          wrong += std::memcmp(&x[i], &y[i], 4) != 0;
        else
          wrong += !(std::fabs(x[i] - y[i]) <= 1e-3f * (1 + std::fabs(y[i])));
      if (wrong * 50 > n) fail(std::string(work.name) + ": the results of the two differ");
    }
    const std::string name = std::string("softgpu.") + work.name;
    report.add(name + ".time_ms", own / 1e6);
    report.add(name + ".pocl_time_ms", theirs / 1e6);
    report.add(name + ".time_over_pocl", own / theirs);
  }
}

// --- the interpreter alone

void measure_interpreter(Report& report) {
  namespace exec = tessera::softgpu::exec;
  const std::string text = ptx_text();
  auto module = tessera::ptx::parse(text);
  if (!module.ok()) fail(module.error().text);
  exec::AllocationMap memory;
  auto program = exec::Program::load(*module, memory);
  if (!program.ok()) fail(program.error().text);
  const exec::Kernel* kernel = (*program)->kernel("sgemm_tiled");
  if (!kernel) fail("no kernel sgemm_tiled");
  constexpr int kEdge = 256;
  std::vector<float> values(3 * kEdge * kEdge, 0.5f);
  const uint64_t base = reinterpret_cast<uint64_t>(values.data());
  memory.add(base, values.size() * 4, true);
  struct {
    uint64_t a, b, c;
    int n;
  } params{base, base + kEdge * kEdge * 4, base + 2 * kEdge * kEdge * 4, kEdge};
  exec::Launch launch;
  launch.grid = {kEdge / 16, kEdge / 16, 1};
  launch.block = {16, 16, 1};
  launch.params = &params;
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    exec::Work work;
    const uint64_t start = now_ns();
    if ((*program)->run(*kernel, launch, 1, &work, nullptr, nullptr).kind != exec::FaultKind::kNone)
      fail("sgemm_tiled faults");
    best = std::max(best, double(work.warp_instructions) * 1e9 / double(now_ns() - start));
  }
  report.add("softgpu.warp_instructions_per_s_per_core", best);
}

// --- processes

// Runs this program again; its standard output as a number.
struct Child {
  pid_t pid;
  int output;
};
Child start_child(const std::vector<std::string>& arguments) {
  int ends[2];
  if (pipe(ends) != 0) fail("no pipe");
  const pid_t pid = fork();
  if (pid < 0) fail("no process");
  if (pid == 0) {
    dup2(ends[1], 1);
    close(ends[0]);
    close(ends[1]);
    std::vector<char*> argv{const_cast<char*>("/proc/self/exe")};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  return {pid, ends[0]};
}
double finish_child(const Child& child) {
  char text[64] = {};
  size_t n = 0;
  for (ssize_t got; n < sizeof text - 1 && (got = read(child.output, text + n, sizeof text - 1 - n)) > 0;)
    n += size_t(got);
  close(child.output);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (status != 0) fail("a measured process failed");
  return std::strtod(text, nullptr);
}

int first_kernel(const char* started_ns, const char* folder) {
  mkdir(folder, 0700);
  setenv("TESSERA_SOFTGPU_DIR", folder, 1);
  setenv("TESSERA_SOFTGPU_LINGER_MS", "1", 1);
  const Driver driver = open_driver();
  driver.run(driver.get("nothing"), {32, 1}, {32, 1}, nullptr);
  printf("%.6f\n", double(now_ns() - std::strtoull(started_ns, nullptr, 10)) / 1e6);
  return 0;
}

int launch_many(const char* until_ns) {
  const Driver driver = open_driver();
  const CUfunction f = driver.get("nothing");
  driver.run(f, {32, 1}, {32, 1}, nullptr);
  // All processes measure in the same stretch of time.
  while (now_ns() + 400'000'000 < std::strtoull(until_ns, nullptr, 10)) std::this_thread::yield();
  const uint64_t start = now_ns(), until = std::strtoull(until_ns, nullptr, 10);
  size_t launches = 0;
  while (now_ns() < until) {
    for (int i = 0; i < 50; ++i)
      driver.check(driver.launch(f, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
    driver.check(driver.synchronize(), "cuCtxSynchronize");
    launches += 50;
  }
  printf("%.6f\n", double(now_ns() - start) / 1e3 / double(launches));
  return 0;
}

void measure_processes(Report& report) {
  std::vector<double> startups;
  // An own folder each: the process that arbitrates the device is started too.
  std::string folder = "/tmp/bench_softgpu_XXXXXX";
  if (!mkdtemp(folder.data())) fail("no folder in /tmp");
  for (int i = 0; i < 9; ++i)
    startups.push_back(finish_child(
        start_child({"--first-kernel", std::to_string(now_ns()), folder + "/" + std::to_string(i)})));
  report.add("softgpu.startup_ms", quantile(startups, 0.5));
  std::filesystem::remove_all(folder);
  for (const int n : {1, 2, 4}) {
    std::vector<Child> children;
    const std::string until = std::to_string(now_ns() + 1'000'000'000);
    for (int k = 0; k < n; ++k) children.push_back(start_child({"--launches", until}));
    double sum = 0;
    for (const Child& child : children) sum += finish_child(child);
    report.add("softgpu.launch_us.processes_" + std::to_string(n), sum / n);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A fast modelled device, so that its time hides nothing; every core for one grid, as PoCL does.
  setenv("TESSERA_SOFTGPU_GPU", "h200", 0);
  setenv("TESSERA_SOFTGPU_GRID_THREADS",
         std::to_string(std::max(1u, std::thread::hardware_concurrency())).c_str(), 0);
  if (argc == 4 && std::string(argv[1]) == "--first-kernel") return first_kernel(argv[2], argv[3]);
  if (argc == 3 && std::string(argv[1]) == "--launches") return launch_many(argv[2]);
  Report report;
  // A device of this run's own: nobody else's programs take turns on it.
  std::string folder = "/tmp/bench_softgpu_XXXXXX";
  const bool own = !getenv("TESSERA_SOFTGPU_DIR");
  if (own) {
    if (!mkdtemp(folder.data())) fail("no folder in /tmp");
    setenv("TESSERA_SOFTGPU_DIR", folder.c_str(), 1);
    setenv("TESSERA_SOFTGPU_LINGER_MS", "100", 0);
  }
  const bool one = argc == 3 && std::string(argv[1]) == "--kernel";
  compare_kernels(report, one ? argv[2] : "");
  if (!one) {
    measure_interpreter(report);
    measure_processes(report);
  }
  report.print();
  std::error_code ignored;  // the arbiter may be leaving just now
  if (own) std::filesystem::remove_all(folder, ignored);
}
