#include "cli/run/ptxas.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "base/user_file.h"
#include "cli/run/keep_ptx.h"
#include "cli/run/proved_variants.h"
#include "kernels/image/origin.h"
#include "kernels/image/write.h"

namespace tessera::cli {
namespace {

constexpr const char* kRunning = "TESSERA_PTXAS_RUNNING";  // set for the real one: it must not be us again
// For the compiler's memory, where the system has them for who asks: its page faults are a fifth of the time of a small kernel.
constexpr const char* kHugePages = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=33554432";
constexpr int kNotFound = 127;
constexpr uint64_t kMostBytes = uint64_t(1) << 30;  // of a file that is kept; no compiler writes as much

std::optional<Bytes> read_file(const std::string& path) {
  const auto text = base::read_user_file(path, kMostBytes);  // not a pipe: it is read once
  if (!text) return std::nullopt;
  return Bytes(text->begin(), text->end());
}

bool is_ptx_file(const std::string& path) {
  const auto bytes = read_file(path);
  if (!bytes) return false;
  const auto entries = image::list(*bytes);
  return entries && entries->size() == 1 && (*entries)[0].kind == image::EntryKind::kPtx;
}

// In place, as ptxas itself writes: who has the file open sees it.
base::Status overwrite(const std::string& path, const Bytes& bytes) {
  return base::write_user_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::vector<char*> argv_of(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  return argv;
}

int cannot_run(const std::string& program) {
  fprintf(stderr, "tessera ptxas: %s: %s\n", program.c_str(), strerror(errno));
  return kNotFound;
}

// The caller sees how the real one ended, signals included.
int end_like(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);  // the real one has left its own
  signal(WTERMSIG(status), SIG_DFL);
  raise(WTERMSIG(status));
  return 128 + WTERMSIG(status);
}

// Proved variants as far as they leave the file at most twice as large: they are written as text, a third longer.
std::string with_variants(const Bytes& code, const std::string& ptx, std::vector<CompiledVariant> compiled) {
  std::string machine_code(code.begin(), code.end());
  machine_code.resize((machine_code.size() + 7) & ~size_t{7});  // as it comes out of a container
  const ProvedSet proved = prove_variants(code, std::move(compiled), (code.size() + ptx.size()) / 4 * 3);
  if (proved.variants.empty()) return ptx;
  return cache::with_proved(ptx, cache::proved_key(machine_code), proved.variants);
}

// Machine code that gets no PTX is as good as without us: not said, standard error is the real one's.
void add_ptx(const PtxasFiles& files, const Bytes& ptx, std::vector<CompiledVariant> compiled) {
  const auto code = read_file(files.output);
  if (!code) return;
  auto both = with_ptx(*code, ptx, files.options);
  if (!both) return;
  const std::string text = with_variants(*code, std::string(ptx.begin(), ptx.end()), std::move(compiled));
  if (text.size() != ptx.size()) both = with_ptx(*code, Bytes(text.begin(), text.end()), files.options);
  if (!both) return;
  const base::Status written = overwrite(files.output, *both);
  if (written.ok()) return;
  fprintf(stderr, "tessera ptxas: %s; it stays without PTX\n", written.error().text.c_str());
  if (!overwrite(files.output, *code).ok()) unlink(files.output.c_str());
}

// nvcc exports this to what it starts (`nvcc --dryrun` shows it). It puts machine code into fat binaries itself
// and wants nothing else; whoever calls nvcc has -gencode for PTX.
bool called_by_nvcc() {
  return getenv("_NVVM_BRANCH_") != nullptr;
}

bool has_one_core() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) == 1;
}

}  // namespace

// The value of an option in any of ptxas's spellings: --NAME VALUE, --NAME=VALUE, -SHORT VALUE, -SHORT=VALUE, and -O2.
static std::string value_of(const std::vector<std::string>& arguments, const std::string& name,
                            const std::string& short_name) {
  std::string value;
  for (size_t i = 0; i < arguments.size(); i++)
    for (const std::string& option : {"--" + name, "-" + short_name}) {
      if (!arguments[i].starts_with(option)) continue;
      const std::string rest = arguments[i].substr(option.size());
      if (rest.empty() && i + 1 < arguments.size())
        value = arguments[i + 1];
      else if (rest.starts_with("="))
        value = rest.substr(1);
      else if (short_name.size() == 1)
        value = rest;
    }
  return value;
}

