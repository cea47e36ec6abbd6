#include "simulator/scenario.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/units.h"
#include "base/user_file.h"
#include "profiles/gpu_description.h"
#include "scheduler_daemon/policy/placement.h"
#include "simulator/chakra_workload.h"
#include "simulator/policies.h"
#include "simulator/toml_reader.h"
#include "simulator/traces/program.h"
#include "simulator/traces/read.h"
#include "simulator/traces/requests.h"
#include "simulator/tuning.h"

namespace tessera::simulator {
namespace {

using base::Code;

constexpr double kGib = 1 << 30;
constexpr int kMaxIncludes = 16;
constexpr double kLeastPeriodMs = 0.001;   // of what arrivals swing with: no time passes in a period of 0
constexpr double kLeastMeanGapNs = 1'000;  // between recorded arrivals: with none, time does not advance
constexpr double kMostLaunches = 1e7;      // of a job, which is kept as a list: 0.7 GB
constexpr uint64_t kMostScenarioBytes = 1u << 24;
constexpr uint64_t kMostTraceBytes = 1u << 30;

constexpr Name kRegimes[] = {{"timesliced", int(Regime::kTimesliced)},
                             {"mps", int(Regime::kMps)},
                             {"mps_priority", int(Regime::kMpsPriority)}};
constexpr Name kConfines[] = {
    {"none", int(Confine::kNone)}, {"attach", int(Confine::kAttach)}, {"dynamic", int(Confine::kDynamic)}};
constexpr Name kGates[] = {{"thread", int(GateKind::kThread)}, {"device", int(GateKind::kDevice)}};
constexpr Name kArrivals[] = {
    {"closed", int(ArrivalKind::kClosed)},     {"poisson", int(ArrivalKind::kPoisson)},
    {"bursty", int(ArrivalKind::kBursty)},     {"gamma", int(ArrivalKind::kGamma)},
    {"onoff", int(ArrivalKind::kOnOff)},       {"diurnal", int(ArrivalKind::kDiurnal)},
    {"periodic", int(ArrivalKind::kPeriodic)}, {"trace", int(ArrivalKind::kTrace)}};

class Loader {
 public:
  base::Result<Scenario> load(const std::string& path) {
    scenario_.name = std::filesystem::path(path).stem();
    if (base::Status s = read_file(path); !s.ok()) return s.error();
    return done();
  }
  base::Result<Scenario> load_text(const std::string& text, const std::string& path) {
    scenario_.name = std::filesystem::path(path).stem();
    if (base::Status s = read_text(text, path); !s.ok()) return s.error();
    return done();
  }

 private:
  base::Result<Scenario> done() {
    finish();
    if (mistakes_.lines.empty()) return std::move(scenario_);
    std::string all;
    for (const std::string& line : mistakes_.lines) all += (all.empty() ? "" : "\n") + line;
    return base::error(Code::kInvalid, all);
  }

  base::Status read_file(const std::string& path) {
    if (++n_files_ > kMaxIncludes)
      return base::error(Code::kInvalid, path + ": more than 16 files; does one include itself?");
    const auto text = base::read_user_file(path, kMostScenarioBytes);
    if (!text) return base::error(text.error().code, text.error().text + "; scenarios/ has some");
    return read_text(*text, path);
  }

  base::Status read_text(const std::string& text, const std::string& path) {
    if (const auto odd = base::first_outside_ascii(text))
      return base::error(Code::kInvalid, path + ":" + std::to_string(odd->line) + ":" +
                                             std::to_string(odd->column) +
                                             ": only ASCII characters may be used");
    const toml::parse_result parsed = toml::parse(std::string_view(text), std::string_view(path));
    if (!parsed) {
      const auto at = parsed.error().source().begin;
      return base::error(Code::kInvalid, path + ":" + std::to_string(at.line) + ":" +
                                             std::to_string(at.column) + ": " +
                                             std::string(parsed.error().description()));
    }
    const toml::table& root = parsed.table();
    Reader r(root, "the scenario", &mistakes_);
    for (const std::string& name : r.texts("include")) {
      auto beside = std::filesystem::path(path).parent_path() / name;
      if (const auto there = base::open_to_read(beside); !there) {
        mistakes_.file = path;
        r.wrong(*root.get("include"), "include", "names a file: " + there.error().text);
        continue;
      }
      if (base::Status s = read_file(beside); !s.ok()) return s;
    }
    mistakes_.file = path;
    read(r);
    return base::ok();
  }

