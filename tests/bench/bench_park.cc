// Leaving the GPU and coming back: a program with 256 MiB on the software GPU, the preload library and a daemon.
//   memory.park_gib_per_s               from the helper's first step until the memory is off the GPU
//   memory.unpark_to_first_kernel_ms    from the launch that finds the program parked to the end of its kernel
//   memory.service_waits_over_link      how long an allocation of a protected service waits for the memory of the program, which is
//                                       idle ([park]), over the time that the link takes for it
// The modelled link moves 0.3725 GiB/s (profiles/gpus/test4.toml): 671 ms each way. What is slower is Tessera's, or the machine is
// slower than that link.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "driver_api/cuda.h"
#include "ipc/channel/client.h"
#include "tests/bench/timing.h"
#include "tests/support/eventually.h"

namespace {

using namespace tessera;

constexpr size_t kBytes = 256 * base::kMiB;
constexpr int kRounds = 5;
constexpr size_t kOfService = 1800 * base::kMiB;  // of the GPU's 2 GiB: it does not fit beside the program
constexpr double kLinkBytesPerNs = 0.4;           // profiles/gpus/test4.toml
constexpr useconds_t kIdleUs = 2'500'000;  // the configuration's second, and the one that the daemon adds
constexpr char kPtx[] = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .entry nothing()
{
  ret;
}
)";

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "bench_park: %s\n", what.c_str());
  exit(1);
}

template <class F>
F* find(void* library, const char* name) {
  auto* function = reinterpret_cast<F*>(dlsym(library, name));
  return function ? function : (fail(name), nullptr);
}
void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(std::string(what) + " answers " + std::to_string(result));
}