// As nvcc writes them: what fuses products and sums, or leaves them as they are.
static std::string code_options(const std::vector<std::string>& arguments) {
  std::string out;
  if (value_of(arguments, "fmad", "fmad") == "false") out += " --fmad false ";
  if (const std::string level = value_of(arguments, "opt-level", "O"); !level.empty() && level != "3")
    out += "-O" + level + "  ";
  return out;
}

std::optional<PtxasFiles> ptxas_files(const std::vector<std::string>& arguments) {
  PtxasFiles out;
  for (size_t i = 0; i < arguments.size(); i++) {
    const std::string& a = arguments[i];
    if (a == "-optf" || a.starts_with("--options-file") || a.starts_with("-optf=")) return std::nullopt;
    for (const std::string option : {"-o", "--output-file"}) {
      if (a.starts_with(option + "=")) out.output = a.substr(option.size() + 1);
      if (a == option && i + 1 < arguments.size()) out.output = arguments[i + 1];
    }
    if (a.empty() || a[0] == '-' || a == out.output || !is_ptx_file(a)) continue;
    if (!out.input.empty()) return std::nullopt;
    out.input = a;
  }
  if (out.input.empty() || out.output.empty()) return std::nullopt;
  out.options = code_options(arguments);
  return out;
}

base::Result<Bytes> with_ptx(std::span<const uint8_t> code, std::span<const uint8_t> ptx,
                             const std::string& options) {
  auto codes = image::read(code), texts = image::read(ptx);
  if (!codes) return codes.error();
  if (!texts) return texts.error();
  const auto is_one = [](const std::vector<image::LoadedEntry>& entries, image::EntryKind kind) {
    return entries.size() == 1 && entries[0].kind == kind;
  };
  if (!is_one(*codes, image::EntryKind::kCubin) || !is_one(*texts, image::EntryKind::kPtx))
    return base::error(base::Code::kInvalid, "not one piece of machine code and one of PTX");
  if ((*codes)[0].relocatable) return base::error(base::Code::kInvalid, "machine code that is not linked");
  if (image::source_of({(*texts)[0]}, (*codes)[0], (*codes)[0].payload) == nullptr)
    return base::error(base::Code::kInvalid, "machine code of another virtual architecture");
  (*texts)[0].options = options;
  const image::LoadedEntry both[] = {std::move((*codes)[0]), std::move((*texts)[0])};
  return image::write_container(both);
}

int ptxas(const std::string& called_as, const std::vector<std::string>& arguments) {
  if (getenv(kRunning) != nullptr) {
    fprintf(stderr, "tessera ptxas: it would call itself; set TESSERA_PTXAS to NVIDIA's ptxas\n");
    return kNotFound;
  }
  const auto real = find_ptxas(called_as);
  if (!real) {
    fprintf(stderr, "tessera ptxas: %s\n", real.error().text.c_str());
    return kNotFound;
  }
  setenv(kRunning, "1", 1);
  const auto files = called_by_nvcc() ? std::nullopt : ptxas_files(arguments);
  const auto ptx = files ? read_file(files->input) : std::nullopt;  // the caller may remove it meanwhile
  if (!ptx) {
    std::vector<char*> argv = argv_of(*real, arguments);
    execv(real->c_str(), argv.data());
    return cannot_run(*real);
  }
  setenv("GLIBC_TUNABLES", kHugePages, 0);
  // Both compilations at once, if there is a core for each: on one core they would only push each other out of its caches.
  const pid_t own = start(*real, arguments, Output::kShown);
  if (own < 0) return cannot_run(*real);
  std::optional<int> status;
  if (has_one_core()) status = wait_for(own);
  std::vector<CompiledVariant> compiled;
  if (!status || *status == 0)
    compiled = compile_variants({reinterpret_cast<const char*>(ptx->data()), ptx->size()},
                                {*real, arguments, files->input, files->output});
  if (!status) status = wait_for(own);
  if (*status == 0) add_ptx(*files, *ptx, std::move(compiled));
  return end_like(*status);
}

}  // namespace tessera::cli
