#include "cli/measure/profile.h"

#include <cxxabi.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/printable.h"
#include "base/scoped_fd.h"
#include "cli/demo/measure.h"
#include "cli/demo/process.h"
#include "cli/look/client_table.h"
#include "cli/measure/gpus.h"
#include "cli/measure/profile_operations.h"
#include "cli/run/layout.h"
#include "cli/run/mps.h"
#include "cli/run/run.h"
#include "profiles/collector/collector.h"
#include "profiles/folders.h"
#include "profiles/images.h"
#include "profiles/profile_file.h"

namespace tessera::cli {
namespace {

using base::Code;
using profiles::KernelKey;
using profiles::KernelProfile;

constexpr int kNothingLearnt = 3;
constexpr double kPatienceSeconds = 10;   // between SIGTERM and SIGKILL
constexpr double kNeighbourSeconds = 60;  // until its kernels run
constexpr char kSoftDriver[] = "software GPU";

// ---- traces

// One line of a trace by column name; remembers the first cell that is no number.
class Line {
 public:
  Line(const std::vector<std::string>& columns, const std::vector<std::string>& cells)
      : columns_(columns), cells_(cells) {}
  const std::string& text(const char* column) const {
    const auto found = std::find(columns_.begin(), columns_.end(), column);
    if (found != columns_.end()) return cells_[size_t(found - columns_.begin())];
    bad_ = std::string("there is no column '") + column + "' (written by an older release?)";
    static const std::string nothing;
    return nothing;
  }
  bool has(const char* column) const {
    return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
  }
  double real(const char* column) const {
    const std::string& cell = text(column);
    char* end = nullptr;
    const double value = strtod(cell.c_str(), &end);
    if (bad_.empty() && (cell.empty() || *end || !(value >= 0 && value < 1e18)))
      bad_ = std::string("'") + cell + "' in column '" + column + "' is no usable number";
    return value;
  }
  uint64_t whole(const char* column, int base = 10) const {
    const std::string& cell = text(column);
    char* end = nullptr;
    errno = 0;
    const uint64_t value = strtoull(cell.c_str(), &end, base);
    if (bad_.empty() && (cell.empty() || *end || errno || cell[0] == '-'))
      bad_ = std::string("'") + cell + "' in column '" + column + "' is no whole number";
    return value;
  }
  const std::string& bad() const { return bad_; }

 private:
  const std::vector<std::string>& columns_;
  const std::vector<std::string>& cells_;
  mutable std::string bad_;
};

// A launch as the collector takes it; false: it failed or got no modelled time.
bool kernel_of(const Line& line, profiles::Activity& out) {
  out.kind = profiles::ActivityKind::kKernel;
  out.start_ns = line.whole("start_ns");
  out.end_ns = line.whole("end_ns");
  out.n_blocks = line.whole("blocks");
  const int code = int(line.whole("code"));
  out.image_hash = line.whole("image_hash", 16);
  if (line.has("tag")) out.tag = line.whole("tag");  // not in traces of older releases
  out.name = line.text("name");
  const char* const sides[] = {"block_x", "block_y", "block_z"};
  for (int i = 0; i < 3; ++i) out.block[i] = uint32_t(line.whole(sides[i]));
  out.registers_per_thread = uint32_t(line.whole("registers_per_thread"));
  out.dynamic_shared_bytes = uint32_t(line.whole("dynamic_shared_bytes"));
  const uint32_t shared = uint32_t(line.whole("shared_bytes_per_block"));
  out.static_shared_bytes = shared - std::min(shared, out.dynamic_shared_bytes);
  const double blocks = double(out.n_blocks);
  out.counted = true;
  out.memory_bytes = line.real("global_bytes_per_block") * blocks;
  out.warp_instructions = line.real("warp_instructions_per_block") * blocks;
  for (const char* pipe : {"fp64", "fp32", "fp16", "tensor"}) {
    const double n = line.real((std::string(pipe) + "_operations_per_block").c_str()) * blocks;
    if (n > 0) out.operations[pipe] = n;
  }
  return line.bad().empty() && code == 0 && out.end_ns > out.start_ns;
}

// ---- printing

std::string readable(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), free);
  std::string name = base::printable(status == 0 && text ? text.get() : symbol);
  if (const size_t arguments = name.find('('); arguments > 0 && name.compare(0, 1, "(") != 0)
    name.resize(std::min(name.size(), arguments));
  constexpr char kAnonymous[] = "(anonymous namespace)::";
  if (name.starts_with(kAnonymous)) {
    name.erase(0, sizeof kAnonymous - 1);
    name.resize(std::min(name.size(), name.find('(')));
  }
  return name;
}

