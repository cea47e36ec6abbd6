// Measures the addition of libtessera_ops.so to one call of a cuBLAS that does nothing (tests/loader), outermost and single:
//   bare          nothing is preloaded
//   alone         without libtessera.so
//   protected     both, attached at level 5
//   best_effort   both, attached at level 0: the note is written
//   counted       into the table of `tessera profile`
// and to a call of a cuBLASLt that does nothing, with descriptors of the toolkit's library, if there is one:
//   lt_seen       the same descriptors again and again
//   lt_fresh      of a shape that was never seen, every time
// and to cublasSetStream_v2, which is followed:
//   stream        attached at level 0
//   stream_split  the same, where calls are split
// Each regime is its own process (this program again, with --measure).
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_api/cuda.h"
#include "operations/table.h"
#include "tests/bench/timing.h"

extern "C" int cublasSgemm_v2(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                              const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
                              int ldc);

extern "C" int cublasSetStream_v2(void* handle, void* stream);
using P = const void*;
extern "C" int cublasLtMatmul(P handle, P matmul, P alpha, P a, P a_layout, P b, P b_layout, P beta, P c,
                              P c_layout, void* d, P d_layout, P algorithm, void* workspace, size_t bytes,
                              P stream);
extern "C" int cublasLtMatrixLayoutInit_internal(void* to, size_t bytes, int type, uint64_t rows,
                                                 uint64_t columns, int64_t leading);
extern "C" int cublasLtMatmulDescInit_internal(void* to, size_t bytes, int compute_type, int scale_type);

namespace {

using tessera::bench::per_call_ns;
using tessera::bench::quantile;
using Variables = std::vector<std::pair<std::string, std::string>>;

std::string g_self;

constexpr size_t kBatches = 400, kCalls = 2'500;

template <class Call>
int print_time(const Call& call) {
  for (int i = 0; i < 20'000; i++) call();
  printf("%.3f\n", quantile(per_call_ns(kBatches, kCalls, call), 0.5));
  return 0;
}

int measure_gemm() {
  void* const handle = &g_self;
  const float one = 1;
  float c = 0;
  return print_time(
      [&] { cublasSgemm_v2(handle, 0, 0, 512, 512, 512, &one, &one, 512, &one, 512, &one, &c, 512); });
}

int measure_stream() {
  return print_time([] { cublasSetStream_v2(&g_self, &g_self); });
}

// The layout of D is made anew for every call.
int measure_matmul(bool fresh) {
  constexpr int kF16 = 2, kF32 = 0, kComputeIn32F = 68;
  uint64_t a[8], b[8], d[8], matmul[32], rows = 512;
  float number = 1;
  if (cublasLtMatrixLayoutInit_internal(a, sizeof a, kF16, 512, 512, 512) != 0 ||
      cublasLtMatrixLayoutInit_internal(b, sizeof b, kF16, 512, 512, 512) != 0 ||
      cublasLtMatmulDescInit_internal(matmul, sizeof matmul, kComputeIn32F, kF32) != 0)
    return 1;
  return print_time([&] {
    cublasLtMatrixLayoutInit_internal(d, sizeof d, kF16, rows, 512, 512);
    if (fresh) rows++;
    cublasLtMatmul(&g_self, matmul, &number, &number, a, &number, b, &number, &number, d, &number, d, nullptr,
                   nullptr, 0, nullptr);
  });
}

// Prints the median over batches, ns per call.
int measure(bool attach, const std::string& what) {
  if (attach) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto get = [&](const char* name) { return driver ? dlsym(driver, name) : nullptr; };
    const auto init = reinterpret_cast<decltype(&cuInit)>(get("cuInit"));
    const auto retain =
        reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(get("cuDevicePrimaryCtxRetain"));
    CUcontext context = nullptr;
    if (!init || !retain || init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS) return 1;
    usleep(1'500'000);  // the helper attaches in the background
  }
  if (what == "gemm") return measure_gemm();
  return what == "stream" ? measure_stream() : measure_matmul(what == "lt_fresh");
}

pid_t spawn(const std::vector<std::string>& arguments, const Variables& variables, int output,
            int errors = 2) {
  const pid_t child = fork();
  if (child != 0) return child;
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  dup2(output, 1);
  dup2(errors, 2);
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(words[0], words.data());
  _exit(127);
}

double run(const Variables& variables, bool attach, const char* what = "gemm") {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) exit(1);
  const pid_t child = spawn({g_self, "--measure", attach ? "attach" : "", what}, variables, out[1]);
  close(out[1]);
  char text[64] = {};
  const ssize_t n = read(out[0], text, sizeof text - 1);
  close(out[0]);
  int status = 0;
  waitpid(child, &status, 0);
  double ns = 0;
  if (n <= 0 || status != 0 || sscanf(text, "%lf", &ns) != 1) {
    fprintf(stderr, "bench_operations: a measuring process failed\n");
    exit(1);
  }
  return ns;
}

