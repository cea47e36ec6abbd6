// Measures the cost of libtessera_audit.so: a process from start to end, with the preload libraries and with the audit
// library beside them (processor time, which other work stretches less than wall time), and one call of a cuBLAS that
// does nothing (tests/loader):
//   call            linked with it, nothing is preloaded
//   call_audited    the same with the audit library: the loader's address is the same
//   hook            linked with it, through libtessera_ops.so
//   bound_hook      looked up by dlsym, through libtessera_ops.so by the audit library
// Each is its own process, by turns; a ratio is of two neighbours, and the report has its median and spread.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "tests/bench/timing.h"

extern "C" int cublasSgemm_v2(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                              const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
                              int ldc);

namespace {

using tessera::bench::per_call_ns;
using tessera::bench::quantile;
using Words = std::vector<std::string>;

constexpr int kStarts = 60, kCallRounds = 21;
const std::string kPreload = "LD_PRELOAD=" TS_SHIM ":" TS_OPS, kOperations = "LD_PRELOAD=" TS_OPS,
                  kAudit = "LD_AUDIT=" TS_AUDIT,
                  kReserve = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384";

// Prints the median over batches, ns per call.
int measure(bool looked_up) {
  auto* function = &cublasSgemm_v2;
  if (looked_up) {
    void* library = dlopen("libcublas.so.13", RTLD_NOW);
    function = library ? reinterpret_cast<decltype(function)>(dlsym(library, "cublasSgemm_v2")) : nullptr;
    if (!function) return 1;
  }
  const float one = 1;
  float c = 0;
  const auto call = [&] { function(&c, 0, 0, 512, 512, 512, &one, &one, 512, &one, 512, &one, &c, 512); };
  for (int i = 0; i < 20'000; i++) call();
  printf("%.3f\n", quantile(per_call_ns(400, 2'500, call), 0.5));
  return 0;
}

double microseconds(const timeval& time) {
  return double(time.tv_sec) * 1e6 + double(time.tv_usec);
}

// Standard output goes to `output`. False: the program failed.
bool run(const Words& words, const Words& environment, int output, double* spent_us = nullptr) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    dup2(output, 1);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  rusage used{};
  if (wait4(child, &status, 0, &used) != child || status != 0) return false;
  if (spent_us) *spent_us = microseconds(used.ru_utime) + microseconds(used.ru_stime);
  return true;
}

using Figures = std::map<std::string, std::vector<double>>;

// Results of one round that are compared: with the audit library, and without.
constexpr struct {
  const char *name, *with, *without;
} kPairs[] = {{"start_true", "start_true_audited_us", "start_true_us"},
              {"start_python", "start_python_audited_us", "start_python_us"},
              {"call", "call_audited_ns", "call_ns"},
              {"hook", "bound_hook_ns", "hook_ns"}};

void report_ratios(const Figures& figures, tessera::bench::Report* report) {
  for (const auto& [name, with, without] : kPairs) {
    const auto &x = figures.at(with), &y = figures.at(without);
    std::vector<double> ratios, added;
    for (size_t i = 0; i < x.size(); i++) {
      ratios.push_back(x[i] / y[i]);
      added.push_back(x[i] - y[i]);
    }
    const std::string prefix = std::string("audit.") + name;
    report->add(prefix + "_ratio", quantile(ratios, 0.5));
    report->add(prefix + "_ratio_p25", quantile(ratios, 0.25));
    report->add(prefix + "_ratio_p75", quantile(ratios, 0.75));
    report->add(prefix + "_added", quantile(added, 0.5));
  }
}

// Microseconds of processors that whole processes take.
bool time_starts(const std::string& name, const Words& words, Figures* out) {
  const std::pair<const char*, Words> regimes[] = {{"_us", {kPreload}},
                                                   {"_audited_us", {kPreload, kAudit, kReserve}}};
  const int nowhere = open("/dev/null", O_WRONLY);
  for (int i = 0; i < kStarts; i++)
    for (const auto& [regime, environment] : regimes) {
      double spent_us = 0;
      if (!run(words, environment, nowhere, &spent_us)) return false;
      (*out)["start_" + name + regime].push_back(spent_us);
    }
  return close(nowhere) == 0;
}

// Nanoseconds of a call, as the process itself tells.
bool time_calls(Figures* out) {
  const struct {
    const char *name, *way;
    Words environment;
  } regimes[] = {{"call_ns", "linked", {}},
                 {"call_audited_ns", "linked", {kAudit}},
                 {"hook_ns", "linked", {kOperations}},
                 {"bound_hook_ns", "looked_up", {kOperations, kAudit}}};
  for (int round = 0; round < kCallRounds; round++)
    for (const auto& [name, way, environment] : regimes) {
      int ends[2];
      char text[32] = {};
      if (pipe(ends) != 0 || !run({"/proc/self/exe", "--measure", way}, environment, ends[1])) return false;
      if (read(ends[0], text, sizeof text - 1) <= 0) return false;
      close(ends[0]);
      close(ends[1]);
      (*out)[name].push_back(atof(text));
    }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "--measure") == 0) return measure(strcmp(argv[2], "looked_up") == 0);
  unsetenv("LD_PRELOAD");
  unsetenv("LD_AUDIT");
  Figures figures;
  if (!time_starts("true", {"true"}, &figures) ||
      !time_starts("python", {"python3", "-c", "import ctypes"}, &figures) || !time_calls(&figures)) {
    fprintf(stderr, "bench_audit: a measured process failed\n");
    return 1;
  }
  tessera::bench::Report report;
  for (const auto& [name, values] : figures) report.add("audit." + name, quantile(values, 0.5));
  report_ratios(figures, &report);
  report.print();
  return 0;
}