// Share of the peak; where nothing was counted, how much longer it takes beside a neighbour that wants the
// same.
std::string roof(const KernelProfile& record, double utilisation, double slowdown) {
  if (record.work_samples == 0 && slowdown > 0) return fmt::format("x{:.2f}", slowdown);
  return fmt::format("{:.0f}%", utilisation * 100);
}

// ---- running

volatile sig_atomic_t g_child = 0;
void forward_signal(int signal) {
  if (g_child > 0) kill(pid_t(g_child), signal);
}

int exit_status(int raw) {
  return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
}

// A line of standard error that says how far it is: once a second on a terminal, which it leaves clean, every
// ten seconds elsewhere.
class Progress {
 public:
  explicit Progress(std::string folder) : folder_(std::move(folder)) {}
  ~Progress() {
    if (terminal_ && shown_) fputs("\r\033[K", stderr);
  }
  uint64_t due_ns() const { return due_ns_; }
  void show(uint64_t now_ns) {
    if (now_ns < due_ns_) return;
    due_ns_ += period_ns_;
    shown_ = true;
    std::error_code ignored;
    double bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_, ignored))
      if (entry.is_regular_file(ignored) && entry.path().filename() != kOperationTable)  // of constant size
        bytes += double(entry.file_size(ignored));
    fprintf(stderr, "%stessera profile: %.0f s, %.1f MB of records%s", terminal_ ? "\r\033[K" : "",
            double(now_ns - start_ns_) / 1e9, bytes / 1e6, terminal_ ? "" : "\n");
  }

 private:
  const std::string folder_;
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  const uint64_t period_ns_ = (terminal_ ? 1 : 10) * uint64_t(1'000'000'000), start_ns_ = base::now_ns();
  uint64_t due_ns_ = start_ns_ + period_ns_;
  bool shown_ = false;
};

// `seconds` = 0: however long it takes.
bool ended_within(int exit_notice, double seconds, Progress& progress) {
  const uint64_t end_ns = seconds > 0 ? base::now_ns() + uint64_t(seconds * 1e9) : UINT64_MAX;
  for (uint64_t now_ns; (now_ns = base::now_ns()) < end_ns;) {
    progress.show(now_ns);
    pollfd watched{exit_notice, POLLIN, 0};
    const uint64_t until_ns = std::min(end_ns, progress.due_ns());
    const uint64_t left_ms = until_ns > now_ns ? (until_ns - now_ns) / 1'000'000 + 1 : 0;
    if (poll(&watched, 1, int(std::min<uint64_t>(left_ms, 1 << 30))) > 0) return true;
  }
  return false;
}

// Starts the command with `environment`, waits for its end, ends it after `seconds`. Terminal signals reach
// the program by themselves (same process group); SIGTERM and SIGHUP are passed on. `folder` is where records appear.
base::Result<int> run_command(const ProfileOptions& options, const std::vector<std::string>& environment,
                              const std::string& folder) {
  std::vector<char*> words;
  for (const std::string& word : options.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) return base::error(Code::kUnavailable, std::string("fork: ") + strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    set_variables(environment);
    execvp(words[0], words.data());
    const int why = errno;
    fprintf(stderr, "tessera profile: %s: %s\n", words[0],
            why == ENOENT ? "command not found (give a path or check PATH)" : strerror(why));
    _exit(why == ENOENT ? 127 : 126);
  }
  g_child = child;
  struct sigaction pass {
  }, ignore{}, old_term{}, old_hangup{}, old_int{};
  pass.sa_handler = forward_signal;
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGTERM, &pass, &old_term);
  sigaction(SIGHUP, &pass, &old_hangup);
  sigaction(SIGINT, &ignore, &old_int);  // the terminal sends it to the program too, which decides
  const base::ScopedFd exit_notice(int(syscall(SYS_pidfd_open, child, 0)));
  if (Progress progress(folder); options.seconds > 0 || exit_notice.valid()) {
    if (!ended_within(exit_notice.get(), options.seconds, progress)) {
      kill(child, SIGTERM);
      if (!ended_within(exit_notice.get(), kPatienceSeconds, progress)) kill(child, SIGKILL);
    }
  }
  int raw = 0;
  while (waitpid(child, &raw, 0) < 0 && errno == EINTR) {
  }
  g_child = 0;
  sigaction(SIGTERM, &old_term, nullptr);
  sigaction(SIGHUP, &old_hangup, nullptr);
  sigaction(SIGINT, &old_int, nullptr);
  return exit_status(raw);
}