  void read(Reader& r) {
    scenario_.name = r.text("name", scenario_.name);
    scenario_.duration_ns = r.ms("duration_ms", scenario_.duration_ns);
    scenario_.warmup_ns = r.ms("warmup_ms", scenario_.warmup_ns);
    scenario_.seeds = uint32_t(r.number("seeds", scenario_.seeds, 1, 1000));
    static constexpr Name kFrom[] = {{"service", 0}, {"arrival", 1}};
    scenario_.latency_from_arrival = r.choice("latency_from", scenario_.latency_from_arrival, kFrom) == 1;
    static constexpr Name kEstimates[] = {{"launch", int(Estimates::kLaunch)},
                                          {"shape", int(Estimates::kShape)}};
    scenario_.report_steps = r.flag("report_steps", scenario_.report_steps);
    scenario_.estimates = Estimates(r.choice("estimates", int(scenario_.estimates), kEstimates));
    if (auto t = r.table("gpu")) read_gpu(*t);
    if (auto t = r.table("host")) read_host(*t);
    GpuSpec& g = scenario_.gpu;
    if (auto t = r.table("contention")) read_contention(*t, "[contention", &g.contention);
    if (auto t = r.table("contention_disjoint"))
      read_contention(*t, "[contention_disjoint", &g.contention_disjoint);
    for (auto t : r.tables("workload")) read_workload(*t);
    if (auto t = r.table("grid")) read_grid(*t);
    for (auto t : r.tables("cell")) read_cell(*t);
    for (auto t : r.tables("run")) read_run(*t);
    for (auto t : r.tables("perturbation")) read_perturbation(*t);
    r.tables("measured");  // for scripts/measured_error.py
  }

  void read_gpu(const toml::table& t) {
    Reader r(t, "[gpu]", &mistakes_);
    GpuSpec& g = scenario_.gpu;
    if (const std::string device = r.text("device", ""); !device.empty()) {
      device_ = traces::device_of_key(device);
      if (device_ == nullptr) r.missing("`device` is none of " + traces::device_keys());
      if (device_ != nullptr) g.sm_count = device_->sm.count;
    }
    if (const std::string description = r.text("description", ""); !description.empty()) {
      const auto beside = std::filesystem::path(mistakes_.file).parent_path() / description;
      if (const auto gpu = profiles::load_gpu_description(beside))
        take(*gpu);
      else
        r.wrong(*t.get("description"), "description", "names a file: " + gpu.error().text);
    }
    g.sm_count = uint32_t(r.number("sm_count", g.sm_count, 1, 4096));
    g.timeslice_ns = r.us("timeslice_us", g.timeslice_ns);
    g.switch_ns = r.us("switch_us", g.switch_ns);
    g.idle_switch_ns = r.us("idle_switch_us", t.get("switch_us") != nullptr ? g.switch_ns : g.idle_switch_ns);
    g.kernel_gap_ns = r.us("kernel_gap_us", g.kernel_gap_ns);
    g.in_line_share = r.number("in_line_share", g.in_line_share, 0, 1);
    g.refill_ns = r.us("refill_us", g.refill_ns);
    g.block_jitter = r.number("block_jitter", g.block_jitter, 0, 0.9);
    g.memory_bytes = uint64_t(r.number("memory_gib", double(g.memory_bytes) / kGib, 0, 1e6) * kGib);
    occupancy_knee_ = r.number("occupancy_knee", occupancy_knee_, 0.05, 1);
  }

  // Takes what was measured of a GPU; the rest stays.
  void take(const profiles::GpuDescription& gpu) {
    GpuSpec& g = scenario_.gpu;
    HostSpec& h = scenario_.host;
    g.sm_count = gpu.sm.count;
    const struct {
      double measured;
      uint64_t* model;
    } kCosts[] = {{gpu.time.timeslice_ns, &g.timeslice_ns}, {gpu.time.switch_ns, &g.switch_ns},
                  {gpu.time.switch_ns, &g.idle_switch_ns},  {gpu.time.launch_overhead_ns, &g.kernel_gap_ns},
                  {gpu.calls.launch_ns, &h.launch_ns},      {gpu.calls.sync_ns, &h.sync_ns},
                  {gpu.calls.marker_ns, &h.marker_ns},      {gpu.calls.wait_call_ns, &h.boundary_call_ns},
                  {gpu.calls.wait_ns, &h.boundary_ns},      {gpu.calls.open_ns, &h.open_ns},
                  {gpu.calls.confine_ns, &h.confine_ns}};
    for (const auto& [measured, model] : kCosts)
      if (measured > 0) *model = uint64_t(std::llround(measured));
    if (gpu.calls.queue_launches > 0) h.queue_launches = gpu.calls.queue_launches;
    take(gpu.contention, &g.contention);
    take(gpu.contention_disjoint, &g.contention_disjoint);
  }
  static void take(const profiles::GpuDescription::Contention& measured, ContentionTable* table) {
    constexpr size_t kCompute = size_t(policy::ResourceClass::kCompute),
                     kMemory = size_t(policy::ResourceClass::kMemory);
    const struct {
      double value;
      size_t own, other;
    } kCells[] = {{measured.compute_compute, kCompute, kCompute},
                  {measured.compute_memory, kCompute, kMemory},
                  {measured.memory_compute, kMemory, kCompute},
                  {measured.memory_memory, kMemory, kMemory}};
    for (const auto& [value, own, other] : kCells)
      if (value >= 0) (*table)[own][other] = value;
  }