bool make_table(const std::string& path) {
  tessera::operations::TableHeader header{};
  memcpy(header.magic, tessera::operations::kTableMagic, sizeof header.magic);
  header.version = tessera::operations::kTableVersion;
  header.slots = tessera::operations::kTableSlots;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  const bool made = fd >= 0 && write(fd, &header, sizeof header) == ssize_t(sizeof header) &&
                    ftruncate(fd, off_t(tessera::operations::kTableBytes)) == 0;
  close(fd);
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && !strcmp(argv[1], "--measure")) return measure(argv[2][0] != 0, argv[3]);
  char self[4096] = {}, folder[] = "/tmp/tessera-bench-XXXXXX";
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0 || !mkdtemp(folder)) return 1;
  g_self = self;
  const std::string socket = std::string(folder) + "/tesserad.sock", table = std::string(folder) + "/table";
  if (!make_table(table)) return 1;
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  const pid_t daemon = spawn({TS_DAEMON, "--socket", socket, "--foreground"}, {}, nowhere, nowhere);
  for (int i = 0; i < 200 && access(socket.c_str(), F_OK) != 0; i++) usleep(10'000);

  const auto client = [&](const char* priority) {
    return Variables{{"LD_PRELOAD", TS_SHIM ":" TS_OPS},
                     {"TESSERA_DRIVER", TS_NULL_DRIVER},
                     {"TESSERA_SOCKET", socket},
                     {"TESSERA_PRIORITY", priority}};
  };
  const struct {
    const char* name;
    Variables variables;
    bool attach;
  } regimes[] = {{"bare", {}, false},
                 {"alone", {{"LD_PRELOAD", TS_OPS}}, false},
                 {"protected", client("high"), true},
                 {"best_effort", client("best-effort"), true},
                 {"counted", {{"LD_PRELOAD", TS_OPS}, {"TESSERA_OPERATIONS_TABLE", table}}, false}};
  double best[std::size(regimes)];
  for (double& ns : best) ns = 1e9;
  // Three interleaved rounds, the best of each: the machine has other work.
  for (int round = 0; round < 3; round++)
    for (size_t i = 0; i < std::size(regimes); i++)
      best[i] = std::min(best[i], run(regimes[i].variables, regimes[i].attach));
  Variables splitting = client("best-effort");
  splitting.emplace_back("TESSERA_SPLIT_OPERATIONS", "1");
  const struct {
    const char *name, *what;
    Variables variables;
  } others[] = {{"lt_seen", "lt_seen", client("best-effort")},
                {"lt_fresh", "lt_fresh", client("best-effort")},
                {"stream", "stream", client("best-effort")},
                {"stream_split", "stream", splitting}};
  double added[std::size(others)];
  for (size_t i = 0; i < std::size(others); i++) {
    double bare_ns = 1e9, told_ns = 1e9;
    for (int round = 0; round < 3; round++) {
      bare_ns = std::min(bare_ns, run({}, false, others[i].what));
      told_ns = std::min(told_ns, run(others[i].variables, true, others[i].what));
    }
    added[i] = told_ns - bare_ns;
  }
  tessera::bench::Report report;
  report.add("operations.bare_ns", best[0]);
  for (size_t i = 1; i < std::size(regimes); i++)
    report.add(std::string("operations.") + regimes[i].name + "_added_ns", best[i] - best[0]);
  for (size_t i = 0; i < std::size(others); i++)
    report.add(std::string("operations.") + others[i].name + "_added_ns", added[i]);
  kill(daemon, SIGTERM);
  waitpid(daemon, nullptr, 0);
  unlink(socket.c_str());
  unlink(table.c_str());
  rmdir(folder);
  report.print();
  return 0;
}