int complain(const std::string& text, int status) {
  fprintf(stderr, "tessera profile: %s\n", text.c_str());
  return status;
}

// Checked, then put under its name where tesserad looks; a running one notices.
int install(const std::string& file) {
  const std::string folder = profiles::user_folder();
  if (folder.empty())
    return complain("nowhere to install to: TESSERA_PROFILES is off, or there is no home folder", 2);
  auto profile = profiles::load_profile(file);
  if (!profile) return complain(profile.error().text, kNothingLearnt);
  const std::string name = std::filesystem::path(file).filename().string();
  const std::string target = folder + "/installed-" + (name.ends_with(".json") ? name : name + ".json");
  if (!profiles::make_folder(folder))
    return complain("cannot make " + folder + ": " + strerror(errno), kNothingLearnt);
  if (auto saved = profiles::save_profile(*profile, target); !saved)
    return complain(saved.error().text, kNothingLearnt);
  fprintf(stderr, "installed as %s (%zu kernels)\n", target.c_str(), profile->kernels.size());
  return 0;
}

std::set<std::string> gpus_in(const profiles::Profile& profile) {
  std::set<std::string> names;
  for (const auto& [key, record] : profile.kernels) names.insert(key.gpu);
  return names;
}

// A program that keeps half of the GPU busy with one kind of work (kernels/samples/calibrate.cu), once it
// does. Its output goes to `folder`.
base::Result<Process> start_neighbour(const std::string& program, const std::string& kind,
                                      const std::vector<std::string>& environment,
                                      const std::string& folder) {
  if (!file_exists(program))
    return base::error(Code::kNotFound, program + " is missing: build the target `calibrate`");
  const std::string says = folder + "/neighbour.out", complains = folder + "/neighbour.err";
  auto started = Process::start({program, "--neighbour", kind}, environment, says, complains);
  if (!started) return started.error();
  for (const uint64_t end_ns = base::now_ns() + uint64_t(kNeighbourSeconds * 1e9);;) {
    std::string word;
    std::ifstream output(says);
    output >> word;
    if (word == "ready") return std::move(*started);
    if (!started->running() || base::now_ns() > end_ns) {
      std::ifstream errors(complains);
      std::getline(errors, word);
      return base::error(Code::kUnavailable, "the neighbour did not start: " + word);
    }
    poll(nullptr, 0, 10);
  }
}

// The descriptions of the GPUs of those names, as far as there are any; `missing` are the others.
std::vector<profiles::GpuDescription> described(const Layout& layout, std::set<std::string>* missing) {
  std::vector<profiles::GpuDescription> out;
  std::error_code none;
  for (const std::string& folder : gpu_folders(layout))
    for (const auto& entry : std::filesystem::directory_iterator(folder, none))
      if (auto gpu = profiles::load_gpu_description(entry.path().string());
          gpu && missing->erase(gpu->name) > 0)
        out.push_back(std::move(*gpu));
  return out;
}

// Classified, shown, merged into the output and installed. `folder` has the images' PTX and the counted operations.
int finish(const ProfileOptions& options, profiles::Profile learnt, const std::string& folder,
           const std::vector<profiles::GpuDescription>& gpus, size_t n_processes, int status) {
  const int failed = status ? status : kNothingLearnt;
  for (const profiles::GpuDescription& gpu : gpus) profiles::classify_all(learnt, gpu);
  profiles::add_verdicts(learnt, folder);
  add_operations(folder, gpus.size() == 1 ? &gpus.front() : nullptr, learnt);
  fprintf(stderr, "%s, %zu process(es), %zu kernels\n%s%s",
          fmt::format("{}", fmt::join(gpus_in(learnt), ", ")).c_str(), n_processes, learnt.kernels.size(),
          top_kernels(learnt, options.top).c_str(), top_operations(learnt, options.top).c_str());
  auto merged = profiles::merge_into_file(learnt, options.output, gpus);
  if (!merged) return complain(merged.error().text, failed);
  fprintf(stderr, "written to %s\n", options.output.c_str());
  if (options.install && install(options.output) != 0) return failed;
  return status;
}