  void read_host(const toml::table& t) {
    Reader r(t, "[host]", &mistakes_);
    HostSpec& h = scenario_.host;
    h.launch_ns = r.us("launch_us", h.launch_ns);
    h.gate_ns = r.us("gate_us", h.gate_ns);
    h.queue_launches = uint32_t(r.number("queue_launches", h.queue_launches, 4, 1e6));
    h.sync_ns = r.us("sync_us", h.sync_ns);
    h.marker_ns = r.us("marker_us", h.marker_ns);
    h.wake_ns = r.us("wake_us", h.wake_ns);
    h.daemon_ns = r.us("daemon_us", h.daemon_ns);
    h.spin_ns = r.us("spin_us", h.spin_ns);
    h.setup_ns = r.us("setup_us", h.setup_ns);
    h.confine_ns = r.us("confine_us", h.confine_ns);
    h.retreat_ns = r.us("retreat_us", h.retreat_ns);
    h.boundary_call_ns = r.us("boundary_call_us", h.boundary_call_ns);
    h.boundary_ns = r.us("boundary_us", h.boundary_ns);
    h.open_ns = r.us("open_us", h.open_ns);
    h.link.load_bytes_per_ns = r.number("load_gb_per_s", h.link.load_bytes_per_ns, 0.001, 1e6);
    h.link.park_bytes_per_ns = r.number("park_gb_per_s", h.link.park_bytes_per_ns, 0, 1e6);
    h.link.move_ns = r.us("move_us", h.link.move_ns);
  }

  void read_contention(const toml::table& t, const std::string& name, ContentionTable* table) {
    Reader r(t, name + "]", &mistakes_);
    for (const Name& own : kClassNames) {
      const toml::table* row = r.table(own.text);
      if (row == nullptr) continue;
      Reader cells(*row, name + "." + std::string(own.text) + "]", &mistakes_);
      for (const Name& other : kClassNames) {
        double& value = (*table)[size_t(own.value)][size_t(other.value)];
        value = cells.number(other.text, value, 0, kMostContention);
      }
    }
  }

  Segment read_segment(const toml::table& t, const std::string& where) {
    Reader r(t, where, &mistakes_);
    Segment s;
    s.count = uint32_t(r.number("count", 1, 1, 1e6));
    s.cv = r.number("cv", 0, 0, 10);
    s.host_ns = r.us("host_us", 0);
    s.graph = r.flag("graph", false);
    const double us = r.number("us", 0, 0.2, 1e9), block_us = r.number("block_us", us, 0.2, 1e9);
    const double fill = r.number("fill", 1, 1e-3, 1);
    const uint32_t per_sm = uint32_t(r.number("blocks_per_sm", kSlotsPerSm, 1, 32));
    const double wave = scenario_.gpu.sm_count * per_sm;
    const uint32_t blocks = uint32_t(r.number("blocks", 0, 1, 1e9));
    if (us == 0) r.missing("needs `us`: how long one launch takes alone");
    if (fill < 1 && block_us < us) r.missing("has one wave if `fill` is below 1: leave `block_us` out");
    if (blocks != 0 && (t.get("fill") != nullptr || t.get("block_us") != nullptr))
      r.missing("says how wide it is by `blocks`: leave `fill` and `block_us` out");
    const double waves =
        blocks != 0 ? std::ceil(blocks / wave) : std::max(1.0, std::round(us / std::max(0.2, block_us)));
    s.kernel.sms_per_block = 1.0 / per_sm;
    s.kernel.n_blocks = blocks != 0 ? blocks : uint32_t(std::max(1.0, wave * fill)) * uint32_t(waves);
    s.kernel.block_ns = uint64_t(us / waves * kNsPerUs);
    s.kernel.occupancy_knee = r.number("occupancy_knee", occupancy_knee_, 0.05, 1);
    s.kernel.resource_class = policy::ResourceClass(r.choice("class", 1, kClassNames));
    s.kernel.can_cut = r.flag("cut", true);
    s.of_tokens = r.flag("of_tokens", false);
    const bool collective = r.flag("collective", false);
    if (r.flag("copy", false) || collective) s.kernel = copy_kernel(uint64_t(us * kNsPerUs));
    s.kernel.collective = collective;
    if (collective && fill < 1) {  // it occupies SMs, one block each, also while it waits
      s.kernel.n_blocks = uint32_t(std::max(1.0, scenario_.gpu.sm_count * fill));
      s.kernel.sms_per_block = 1;
    }
    return s;
  }

