#include "cli/run/proved_variants.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "base/user_file.h"
#include "kernels/image/code.h"
#include "kernels/image/write.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/globals.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// Each is a process of the compiler: at 10 ms these keep a file of many small kernels from taking for ever.
constexpr size_t kMostVariants =
    256;  // XLA makes one image of a program: some 40 kernels of a layer of a transformer
constexpr uint64_t kMostCompiledBytes = uint64_t(256) << 20;

// A folder for two files that is gone afterwards.
class Scratch {
 public:
  Scratch() {
    std::error_code failed;
    std::string name = (fs::temp_directory_path(failed) / "tessera-ptxas-XXXXXX").string();
    if (!failed && mkdtemp(name.data())) folder_ = name;
  }
  ~Scratch() {
    std::error_code failed;
    if (!folder_.empty()) fs::remove_all(folder_, failed);
  }
  Scratch(const Scratch&) = delete;
  bool made() const { return !folder_.empty(); }
  std::string input() const { return folder_ + "/variant.ptx"; }
  std::string output() const { return folder_ + "/variant.cubin"; }

 private:
  std::string folder_;
};

std::optional<std::string> compile(const VariantCompiler& compiler, const Scratch& scratch,
                                   const std::string& ptx) {
  if (!base::write_user_file(scratch.input(), ptx).ok()) return std::nullopt;
  std::vector<std::string> arguments = compiler.arguments;
  for (std::string& a : arguments) {
    if (a == compiler.input) a = scratch.input();
    if (a == compiler.output) a = scratch.output();
    if (const size_t equals = a.find('='); equals != a.npos && a.substr(equals + 1) == compiler.output)
      a = a.substr(0, equals + 1) + scratch.output();
  }
  const pid_t child = start(compiler.program, arguments, Output::kQuiet);
  if (child < 0 || wait_for(child) != 0) return std::nullopt;
  auto made = base::read_user_file(scratch.output(), kMostCompiledBytes);
  unlink(scratch.output().c_str());
  if (!made) return std::nullopt;
  return std::move(*made);
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A third of the size; "" if it cannot be.
std::string compressed(const std::string& cubin) {
  auto entries = image::read(bytes_of(cubin));
  if (!entries || entries->size() != 1) return {};
  (*entries)[0].compression = "zstd";
  const auto container = image::write_container(*entries);
  return container ? std::string(container->begin(), container->end()) : std::string();
}

}  // namespace

pid_t start(const std::string& program, const std::vector<std::string>& arguments, Output output) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  volatile int why = 0;
  // fork() would have the kernel copy every page that is written from here on: a millisecond of a proof.
  const pid_t child = vfork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // who ends us means the compiler
    const int nothing = output == Output::kQuiet ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    for (int fd = 0; nothing >= 0 && fd <= 2; fd++) dup2(nothing, fd);
    if (getppid() == parent) execv(program.c_str(), argv.data());
    why = errno;  // of the parent: the memory is the same
    _exit(127);
  }
  if (child < 0 || why == 0) return child;
  wait_for(child);
  errno = why;
  return -1;
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return status;
}

std::vector<CompiledVariant> compile_variants(std::string_view ptx, const VariantCompiler& compiler) {
  std::vector<CompiledVariant> out;
  const auto module = ptx::parse(ptx);
  const Scratch scratch;
  if (!module || !scratch.made()) return out;
  const slice::ModuleGlobals globals(*module);
  const slice::Options options{.allow_order_dependent = true};  // the program that runs says whether
  size_t compiled = 0;
  for (const slice::KernelReport& k : slice::analyse(*module, options)) {
    CompiledVariant& v = out.emplace_back();
    v.kernel = k.kernel;
    const slice::PassedGlobals passed = globals.passed(k.kernel);
    if (!k.verdict.may_cut())
      v.why_not = std::string(slice::refusal_name(k.verdict.refusal)) + ": " + k.verdict.detail;
    else if (!passed.possible())
      v.why_not = std::string(slice::obstacle_name(passed.obstacle)) + ": " + passed.detail;
    else if (compiled == kMostVariants)
      v.why_not = "more than " + std::to_string(kMostVariants) + " kernels in one image";
    if (!v.why_not.empty()) continue;
    compiled++;
    ptx::Module copy = slice::part_of(*module, k.kernel);
    const slice::KernelReport made = slice::make_sibling(copy, k.kernel, passed, options);
    v.parameters = {made.origin_offset, passed.offset, {}};
    for (const slice::PassedVariable& variable : passed.passed)
      v.parameters.variables.push_back(variable.name);
    const std::string text = ptx::print(copy);
    v.text = cache::text_key(text);
    auto code = compile(compiler, scratch, text);
    if (code)
      v.code = std::move(*code);
    else
      v.why_not = "the compiler does not take the variant";
  }
  return out;
}

ProvedSet prove_variants(std::span<const uint8_t> code, std::vector<CompiledVariant> compiled,
                         size_t most_bytes) {
  ProvedSet out;
  size_t kept_bytes = 0;
  for (CompiledVariant& v : compiled) {
    const auto original = image::kernel_code(code, v.kernel);
    if (!original) continue;
    std::string why_not = std::move(v.why_not);
    if (why_not.empty()) {
      const auto variant = image::kernel_code(bytes_of(v.code), v.kernel + slice::kVariantSuffix);
      why_not = variant ? sass::prove(*original, *variant, v.parameters).difference : variant.error().text;
    }
    if (why_not.empty()) v.code = compressed(v.code);
    if (why_not.empty() && (v.code.empty() || kept_bytes + v.code.size() > most_bytes))
      why_not = "no room beside the machine code";
    out.kernels.push_back({v.kernel, why_not});
    if (!why_not.empty()) continue;
    kept_bytes += v.code.size();
    out.variants.push_back({std::move(v.kernel), v.text, std::move(v.code)});
  }
  return out;
}

}  // namespace tessera::cli