// One run of the command: what was learnt, or why nothing was.
struct Ran {
  int status = 0;  // the command's
  size_t n_processes = 0;
  profiles::Profile learnt;
  std::string problem;  // "" = none
};
// Runs the command with `more` variables; its records go to `folder`, which exists.
using Run = std::function<Ran(const std::string& folder, const std::vector<std::string>& more)>;

// Once; or alone and then beside each neighbour, for the slowdowns, with `shared` in the environment of both,
// which puts them on the GPU together. Records of the first run are what is learnt.
Ran learn(const ProfileOptions& options, const Layout& layout, const std::string& folder,
          const std::vector<std::string>& neighbours_environment, const std::vector<std::string>& shared,
          const Run& run) {
  if (!options.sensitivity) return run(folder, {});
  Ran alone = run(folder, shared);
  // Counts of the software GPU are ignored here: the class must come from the slowdowns.
  for (auto& [key, record] : alone.learnt.kernels) profiles::forget_work(record);
  const struct {
    const char* name;
    profiles::Neighbour kind;
  } neighbours[] = {{"memory", profiles::Neighbour::kMemory}, {"compute", profiles::Neighbour::kCompute}};
  const auto usable = [&](const Ran& ran) {
    if (ran.status == 0 || (options.seconds > 0 && ran.status == 128 + SIGTERM)) return true;
    fprintf(stderr, "tessera profile: the program failed (status %d): no classes by sensitivity\n",
            ran.status);
    return false;
  };
  if (!alone.problem.empty() || !usable(alone)) return alone;
  for (const auto& neighbour : neighbours) {
    const std::string records = folder + "/beside-" + neighbour.name;
    std::filesystem::create_directory(records);
    std::vector<std::string> environment = neighbours_environment;
    environment.insert(environment.end(), shared.begin(), shared.end());
    auto started = start_neighbour(layout.bin + "/calibrate", neighbour.name, environment, records);
    if (!started) {
      alone.problem = started.error().text;
      return alone;
    }
    fprintf(stderr, "tessera profile: again, beside a neighbour bound by %s\n", neighbour.name);
    const Ran beside = run(records, shared);
    if (!started->running()) alone.problem = std::string("the neighbour ended: ") + neighbour.name;
    if (!beside.problem.empty()) alone.problem = beside.problem;
    alone.status = beside.status;
    if (!alone.problem.empty() || !usable(alone)) return alone;
    profiles::note_slowdowns(alone.learnt, beside.learnt, neighbour.kind);
  }
  profiles::classify_uncounted(alone.learnt);
  return alone;
}

// The environment by which two programs run on the real GPU at once instead of in turns; none: no MPS.
std::optional<std::vector<std::string>> sharing_environment() {
  if (const auto path = resolve_socket(""); path.ok())
    if (const auto mps = ask_mps(*path); mps.ok() && mps->active) return mps_environment(*mps, false, 0, 0);
  const char* given = getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string pipes = given && *given ? given : "/tmp/nvidia-mps";
  if (!file_exists(pipes + "/control")) return std::nullopt;
  return std::vector<std::string>{"CUDA_MPS_PIPE_DIRECTORY=" + pipes};
}