  // A trace of MLCommons Chakra, beside the scenario. It is given instead of `step`.
  void read_recorded(const std::string& name, Reader& r, Workload* out) {
    const auto path = std::filesystem::path(mistakes_.file).parent_path() / name;
    const auto bytes = base::read_user_file(path, kMostTraceBytes);
    if (!bytes) return r.missing("names " + path.string() + ": " + bytes.error().text);
    const auto trace = chakra::decode(*bytes);
    if (!trace.ok()) return r.missing("names " + path.string() + ": " + trace.error().text);
    auto recorded = workload_of(*trace, out->name, scenario_.gpu.sm_count);
    if (!recorded.ok()) return r.missing("names " + path.string() + ": " + recorded.error().text);
    *out = std::move(*recorded);
  }

  // Reads what a profiler recorded, in a file beside the scenario; instead of `step` too.
  void read_profile(const std::string& name, Reader& r, Workload* out) {
    static constexpr Name kUses[] = {{"request", int(traces::Use::kRequest)},
                                     {"loop", int(traces::Use::kLoop)}};
    static constexpr Name kCuttable[] = {{"none", int(traces::Cuttable::kNone)},
                                         {"triton", int(traces::Cuttable::kTriton)},
                                         {"all", int(traces::Cuttable::kAll)}};
    traces::Reading how;
    how.target = device_;
    how.use = traces::Use(r.choice("use", int(how.use), kUses));
    how.cuttable = traces::Cuttable(r.choice("cuttable", int(how.cuttable), kCuttable));
    how.range = r.text("range", "");
    how.costs = {scenario_.host.launch_ns, scenario_.gpu.kernel_gap_ns, scenario_.host.sync_ns};
    if (const std::string on = r.text("recorded_on", ""); !on.empty()) {
      how.source = traces::device_of_key(on);
      if (how.source == nullptr) return r.missing("`recorded_on` is none of " + traces::device_keys());
    }
    if (device_ == nullptr)
      return r.missing("`recorded` needs [gpu] with `device` before it: one of " + traces::device_keys());
    const auto path = std::filesystem::path(mistakes_.file).parent_path() / name;
    const auto recording = traces::read_recording(path);
    if (!recording.ok())
      return r.missing("`recorded`: " + recording.error().text +
                       "; docs/traces.md says where recordings are");
    auto program = traces::program_of(*recording, out->name, how);
    if (!program.ok()) return r.missing("`recorded`: " + program.error().text);
    program->workload.steps_ahead = out->steps_ahead;
    program->workload.memory_bytes = out->memory_bytes;
    for (const std::string& line : program->inferred) scenario_.inferred.push_back(out->name + ": " + line);
    *out = std::move(program->workload);
  }

  // One phase of a language model's server: segments, or a recording of one step.
  std::vector<Step> read_phase(Reader& of, const toml::table* t, const std::string& name) {
    if (t == nullptr) {
      of.missing("needs `" + name + "`: the kernels of one such step");
      return {};
    }
    Reader r(*t, "`" + name + "` of a server", &mistakes_);
    Workload phase{.name = name};
    if (const std::string file = r.text("recorded", ""); !file.empty()) {
      read_profile(file, r, &phase);
    } else {
      Step step;
      const auto repeat = uint32_t(r.number("repeat", 1, 1, 1000));
      std::vector<Segment> segments;
      for (auto s : r.tables("segment")) segments.push_back(read_segment(*s, "a segment of " + name));
      for (uint32_t i = 0; i < repeat; ++i)
        step.segments.insert(step.segments.end(), segments.begin(), segments.end());
      if (!segments.empty()) phase.steps.push_back(std::move(step));
    }
    static constexpr Name kLaunches[] = {{"recorded", 0}, {"graph", 1}, {"kernels", 2}};
    const int launches = r.choice("launches", 0, kLaunches);
    for (Step& step : phase.steps)
      for (Segment& s : step.segments) {
        if (launches == 0) break;
        s.graph = launches == 1;
        s.joins = launches == 1 && &s != &step.segments.front();
        if (s.joins || launches == 2) s.host_ns = 0;
      }
    const uint64_t host_ns = r.us("host_us", phase.steps.empty() ? 0 : phase.steps.back().gap_ns);
    if (phase.steps.empty())
      r.missing("needs `segment` or `recorded`");
    else
      phase.steps.back().gap_ns = host_ns;
    return std::move(phase.steps);
  }