// The driver, with a context that is current.
void* begin(const char* library) {
  void* cuda = dlopen(library, RTLD_NOW);
  if (!cuda) fail(dlerror());
  CUcontext context = nullptr;
  check(find<decltype(cuInit)>(cuda, "cuInit")(0), "cuInit");
  check(find<decltype(cuDevicePrimaryCtxRetain)>(cuda, "cuDevicePrimaryCtxRetain")(&context, 0), "retain");
  check(find<decltype(cuCtxSetCurrent)>(cuda, "cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  return cuda;
}

nlohmann::json client(const std::string& socket, pid_t pid) {
  const auto text = ipc::query(socket);
  if (!text.ok()) return {};
  const auto answer = nlohmann::json::parse(*text);
  for (const auto& client : answer["clients"])
    if (client.value("pid", 0) == pid) return client;
  return {};
}

// One allocation of a client, whose nanoseconds go to its standard output.
int service(const char* library) {
  void* cuda = begin(library);
  CUdeviceptr memory = 0;
  const auto allocate = find<decltype(cuMemAlloc_v2)>(cuda, "cuMemAlloc_v2");
  check(allocate(&memory, base::kMiB), "cuMemAlloc");
  if (!test::eventually([] { return client(getenv("TESSERA_SOCKET"), getpid()).is_object(); }))
    fail("the service is no client");
  const uint64_t start_ns = base::now_ns();
  check(allocate(&memory, kOfService), "cuMemAlloc");
  const uint64_t took_ns = base::now_ns() - start_ns;
  return write(STDOUT_FILENO, &took_ns, sizeof took_ns) == sizeof took_ns ? 0 : 1;
}

// Launches and waits for each byte on its standard input, and writes how many nanoseconds that took.
int program(const char* library) {
  void* cuda = begin(library);
  CUmodule module = nullptr;
  CUfunction nothing = nullptr;
  CUdeviceptr memory = 0;
  const auto launch = find<decltype(cuLaunchKernel)>(cuda, "cuLaunchKernel");
  const auto synchronize = find<decltype(cuCtxSynchronize)>(cuda, "cuCtxSynchronize");
  check(find<decltype(cuModuleLoadData)>(cuda, "cuModuleLoadData")(&module, kPtx), "cuModuleLoadData");
  check(find<decltype(cuModuleGetFunction)>(cuda, "cuModuleGetFunction")(&nothing, module, "nothing"),
        "cuModuleGetFunction");
  check(find<decltype(cuMemAlloc_v2)>(cuda, "cuMemAlloc_v2")(&memory, kBytes), "cuMemAlloc");
  check(find<decltype(cuMemsetD8_v2)>(cuda, "cuMemsetD8_v2")(memory, 1, kBytes), "cuMemsetD8");
  char order = 0;
  do {
    const uint64_t start_ns = base::now_ns();
    check(launch(nothing, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
    check(synchronize(), "cuCtxSynchronize");
    const uint64_t took_ns = base::now_ns() - start_ns;
    if (write(STDOUT_FILENO, &took_ns, sizeof took_ns) != sizeof took_ns) return 1;
  } while (read(STDIN_FILENO, &order, 1) == 1);
  return 0;
}

// This program, or another one; it ends with this one.
pid_t start(const std::vector<std::string>& arguments, int in, int out) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (in >= 0) dup2(in, STDIN_FILENO);
  if (out >= 0) dup2(out, STDOUT_FILENO);
  std::vector<char*> argv;
  for (const auto& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

struct Parked {
  uint64_t bytes = 0, park_ns = 0;
};
Parked park(const std::string& socket, pid_t pid) {
  ipc::abi::Control request{};
  request.action = ipc::abi::kControlPark;
  request.pid = uint32_t(pid);
  if (const auto asked = ipc::control(ipc::control_socket_path(socket), request); !asked.ok())
    fail(asked.error().text);
  Parked out;
  std::string last;
  const bool done = test::eventually([&] {
    const auto row = client(socket, pid);
    const auto p = row.is_object() ? row["park"] : nlohmann::json::object();
    last = p.dump();
    out = {p.value("bytes", uint64_t(0)), p.value("park_ns", uint64_t(0))};
    return p.value("state", "") == "parked";
  });
  if (!done) fail("the program was not parked: " + last);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && !strcmp(argv[1], "--program")) return program(argv[2]);
  if (argc == 3 && !strcmp(argv[1], "--service")) return service(argv[2]);
  char folder[] = "/tmp/tessera-bench-XXXXXX";
  if (!mkdtemp(folder)) return 1;
  const std::string socket = std::string(folder) + "/d.sock", gpu = std::string(folder) + "/gpu";
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::string>>{{"TESSERA_SOCKET", socket},
                                                                  {"TESSERA_DRIVER", TS_SOFTGPU},
                                                                  {"TESSERA_PARKABLE", "1"},
                                                                  {"TESSERA_SOFTGPU_DIR", gpu}})
    setenv(name, value.c_str(), 1);
  const std::string config = std::string(folder) + "/d.toml";
  std::ofstream(config) << "[park]\nidle_s = 1\n";
  const pid_t daemon = start({TS_DAEMON, "--socket", socket, "--config", config}, -1, STDERR_FILENO);
  if (!test::eventually([&] { return ipc::query(socket).ok(); })) fail("no daemon");
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return 1;
  const pid_t trainer = start({"/proc/self/exe", "--program", TS_SHIM}, to[0], from[1]);
  close(from[1]);
  const auto nanoseconds = [](int said) {
    uint64_t ns = 0;
    if (read(said, &ns, sizeof ns) != sizeof ns) fail("the program ended");
    return ns;
  };
  const auto launched_ns = [&] { return nanoseconds(from[0]); };
  (void)launched_ns();
  std::vector<double> gib_per_s, first_kernel_ms;
  for (int round = 0; round < kRounds; ++round) {
    const Parked parked = park(socket, trainer);
    gib_per_s.push_back(double(parked.bytes) / double(1024 * base::kMiB) / (double(parked.park_ns) / 1e9));
    if (write(to[1], "!", 1) != 1) return 1;
    first_kernel_ms.push_back(double(launched_ns()) / 1e6);
  }
  setenv("TESSERA_PRIORITY", "1", 1);
  setenv("TESSERA_MEMORY_WAIT_MS", "600000", 1);
  unsetenv("TESSERA_PARKABLE");
  std::vector<double> over_link;
  for (int round = 0; round < kRounds; ++round) {
    usleep(kIdleUs);
    int said[2];
    if (pipe2(said, O_CLOEXEC) != 0) return 1;
    const pid_t one = start({"/proc/self/exe", "--service", TS_SHIM}, -1, said[1]);
    close(said[1]);
    over_link.push_back(double(nanoseconds(said[0])) * kLinkBytesPerNs / double(kBytes));
    close(said[0]);
    waitpid(one, nullptr, 0);
    if (write(to[1], "!", 1) != 1) return 1;
    (void)launched_ns();
  }
  for (const pid_t child : {trainer, daemon}) {
    kill(child, SIGTERM);
    waitpid(child, nullptr, 0);
  }
  std::filesystem::remove_all(folder);
  bench::Report report;
  report.add("memory.park_gib_per_s", bench::quantile(gib_per_s, 0.5));
  report.add("memory.unpark_to_first_kernel_ms", bench::quantile(first_kernel_ms, 0.5));
  report.add("memory.service_waits_over_link", bench::quantile(over_link, 0.5));
  report.print();
}