// On a real GPU: CUPTI loads our library into the program and its children; each process leaves a file.
int profile_real(const ProfileOptions& options) {
  if (const char* other = getenv("CUDA_INJECTION64_PATH"); other && *other)
    return complain(std::string("another profiler is attached (CUDA_INJECTION64_PATH=") + other +
                        "): run without it, CUPTI serves one at a time",
                    2);
  std::string why_not;
  if (!real_gpu_present(&why_not))
    return complain(why_not + "; --gpu soft profiles the program on the software GPU", 2);
  const Layout layout = find_layout();
  const std::string library = layout.prefix + "/lib/libtessera_profile.so";
  if (!file_exists(library))
    return complain(library + " is missing: build the target tessera_profile_injection", 2);
  const auto shared = options.sensitivity ? sharing_environment() : std::vector<std::string>{};
  if (!shared)
    return complain(
        "--sensitivity needs the program and its neighbour on the GPU at once, and without MPS they take "
        "turns: start tesserad with MPS (docs/running.md), or nvidia-cuda-mps-control -d",
        2);
  const Scratch scratch;
  if (scratch.path().empty())
    return complain(std::string("cannot make a folder in /tmp: ") + strerror(errno), 2);
  const Run run = [&](const std::string& folder, const std::vector<std::string>& more) {
    Ran out;
    std::vector<std::string> environment = {"CUDA_INJECTION64_PATH=" + library,
                                            "TESSERA_PROFILE_DIR=" + folder, "TESSERA_DISABLE=1"};
    if (options.metrics) environment.push_back("TESSERA_PROFILE_METRICS=1");
    count_operations(layout, folder, environment);
    environment.insert(environment.end(), more.begin(), more.end());
    const auto status = run_command(options, environment, folder);
    if (!status) return Ran{2, 0, {}, status.error().text};
    out.status = *status;
    auto n = add_collected(folder, out.learnt);
    if (!n)
      out.problem = n.error().text;
    else if (out.learnt.kernels.empty())
      out.problem =
          "no kernel was seen: the program did not use the GPU, was killed within two seconds, or see "
          "the notes above";
    else
      out.n_processes = *n;
    return out;
  };
  Ran ran = learn(options, layout, scratch.path(), {"TESSERA_DISABLE=1"}, *shared, run);
  if (!ran.problem.empty()) return complain(ran.problem, ran.status ? ran.status : kNothingLearnt);
  std::set<std::string> missing = gpus_in(ran.learnt);
  const std::vector<profiles::GpuDescription> gpus = described(layout, &missing);
  for (const std::string& name : missing)
    fprintf(stderr,
            "tessera profile: no description of %s: classes stay unknown (tessera calibrate makes one)\n",
            name.c_str());
  return finish(options, std::move(ran.learnt), scratch.path(), gpus, ran.n_processes, ran.status);
}

}  // namespace

base::Result<size_t> add_collected(const std::string& folder, profiles::Profile& out) {
  std::error_code problem;
  size_t n = 0;
  std::set<std::string> notes;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("note-")) {
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) notes.insert(line);
    }
    if (!name.starts_with("collected-") || entry.path().extension() != ".json") continue;
    auto one = profiles::load_profile(entry.path().string());
    if (!one) return one.error();
    one->unknown_fields.clear();  // totals of one process
    profiles::merge(out, *one);
    ++n;
  }
  for (const std::string& line : notes) fprintf(stderr, "tessera profile: %s\n", line.c_str());
  return n;
}

Scratch::Scratch() {
  char name[] = "/tmp/tessera-profile-XXXXXX";
  if (mkdtemp(name)) path_ = name;
}
Scratch::~Scratch() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

namespace {

base::Result<profiles::GpuDescription> soft_description(const Layout& layout, std::string name) {
  const char* given = getenv("TESSERA_SOFTGPU_GPU");
  if (name.empty()) name = given && *given ? given : "test4";
  if (name.find('/') != std::string::npos) return profiles::load_gpu_description(name);
  for (const std::string& folder : gpu_folders(layout))
    if (const std::string path = folder + "/" + name + ".toml"; file_exists(path))
      return profiles::load_gpu_description(path);
  return base::error(Code::kNotFound, "no description of GPU '" + name +
                                          "' (TESSERA_SOFTGPU_GPU: a file or a name in profiles/gpus)");
}

}  // namespace

base::Result<profiles::GpuDescription> soft_description(const Layout& layout) {
  return soft_description(layout, "");
}

base::Result<std::vector<profiles::GpuDescription>> soft_descriptions(const Layout& layout) {
  // A number of equal ones, or their descriptions.
  const char* given = getenv("TESSERA_SOFTGPU_DEVICES");
  std::vector<std::string> names = csv_cells(given ? given : "");
  if (names.size() == 1 && names[0].find_first_not_of("0123456789") == std::string::npos)
    names.assign(std::clamp(atoi(names[0].c_str()), 1, 64), "");
  std::vector<profiles::GpuDescription> out;
  for (const std::string& name : names) {
    auto gpu = soft_description(layout, name);
    if (!gpu) return gpu.error();
    out.push_back(std::move(*gpu));
  }
  return out;
}