  void read_server(const toml::table& t, Workload* out) {
    Reader r(t, "`server` of workload " + out->name, &mistakes_);
    Serving s;
    if (const std::string other = r.text("like", "");
        !other.empty()) {  // the same model, asked for something else
      const Workload* model = workload(r, "like", other);
      if (model == nullptr || !model->serving) return r.missing("`like` must name a workload with `server`");
      s = *model->serving;
    } else {
      const toml::table *prefill = r.table("prefill"), *decode = r.table("decode");
      s.prefill = read_phase(r, prefill, "prefill");
      s.decode = read_phase(r, decode, "decode");
    }
    s.prefill_tokens = uint32_t(r.number("prefill_tokens", s.prefill_tokens, 1, 1e6));
    s.decode_batch = uint32_t(r.number("decode_batch", s.decode_batch, 1, 1e4));
    s.decode_context = uint32_t(r.number("decode_context", s.decode_context, 1, 1e6));
    s.most_running = uint32_t(r.number("most_running", s.most_running, 1, 1e4));
    s.step_tokens = uint32_t(r.number("step_tokens", s.step_tokens, 1, 1e6));
    if (s.step_tokens <= s.most_running) r.missing("`step_tokens` must be larger than `most_running`");
    s.mean = {uint32_t(r.number("prompt_tokens", s.mean.prompt, 1, 1e6)),
              uint32_t(r.number("output_tokens", s.mean.output, 1, 1e6))};
    s.cv = r.number("tokens_cv", s.cv, 0, 10);
    if (const std::string file = r.text("requests", ""); !file.empty()) {
      const auto path = std::filesystem::path(mistakes_.file).parent_path() / file;
      auto requests = traces::read_requests(path);
      if (!requests.ok()) return r.missing("`requests`: " + requests.error().text);
      double prompt = 0, output = 0;
      for (const RequestLength& length : requests->lengths) prompt += length.prompt, output += length.output;
      const double n = double(requests->lengths.size());
      s.mean = {uint32_t(std::lround(prompt / n)), uint32_t(std::lround(output / n))};
      s.lengths = std::move(requests->lengths);
      out->recorded_gaps_ns = std::move(requests->gaps_ns);
    }
    if (s.prefill.empty() || s.decode.empty()) return;
    out->steps = s.one_request();
    out->serving = std::move(s);
  }

  void read_workload(const toml::table& t) {
    Reader r(t, "[[workload]]", &mistakes_);
    Workload w;
    w.name = r.text("name", "");
    w.cv = r.number("cv", 0, 0, 10);
    w.lengths = r.numbers("lengths", 0.01, 100);
    w.steps_ahead = uint32_t(r.number("steps_ahead", 0, 0, 1000));
    w.memory_bytes = uint64_t(r.number("memory_gib", 0, 0, 1e6) * kGib);
    if (scenario_.gpu.memory_bytes != 0 && w.memory_bytes > scenario_.gpu.memory_bytes)
      r.missing("needs more memory than the GPU has");
    for (double ms : r.numbers("gaps_ms", 0, 1e7)) w.recorded_gaps_ns.push_back(ms * 1e6);
    const std::string where = "workload " + w.name;
    if (const std::string file = r.text("chakra", ""); !file.empty()) read_recorded(file, r, &w);
    if (const std::string file = r.text("recorded", ""); !file.empty()) read_profile(file, r, &w);
    if (auto row = r.table("server")) read_server(*row, &w);
    for (auto row : r.tables("step")) {
      Reader step_reader(*row, "a step of " + where, &mistakes_);
      Step step;
      step.repeat = uint32_t(step_reader.number("repeat", 1, 1, 1e6));
      step.gap_ns = step_reader.us("gap_us", 0);
      step.gap_cv = step_reader.number("gap_cv", 0, 0, 10);
      for (auto s : step_reader.tables("segment"))
        step.segments.push_back(read_segment(*s, "a segment of " + where));
      if (step.segments.empty()) step_reader.missing("needs `segment`: a list of kernels");
      w.steps.push_back(std::move(step));
    }
    double launches = 0, length = 1;
    for (const double l : w.lengths) length = std::max(length, l);
    for (const Step& step : w.steps)
      for (const Segment& segment : step.segments) launches += double(step.repeat) * segment.count * length;
    if (launches > kMostLaunches)
      r.missing("has " + std::to_string(uint64_t(launches)) + " launches in a job, which is too long a list");
    if (w.name.empty() || w.steps.empty())
      r.missing("needs `name`, and `step`, `chakra`, `recorded` or `server`");
    if (find(w.name) != nullptr) r.missing("`" + w.name + "` is there already");
    scenario_.workloads.push_back(std::move(w));
  }

  const Workload* find(const std::string& name) const {
    for (const Workload& w : scenario_.workloads)
      if (w.name == name) return &w;
    return nullptr;
  }

  const Workload* workload(Reader& r, const char* key, const std::string& name) {
    const Workload* w = find(name);
    std::vector<std::string> known;
    for (const Workload& row : scenario_.workloads) known.push_back(row.name);
    if (w == nullptr) r.unknown_name(key, name, known);
    return w;
  }

  Arrivals read_arrivals(Reader& r, ArrivalKind initial, const Workload* of = nullptr) {
    Arrivals a;
    a.kind = ArrivalKind(r.choice("arrivals", int(initial), kArrivals));
    a.users = uint32_t(r.number("users", a.users, 1, 1e4));
    a.load = r.number("load", a.load, 0.001, 10);
    a.rate_per_s = r.number("rate_per_s", a.rate_per_s, 0, 1e6);
    a.burst_cv = r.number("burst_cv", a.burst_cv, 0, 20);
    a.on_ns = r.ms("on_ms", a.on_ns, kLeastPeriodMs);
    a.off_ns = r.ms("off_ms", a.off_ns);
    a.period_ns = r.ms("period_ms", a.period_ns, kLeastPeriodMs);
    for (double ms : r.numbers("gaps_ms", 0, 1e7)) a.gaps_ns.push_back(ms * 1e6);
    const bool trace = a.kind == ArrivalKind::kTrace;
    if (trace && a.gaps_ns.empty() && of) a.gaps_ns = of->recorded_gaps_ns;
    const double all_gaps_ns = std::accumulate(a.gaps_ns.begin(), a.gaps_ns.end(), 0.0);
    if (trace && !(all_gaps_ns >= kLeastMeanGapNs * double(std::max<size_t>(1, a.gaps_ns.size()))))
      r.missing("needs `gaps_ms` for a trace: times between arrivals, 1 us or more on average");
    const double faster = all_gaps_ns / double(std::max<size_t>(1, a.gaps_ns.size())) * a.rate_per_s / 1e9;
    if (trace && faster > 0)
      for (double& gap_ns : a.gaps_ns) gap_ns /= faster;
    return a;
  }

  void read_grid(const toml::table& t) {
    Reader r(t, "[grid]", &mistakes_);
    Arrivals arrivals = read_arrivals(r, ArrivalKind::kPoisson);
    std::vector<double> loads = r.numbers("loads", 0.001, 10);
    const bool several = !loads.empty();
    if (!several) loads = {arrivals.load};
    const uint32_t priority = uint32_t(r.number("priority", 7, 1, 7));
    for (const std::string& hp : r.texts("protected"))
      for (const double load : loads) {
        arrivals.load = load;
        char name[32];
        std::snprintf(name, sizeof name, " at %g", load);
        grid_protected_.push_back({.name = several ? hp + name : hp,
                                   .workload = workload(r, "protected", hp),
                                   .priority = priority,
                                   .arrivals = arrivals});
      }
    const std::vector<double> cvs = r.numbers("kernel_cv", 0, 10);
    for (const std::string& be : r.texts("best_effort")) {
      const Workload* w = workload(r, "best_effort", be);
      if (cvs.empty()) grid_best_effort_.push_back({.name = be, .workload = w});
      for (size_t i = 0; i < cvs.size() && w != nullptr; ++i) add_varying(*w, cvs[i]);
    }
    for (const ClientSpec& hp : grid_protected_)
      for (const ClientSpec& be : grid_best_effort_)
        scenario_.cells.push_back({hp.name + " + " + be.name, {hp, be}});
  }

  // To the grid: the program with kernels whose lengths all have this spread.
  void add_varying(Workload w, double cv) {
    char name[64];
    std::snprintf(name, sizeof name, ", cv %g", cv);
    w.name += name;
    for (Step& step : w.steps)
      for (Segment& segment : step.segments) segment.cv = cv;
    scenario_.workloads.push_back(std::move(w));
    const Workload& added = scenario_.workloads.back();
    grid_best_effort_.push_back({.name = added.name, .workload = &added});
  }

  // On the GPU where the daemon would have it.
  size_t add_program(const ClientSpec& spec, std::vector<policy::GpuPrograms>* gpus) const {
    const policy::Program program{.priority = spec.priority,
                                  .resource_class = spec.workload->main_class(scenario_.gpu.sm_count),
                                  .load = spec.priority > 0 ? spec.arrivals.load : 1,
                                  .memory_bytes = spec.workload->memory_bytes};
    const size_t gpu = policy::place(program, *gpus, scenario_.gpu.contention);
    (*gpus)[gpu].programs.push_back(program);
    return gpu;
  }