base::Status read_trace(const std::string& csv_path,
                        const std::function<void(const profiles::Activity&)>& kernel) {
  std::ifstream file(csv_path);
  if (!file) return base::error(Code::kNotFound, "cannot read " + csv_path);
  std::vector<std::string> columns;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    const bool cut_off = file.eof();  // no newline behind it
    std::vector<std::string> cells = csv_cells(line);
    if (columns.empty()) {
      columns = std::move(cells);
      continue;
    }
    const std::string where = csv_path + ":" + std::to_string(number) + ": ";
    if (cut_off) break;
    if (cells.size() != columns.size())
      return base::error(Code::kInvalid, where + "has " + std::to_string(cells.size()) + " cells, not " +
                                             std::to_string(columns.size()));
    const Line row(columns, cells);
    profiles::Activity activity;
    const bool usable = row.text("kind") == "kernel" && kernel_of(row, activity);
    if (!row.bad().empty()) return base::error(Code::kInvalid, where + row.bad());
    if (usable) kernel(activity);
  }
  return base::ok();
}

base::Status add_trace(const std::string& csv_path, const profiles::GpuDescription& gpu,
                       const std::string& driver, profiles::Profile& out) {
  profiles::Collector collector;
  collector.device(0, {gpu.name, driver, profiles::Origin::kSoftwareGpu, gpu});
  if (auto read = read_trace(csv_path, [&](const profiles::Activity& kernel) { collector.add(kernel); });
      !read)
    return read;
  profiles::merge(out, collector.profile());
  return base::ok();
}

base::Result<size_t> add_traces(const std::string& folder, const std::vector<profiles::GpuDescription>& gpus,
                                const std::string& driver, profiles::Profile& out) {
  constexpr char kDevice[] = "-device";  // softgpu-<pid>.csv is device 0's, softgpu-<pid>-device<N>.csv N's
  std::error_code problem;
  std::set<std::string> processes;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    if (entry.path().extension() != ".csv") continue;
    const std::string name = entry.path().stem().string();
    const size_t at = name.find(kDevice);
    const size_t device =
        at == std::string::npos ? 0 : strtoul(name.c_str() + at + sizeof kDevice - 1, nullptr, 10);
    if (device >= gpus.size())
      return base::error(Code::kInvalid, entry.path().string() + ": there is no description of device " +
                                             std::to_string(device) + " (TESSERA_SOFTGPU_DEVICES)");
    if (auto added = add_trace(entry.path().string(), gpus[device], driver, out); !added)
      return added.error();
    processes.insert(name.substr(0, at));
  }
  return processes.size();
}

// How much of the program can be cut, and what stands in the way of the rest; "" if nothing was launched.
static std::string cut_line(const profiles::Profile& profile) {
  double launches = 0, ns = 0, cut_launches = 0, cut_ns = 0;
  std::map<std::string, double> in_the_way_ns;  // by reason
  for (const auto& [key, record] : profile.kernels) {
    const double these = double(record.duration.samples), these_ns = record.duration.total_ns;
    launches += these, ns += these_ns;
    if (record.cut == profiles::Cut::kYes)
      cut_launches += these, cut_ns += these_ns;
    else
      in_the_way_ns[record.cut == profiles::Cut::kUnknown ? "no PTX for it" : record.cut_reason] += these_ns;
  }
  if (launches == 0 || ns <= 0) return "";
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [reason, part_ns] : in_the_way_ns) order.emplace_back(part_ns, base::printable(reason));
  std::sort(order.rbegin(), order.rend());
  std::string out = fmt::format("can be cut: {:.0f}% of {} launches, {:.0f}% of their time",
                                100 * cut_launches / launches, short_count(launches), 100 * cut_ns / ns);
  const char* before = "; in the way: ";
  for (const auto& [part_ns, reason] : order) {
    out += fmt::format("{}{:.0f}% {}", before, 100 * part_ns / ns, reason);
    before = ", ";
  }
  return out + "\n";
}