  void read_cell(const toml::table& t) {
    Reader r(t, "[[cell]]", &mistakes_);
    Cell cell;
    cell.name = r.text("name", "cell " + std::to_string(scenario_.cells.size() + 1));
    cell.runs = r.texts("runs");
    // Several GPUs: one policy object each, clients do not move. So each is a cell of its own, unless a gang joins them.
    const uint32_t gpus = uint32_t(r.number("gpus", 1, 1, 4096));
    static constexpr Name kPlacements[] = {{"turn", 0}, {"measured", 1}};
    const bool in_turn = r.choice("placement", 0, kPlacements) == 0;
    std::vector<Cell> on(gpus);
    std::vector<policy::GpuPrograms> placed(gpus, {.memory_bytes = scenario_.gpu.memory_bytes});
    uint32_t next = 0;
    bool joined = false;
    for (auto row : r.tables("client")) {
      Reader c(*row, "a client of cell " + cell.name, &mistakes_);
      ClientSpec spec;
      const std::string name = c.text("workload", "");
      spec.workload = workload(c, "workload", name);
      spec.name = c.text("name", name);
      spec.priority = uint32_t(c.number("priority", 0, 0, 7));
      spec.weight = uint32_t(c.number("weight", 100, 1, 10'000));
      spec.slo_ns = c.ms("slo_ms", 0);
      spec.arrivals =
          read_arrivals(c, spec.priority > 0 ? ArrivalKind::kPoisson : ArrivalKind::kClosed, spec.workload);
      spec.start_ns = c.ms("start_ms", 0);
      spec.stop_ns = c.ms("stop_ms", UINT64_MAX);
      if (row->get("stop_ms") == nullptr) spec.stop_ns = UINT64_MAX;
      const uint32_t copies = uint32_t(c.number("count", 1, 1, 1000));
      spec.gang = c.text("gang", "");
      const bool is_rank = !spec.gang.empty();
      joined |= is_rank;
      if (is_rank && spec.priority > 0) c.missing("is best-effort if it has `gang`: leave `priority` out");
      if (is_rank && copies > gpus) c.missing("has more ranks than `gpus`: one on each at most");
      const bool has_place = row->get("gpu") != nullptr;
      const uint32_t first = uint32_t(c.number("gpu", 0, 0, gpus - 1));
      for (uint32_t i = 0; i < copies; ++i, ++next) {
        if (is_rank || has_place)
          spec.gpu = (first + (is_rank ? i : 0)) % gpus;
        else if (in_turn || spec.workload == nullptr)
          spec.gpu = next % gpus;
        else
          spec.gpu = uint32_t(add_program(spec, &placed));
        on[spec.gpu].clients.push_back(spec);
      }
    }
    if (next < gpus) r.missing("needs `client`: who runs on the GPU; at least one for each of `gpus`");
    if (joined) {
      cell.gpus = gpus;
      for (const Cell& one : on)
        cell.clients.insert(cell.clients.end(), one.clients.begin(), one.clients.end());
      scenario_.cells.push_back(std::move(cell));
      return;
    }
    for (uint32_t i = 0; i < gpus; ++i) {
      if (on[i].clients.empty()) continue;
      if (gpus > 1) on[i].pool = cell.name;
      on[i].runs = cell.runs;
      on[i].name = gpus == 1 ? cell.name : cell.name + " / GPU " + std::to_string(i);
      on[i].gpu = i;
      scenario_.cells.push_back(std::move(on[i]));
    }
  }

  void read_run(const toml::table& t) {
    Reader r(t, "[[run]]", &mistakes_);
    RunSpec run;
    run.policy = r.text("policy", "none");
    run.name = r.text("name", run.policy);
    if (run.name.find(',') != std::string::npos)
      r.missing("has a comma in `name`, which separates names in --policy");
    run.regime = Regime(r.choice("regime", int(run.regime), kRegimes));
    run.protected_overhead = r.number("protected_overhead", 0, 0, 10);
    run.regime_overhead = r.number("regime_overhead", 0, 0, 10);
    run.transform_overhead = r.number("transform_overhead", 0, 0, 10);
    run.worker_slots = r.number("worker_slots", run.worker_slots, 0.01, 1);
    run.turnaround_ns = r.us("turnaround_us", run.turnaround_ns);
    run.original_after_ns = r.ms("original_after_ms", run.original_after_ns);
    run.confine = Confine(r.choice("confine", int(run.confine), kConfines));
    run.sm_limit = uint32_t(r.number("sm_limit", 0, 0, 4096));
    if (run.sm_limit != 0 && run.confine == Confine::kNone)
      r.missing("has `sm_limit` without a way to hold it: add confine = \"attach\" or \"dynamic\"");
    run.gangs = r.flag("gangs", run.gangs);
    run.first_part = r.number("first_part", 0, 0, 0.99);
    run.lends = r.flag("lends", false);
    run.context_priorities = r.flag("context_priorities", false);
    run.switch_ns = r.us("switch_us", 0);
    run.most_in_flight = uint32_t(r.number("most_in_flight", 0, 0, 1e6));
    run.polls = r.flag("polls", false);
    run.gate = GateKind(r.choice("gate", int(run.gate), kGates));
    run.gate_quantum_ns = r.us("gate_quantum_us", run.gate_quantum_ns);
    run.opened_quanta = uint32_t(r.number("opened_quanta", run.opened_quanta, 0, 100));
    run.timed_waits = r.flag("timed_waits", run.timed_waits);
    // The keys of the daemon's [policy] section, with the bounds that they have there.
    policy::Parameters& p = run.parameters;
#define TS_TIME(name, unit, initial, least, most, description) \
  p.name##_ns = uint64_t(r.number(#name "_" #unit, initial, least, most) * double(base::unit(1)));
#define TS_PERCENT(name, initial, least, most, description) \
  p.name = r.number(#name, p.name, least / 100.0, most / 100.0);
#define TS_SWITCH(name, initial, description) p.name = r.flag(#name, p.name);
#include "scheduler_daemon/policy/parameters.def"
    if (auto tune = r.table("tune")) read_tuning(*tune, run.name, &run.tuning);
    if (make_any_policy(run.policy, {}) == nullptr) r.unknown_name("policy", run.policy, any_policy_names());
    scenario_.runs.push_back(std::move(run));
  }

  void read_tuning(const toml::table& t, const std::string& run, policy::Tuning* tuning) {
    for (const auto& [key, node] : t) {
      const auto value = node.is_boolean() ? double(node.value_or(false)) : node.value<double>();
      const base::Status s = set_tuning(std::string(key.str()), value.value_or(-1), tuning);
      if (!s.ok()) mistakes_.add(key.source(), "`tune` of run " + run + ": " + s.error().text);
    }
  }

  void read_perturbation(const toml::table& t) {
    Reader r(t, "[[perturbation]]", &mistakes_);
    Perturbation p;
    p.name = r.text("name", "");
    p.estimate_factor = r.number("estimate_factor", 1, 0.01, 100);
    p.observe_delay_ns = r.us("observe_delay_us", 0);
    p.kernel_cv = r.number("kernel_cv", 0, 0, 10);
    p.clock_factor = r.number("clock_factor", 1, 0.05, 2);
    p.churn = r.flag("churn", false);
    if (p.name.empty()) r.missing("needs `name`");
    scenario_.perturbations.push_back(std::move(p));
  }

  void finish() {
    auto need = [&](bool there, const char* what) {
      if (!there) mistakes_.lines.push_back(mistakes_.file + ": " + what);
    };
    need(scenario_.duration_ns > scenario_.warmup_ns, "`duration_ms` must be larger than `warmup_ms`");
    need(!scenario_.cells.empty(), "there is nothing to run: add [grid] or [[cell]]");
    need(!scenario_.runs.empty(), "there is no policy to run: add [[run]]");
    for (const Cell& cell : scenario_.cells)
      for (const std::string& name : cell.runs)
        need(std::any_of(scenario_.runs.begin(), scenario_.runs.end(),
                         [&](const RunSpec& run) { return run.name == name; }),
             ("cell " + cell.name + " names the run `" + name + "`, which is not there").c_str());
    if (scenario_.perturbations.empty()) scenario_.perturbations.push_back({});
  }

  Scenario scenario_;
  Mistakes mistakes_;
  std::vector<ClientSpec> grid_protected_, grid_best_effort_;
  int n_files_ = 0;
  const traces::Device* device_ = nullptr;  // [gpu] device: what recorded programs are simulated on
  double occupancy_knee_ = 1;               // of segments that say nothing else
};

}  // namespace

base::Result<Scenario> load_scenario(const std::string& path) {
  Loader loader;
  return loader.load(path);
}

base::Result<Scenario> read_scenario(const std::string& text, const std::string& path) {
  Loader loader;
  return loader.load_text(text, path);
}

base::Status select_runs(Scenario* scenario, const std::vector<std::string>& names) {
  if (names.empty()) return base::ok();
  std::vector<RunSpec> chosen;
  for (const std::string& name : names) {
    auto found = std::find_if(scenario->runs.begin(), scenario->runs.end(),
                              [&](const RunSpec& r) { return r.name == name; });
    if (found != scenario->runs.end()) {
      chosen.push_back(*found);
      continue;
    }
    RunSpec run{.name = name, .policy = name.substr(0, name.find('@'))};
    bool known = make_any_policy(run.policy, {}) != nullptr;
    if (size_t at = name.find('@'); at != std::string::npos) {
      auto regime = std::find_if(std::begin(kRegimes), std::end(kRegimes),
                                 [&](const Name& n) { return name.substr(at + 1) == n.text; });
      known &= regime != std::end(kRegimes);
      if (known) run.regime = Regime(regime->value);
    }
    if (!known) {
      std::string all;
      for (const RunSpec& r : scenario->runs) all += r.name + ", ";
      for (const std::string& p : any_policy_names()) all += p + ", ";
      all += "each of the latter also with @timesliced, @mps or @mps_priority";
      return base::error(Code::kNotFound, "unknown policy `" + name + "`; known: " + all);
    }
    chosen.push_back(run);
  }
  scenario->runs = std::move(chosen);
  return base::ok();
}

}  // namespace tessera::simulator