std::string top_kernels(const profiles::Profile& profile, size_t n) {
  std::vector<std::pair<const KernelKey*, const KernelProfile*>> order;
  double total_ns = 0;
  for (const auto& [key, record] : profile.kernels) {
    order.emplace_back(&key, &record);
    total_ns += record.duration.total_ns;
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second->duration.total_ns > b.second->duration.total_ns;
  });
  std::string out = fmt::format("{:<32} {:>8} {:>6} {:>11} {:>8} {:>7} {:>7}  {:<8} {}\n", "KERNEL", "CALLS",
                                "TIME", "P50 us", "OP/BYTE", "COMPUTE", "MEMORY", "CLASS", "CUT");
  for (size_t i = 0; i < std::min(n, order.size()); ++i) {
    const auto& [key, record] = order[i];
    double operations = 0;
    for (const auto& [pipe, count] : record->operations) operations += count;
    std::string name = readable(key->kernel);
    if (name.size() > 32) name = name.substr(0, 29) + "...";
    const std::string cut =
        record->cut_reason.empty()
            ? profiles::cut_name(record->cut)
            : fmt::format("{}: {}", profiles::cut_name(record->cut), base::printable(record->cut_reason));
    out +=
        fmt::format("{:<32} {:>8} {:>5.1f}% {:>11.1f} {:>8} {:>7} {:>7}  {:<8} {}\n", name,
                    record->duration.samples, total_ns > 0 ? record->duration.total_ns / total_ns * 100 : 0,
                    double(record->duration.quantile_ns(0.5)) / 1e3,
                    record->memory_bytes > 0 ? fmt::format("{:.2f}", operations / record->memory_bytes) : "-",
                    roof(*record, record->compute_utilisation, record->slowdown_beside_compute),
                    roof(*record, record->memory_utilisation, record->slowdown_beside_memory),
                    profiles::class_name(record->bound), cut);
  }
  if (order.size() > n) out += fmt::format("... and {} more\n", order.size() - n);
  return out + cut_line(profile);
}

// Why the result could not be written; "" = it can. Asked before the program runs, perhaps for hours.
std::string output_problem(const std::string& path) {
  const auto present = profiles::load_profile(path);
  if (!present && present.error().code != Code::kNotFound) return present.error().text;
  const std::string temporary = path + ".new." + std::to_string(getpid());
  const base::ScopedFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return "cannot write " + path + ": " + strerror(errno);
  unlink(temporary.c_str());
  return "";
}

int profile(const ProfileOptions& options) {
  if (const std::string problem = output_problem(options.output);
      !options.command.empty() && !problem.empty())
    return complain(problem, 2);
  if (options.command.empty()) {
    if (options.install) return install(options.output);
    return complain("no command: tessera profile [options] -- program arguments", 2);
  }
  if (options.metrics && options.sensitivity)
    return complain("--sensitivity is for where --metrics is not allowed: give one of them", 2);
  if (options.gpu == "auto") return profile_real(options);
  if (options.gpu != "soft") return complain("--gpu '" + options.gpu + "' is none of: auto, soft", 2);
  const Layout layout = find_layout();
  const auto gpus = soft_descriptions(layout);
  if (!gpus) return complain(gpus.error().text, 2);
  RunOptions plain;
  plain.gpu = "soft";
  plain.passthrough = true;
  plain.command = options.command;
  auto environment = client_environment(plain, layout);
  if (!environment) return complain(environment.error().text, 2);
  const Scratch scratch;
  if (scratch.path().empty())
    return complain(std::string("cannot make a folder in /tmp: ") + strerror(errno), 2);
  const std::string traces = scratch.path() + "/trace", arbiter = scratch.path() + "/gpu";
  std::filesystem::create_directory(traces);
  std::filesystem::create_directory(arbiter);
  std::filesystem::permissions(arbiter, std::filesystem::perms::owner_all);
  environment->push_back("TESSERA_SOFTGPU_DIR=" + arbiter);
  environment->push_back("TESSERA_SOFTGPU_LINGER_MS=500");
  environment->push_back("TESSERA_SOFTGPU_GPU=" + gpus->front().path);
  const Run run = [&](const std::string& folder, const std::vector<std::string>& more) {
    Ran out;
    std::vector<std::string> variables = *environment;
    variables.push_back("TESSERA_SOFTGPU_TRACE=" + folder);
    count_operations(layout, folder, variables);
    variables.insert(variables.end(), more.begin(), more.end());
    const auto status = run_command(options, variables, folder);
    if (!status) return Ran{2, 0, {}, status.error().text};
    out.status = *status;
    auto n = add_traces(folder, *gpus, kSoftDriver, out.learnt);
    if (!n)
      out.problem = n.error().text;
    else if (out.learnt.kernels.empty())
      out.problem = *n ? "the program ran no kernel to its end"
                       : "the program did not use the GPU, or was killed before it wrote its trace";
    else
      out.n_processes = *n;
    return out;
  };
  Ran ran = learn(options, layout, traces, *environment, {"TESSERA_SOFTGPU_MODE=mps"}, run);
  if (!ran.problem.empty()) return complain(ran.problem, ran.status ? ran.status : kNothingLearnt);
  return finish(options, std::move(ran.learnt), traces, *gpus, ran.n_processes, ran.status);
}

}  // namespace tessera::cli
