#include "simulator/traces/program.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "simulator/traces/pattern.h"

namespace tessera::simulator::traces {
namespace {

constexpr int64_t kUs = 1000;
constexpr int64_t kUsualLatencyNs = 5 * kUs;  // launch until start, where none can be seen
constexpr int64_t kAtOnceNs = 3 * kUs;        // gaps between kernels that no cause needs to be found for
constexpr int64_t kMostArrivalNs = 20 * kUs;  // later than its launch arrived: something else was waited for
constexpr int64_t kReturnsNs = 20 * kUs;      // end of the work until the host's wait for it returns
constexpr int64_t kLongCallNs = 20 * kUs;     // of a call that also waits
constexpr size_t kQueueIsFull = 900;          // launches that are not done; drivers take 1,021
constexpr uint64_t kShortestNs = 200;         // of a block, as draw_job() has it
constexpr uint64_t kMostBlocks = 1u << 31;
constexpr double kNarrow = 0.5;  // of the SMs: with fewer blocks a kernel waits for latencies

std::string text_of(const char* format, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

struct Iteration {
  int64_t host_ns = kNotRecorded;    // where its host time begins
  std::vector<const Event*> events;  // by call
};

// Work of one iteration in the only stream: pieces of it that add time.
struct Piece {
  const Event* event;
  int64_t start_ns, end_ns;
  int64_t call_ns;    // from when on it could be launched
  bool first = true;  // of its event
};

struct Wait {  // the host waits until all that was launched before has ended
  int64_t begin_ns, over_ns;
};

// Counts of what was inferred, over all iterations.
struct Seen {
  size_t kernels = 0, beside = 0, without_grid = 0, unknown = 0, dependencies = 0, full_queue = 0, graphs = 0;
  int64_t kernel_ns = 0, beside_ns = 0, without_grid_ns = 0, unknown_ns = 0, dependency_ns = 0, behind_ns = 0;
  double scaled_ns = 0;
};

class Converter {
 public:
  Converter(const Recording& recording, const Reading& how) : recording_(recording), how_(how) {}

  base::Result<Program> convert(const std::string& name) {
    if (base::Status s = choose_device(); !s.ok()) return s.error();
    classify_names();
    latency_ns_ = latency();
    std::vector<Iteration> iterations = split();
    if (iterations.empty() && !how_.range.empty())
      return wrong("the GPU has no work in ranges whose names begin with `" + how_.range + "`");
    if (iterations.empty()) return wrong("no work of the GPU: was anything launched while it was recorded?");
    shape_lengths();

    Program out;
    out.workload.name = name;
    n_iterations_ = iterations.size();
    for (size_t i = 1; i < iterations.size(); ++i)
      out.workload.recorded_gaps_ns.push_back(
          double(std::max<int64_t>(0, iterations[i].host_ns - iterations[i - 1].host_ns)));
    if (how_.use == Use::kLoop) join(&iterations);
    std::vector<Job> jobs;
    for (const Iteration& iteration : iterations) jobs.push_back(job_of(iteration));
    double sum = 0, squares = 0;
    for (const Job& job : jobs) sum += double(job.gpu_ns);
    const double mean = sum / double(jobs.size());
    for (const Job& job : jobs) squares += (double(job.gpu_ns) - mean) * (double(job.gpu_ns) - mean);
    out.workload.cv = mean > 0 ? std::sqrt(squares / double(jobs.size())) / mean : 0;
    const auto middle = jobs.begin() + long(jobs.size() / 2);
    std::nth_element(jobs.begin(), middle, jobs.end(),
                     [](const Job& x, const Job& y) { return x.gpu_ns < y.gpu_ns; });
    out.workload.steps = std::move(middle->steps);
    out.recorded_ns = uint64_t(middle->recorded_ns);
    out.factor = seen_.kernel_ns > 0 ? seen_.scaled_ns / double(seen_.kernel_ns) : 1;
    say(&out);
    return out;
  }

 private:
  struct Job {
    std::vector<Step> steps;
    int64_t gpu_ns = 0, recorded_ns = 0;
  };
  struct Shape {  // launches of one name and grid
    double sum_ns = 0;
    size_t count = 0;
  };

  base::Error wrong(const std::string& what) const {
    return base::error(base::Code::kInvalid, recording_.file + ": " + what);
  }

  // The one with most work; the others are left out.
  base::Status choose_device() {
    std::map<uint32_t, int64_t> work_ns;
    for (const Event& e : recording_.events)
      if (e.on_gpu()) work_ns[e.device] += e.length_ns + 1;
    if (work_ns.empty()) return wrong("no work of the GPU: was anything launched while it was recorded?");
    device_ = std::max_element(work_ns.begin(), work_ns.end(), [](const auto& x, const auto& y) {
                return x.second < y.second;
              })->first;
    if (work_ns.size() > 1)
      remarks_.push_back(
          text_of("of %zu GPUs the one with most work was taken, number %u", work_ns.size(), device_));
    source_ = how_.source;
    const auto named = recording_.devices.find(device_);
    // Inside a container the driver's numbers may not be the profiler's.
    const std::string gpu = named != recording_.devices.end() ? named->second
                            : !recording_.devices.empty()     ? recording_.devices.begin()->second
                                                              : "";
    if (source_ == nullptr) source_ = device_of_name(gpu);
    if (source_ == nullptr)
      return wrong((gpu.empty() ? "it does not say on which GPU it was recorded"
                                : "`" + gpu + "` is not a known GPU") +
                   "; say which one it is like: " + device_keys());
    return base::ok();
  }

  void classify_names() {
    for (const std::string& name : recording_.names) {
      works_.push_back(work_of(name));
      triton_.push_back(is_of_triton(name));
      attention_.push_back(is_attention(name));
    }
  }
  bool is_ours(const Event& e) const { return e.device == device_ || e.device == kAnyDevice; }
  bool computes(const Event& e) const {
    return e.kind == EventKind::kKernel && works_[e.name] != Work::kCollective;
  }

  // Iterations in order of time, each with its events in order of the host call.
  std::vector<Iteration> split() {
    std::vector<Range> ranges;
    for (const Range& r : recording_.ranges)
      if (how_.range.empty() ? r.name.starts_with("ProfilerStep#") : r.name.starts_with(how_.range))
        ranges.push_back(r);
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& x, const Range& y) { return x.start_ns < y.start_ns; });
    std::vector<const Event*> events;
    for (const Event& e : recording_.events)
      if (is_ours(e)) events.push_back(&e);
    std::stable_sort(events.begin(), events.end(),
                     [](const Event* x, const Event* y) { return call_or_start(*x) < call_or_start(*y); });
    const bool named = !ranges.empty();
    if (!named && !how_.range.empty()) return {};
    if (!named && recording_.steps.empty() && how_.use == Use::kRequest) ranges = pattern(events);
    std::map<int64_t, Iteration> found;
    size_t outside = 0;
    for (const Event* e : events) {
      int64_t key = 0;
      if (!ranges.empty()) {
        const int64_t at = call_or_start(*e);
        const auto after = std::upper_bound(ranges.begin(), ranges.end(), at,
                                            [](int64_t t, const Range& r) { return t < r.start_ns; });
        if (after == ranges.begin() || std::prev(after)->end_ns < at || e->call_ns == kNotRecorded) {
          outside += e->on_gpu();
          continue;
        }
        key = std::prev(after) - ranges.begin();
      } else if (!recording_.steps.empty()) {
        if (e->step == kNoStep) {
          loose_.push_back(e);
          continue;
        }
        key = e->step;
      }
      found[key].events.push_back(e);
    }
    // Waits without a mark belong to the iteration in which they are.
    for (const Event* e : loose_) place_loose(e, &found);
    std::vector<Iteration> out;
    for (auto& [key, iteration] : found) {
      const bool works = std::any_of(iteration.events.begin(), iteration.events.end(),
                                     [](const Event* e) { return e->on_gpu(); });
      if (!works) continue;
      iteration.host_ns =
          ranges.empty() ? call_or_start(*iteration.events.front()) : ranges[size_t(key)].start_ns;
      out.push_back(std::move(iteration));
    }
    for (Iteration& iteration : out) {
      // A wait before it launches anything is for earlier work.
      const auto launch = std::find_if(iteration.events.begin(), iteration.events.end(),
                                       [](const Event* e) { return e->on_gpu(); });
      for (auto wait = iteration.events.begin(); wait != launch; ++wait)
        iteration.host_ns =
            std::max(iteration.host_ns, std::min((*wait)->call_end_ns(), call_or_start(**launch)));
      iteration.events.erase(iteration.events.begin(), launch);
      const Event& first = *iteration.events.front();
      if (first.may_block && first.call_length_ns > kLongCallNs && first.call_end_ns() >= first.start_ns)
        iteration.host_ns += std::max<int64_t>(0, first.start_ns - latency_ns_ - call_or_start(first));
    }
    marks_ = named                       ? how_.range.empty() ? "ProfilerStep" : how_.range
             : !recording_.steps.empty() ? "marks of the file"
             : !ranges.empty()           ? "launches that repeat, with a wait in each"
                                         : "";
    if (outside > 0)
      remarks_.push_back(text_of(
          "%zu operations outside of iterations, or launched before the recording began, were left out",
          outside));
    return out;
  }
  // Iterations that nobody marked.
  static std::vector<Range> pattern(const std::vector<const Event*>& events) {
    std::vector<Launched> launches;
    bool waits = false;
    for (const Event* e : events) {
      if (e->on_gpu())
        launches.push_back(
            {(uint64_t(e->name) << 32) ^ e->blocks ^ (uint64_t(e->kind) << 62), call_or_start(*e), waits});
      waits = !e->on_gpu();
    }
    const std::vector<size_t> begins = repeated_pattern(launches);
    std::vector<Range> out;
    for (size_t i = 1; i < begins.size(); ++i)
      out.push_back(
          {"", launches[begins[i - 1]].call_ns,
           begins[i] < launches.size() ? launches[begins[i]].call_ns - 1 : call_or_start(*events.back())});
    return out;
  }

  static int64_t call_or_start(const Event& e) { return e.call_ns == kNotRecorded ? e.start_ns : e.call_ns; }

  static void place_loose(const Event* e, std::map<int64_t, Iteration>* iterations) {
    Iteration* into = nullptr;
    for (auto& [key, iteration] : *iterations)
      if (!iteration.events.empty() && call_or_start(*iteration.events.front()) <= e->call_ns)
        into = &iteration;
    if (into == nullptr) return;
    const auto at = std::upper_bound(
        into->events.begin(), into->events.end(), e,
        [](const Event* x, const Event* y) { return call_or_start(*x) < call_or_start(*y); });
    into->events.insert(at, e);
  }

  // One iteration of all, since one may begin before the work of the last has ended.
  static void join(std::vector<Iteration>* iterations) {
    Iteration& all = iterations->front();
    for (size_t i = 1; i < iterations->size(); ++i) {
      const std::vector<const Event*>& more = (*iterations)[i].events;
      all.events.insert(all.events.end(), more.begin(), more.end());
    }
    std::stable_sort(all.events.begin(), all.events.end(),
                     [](const Event* x, const Event* y) { return call_or_start(*x) < call_or_start(*y); });
    iterations->resize(1);
  }

  // From a launch's call until its work begins, if nothing is before it.
  int64_t latency() const {
    std::vector<const Event*> ops;
    for (const Event& e : recording_.events)
      if (e.on_gpu() && is_ours(e)) ops.push_back(&e);
    std::sort(ops.begin(), ops.end(),
              [](const Event* x, const Event* y) { return x->start_ns < y->start_ns; });
    std::vector<int64_t> seen;
    int64_t end_ns = std::numeric_limits<int64_t>::min();
    for (const Event* e : ops) {
      if (e->kind == EventKind::kKernel && e->graph == 0 && e->call_ns != kNotRecorded &&
          e->call_ns > end_ns && e->start_ns > e->call_ns)
        seen.push_back(e->start_ns - e->call_ns);
      end_ns = std::max(end_ns, e->end_ns());
    }
    if (seen.empty()) return kUsualLatencyNs;
    const auto low = seen.begin() + long(seen.size() / 10);
    std::nth_element(seen.begin(), low, seen.end());
    return std::min(*low, kMostArrivalNs);
  }

  void shape_lengths() {
    for (const Event& e : recording_.events) {
      if (e.kind != EventKind::kKernel || !is_ours(e)) continue;
      Shape& shape = shapes_[{e.name, e.blocks}];
      shape.sum_ns += double(e.length_ns);
      ++shape.count;
    }
  }

  // ---- one iteration

  // Its work without what ran beside other work: kernels first, then copies and collectives where no kernel ran.
  std::vector<Piece> pieces_of(const Iteration& iteration, const std::map<const Event*, int64_t>& calls) {
    std::vector<Piece> kernels, others;
    for (const Event* e : iteration.events)
      if (e->on_gpu())
        (computes(*e) ? kernels : others).push_back({e, e->start_ns, e->end_ns(), calls.at(e)});
    const auto by_start = [](const Piece& x, const Piece& y) { return x.start_ns < y.start_ns; };
    std::stable_sort(kernels.begin(), kernels.end(), by_start);
    std::stable_sort(others.begin(), others.end(), by_start);
    std::vector<Piece> out;
    int64_t end_ns = std::numeric_limits<int64_t>::min();
    for (Piece p : kernels) {
      const int64_t covered_ns = std::min(p.end_ns, std::max(p.start_ns, end_ns)) - p.start_ns;
      if (covered_ns > 0) {
        ++seen_.beside;
        seen_.beside_ns += covered_ns;
      }
      p.start_ns += covered_ns;
      end_ns = std::max(end_ns, p.end_ns);
      if (covered_ns == 0 || p.end_ns > p.start_ns) out.push_back(p);
    }
    // The pieces in which nothing runs yet, from one kernel's end to the next one's start.
    std::vector<Piece> filled;
    size_t k = 0;
    int64_t from_ns = std::numeric_limits<int64_t>::min();
    for (const Piece& other : others) {
      Piece p = other;
      bool first = true;
      const int64_t begun_ns = std::max(p.start_ns, from_ns);
      while (k > 0 && out[k - 1].end_ns > begun_ns)
        --k;  // pieces of others may begin before the last one's end
      for (size_t i = k; begun_ns <= p.end_ns; ++i) {
        const int64_t gap_from_ns =
            std::max(begun_ns, i == 0 ? std::numeric_limits<int64_t>::min() : out[i - 1].end_ns);
        const int64_t gap_to_ns =
            std::min(p.end_ns, i == out.size() ? std::numeric_limits<int64_t>::max() : out[i].start_ns);
        const bool whole = gap_from_ns == p.start_ns && gap_to_ns == p.end_ns;
        if (gap_to_ns - gap_from_ns > kAtOnceNs || (whole && gap_to_ns >= gap_from_ns)) {
          filled.push_back({p.event, gap_from_ns, gap_to_ns, p.call_ns, first});
          first = false;
        }
        if (i == out.size() || out[i].start_ns >= p.end_ns) break;
        k = i;
      }
      if (first) {
        ++seen_.beside;
        seen_.beside_ns += p.end_ns - p.start_ns;
      }
      from_ns = std::max(from_ns, p.end_ns);
    }
    out.insert(out.end(), filled.begin(), filled.end());
    std::stable_sort(out.begin(), out.end(), by_start);
    return out;
  }

  // Returns where the host waits; and for each operation from when on it could be launched.
  std::vector<Wait> waits_of(const Iteration& iteration, std::map<const Event*, int64_t>* calls) const {
    std::vector<Wait> waits;
    int64_t end_ns = std::numeric_limits<int64_t>::min();  // of all that was launched so far
    int64_t last_call_ns = iteration.host_ns;
    for (size_t i = 0; i < iteration.events.size(); ++i) {
      const Event& e = *iteration.events[i];
      const int64_t call_ns = std::max(last_call_ns, e.call_ns == kNotRecorded ? last_call_ns : e.call_ns);
      const int64_t over_ns = e.call_ns == kNotRecorded ? call_ns : e.call_end_ns();
      // Others launch meanwhile: not all of the program waits.
      const bool alone = i + 1 == iteration.events.size() ||
                         call_or_start(*iteration.events[i + 1]) >= std::min(over_ns, end_ns);
      const bool waits_for_earlier = end_ns > call_ns + kUs && end_ns <= over_ns + kReturnsNs && alone;
      last_call_ns = call_ns;
      if (e.kind == EventKind::kWait) {
        if (waits_for_earlier) waits.push_back({call_ns, last_call_ns = std::max(over_ns, end_ns)});
        continue;
      }
      const bool long_call = e.may_block && e.call_length_ns > kLongCallNs;
      if (long_call && waits_for_earlier && end_ns <= e.start_ns)
        waits.push_back({call_ns, last_call_ns = std::max(end_ns, call_ns)});
      (*calls)[&e] = last_call_ns;
      end_ns = std::max(end_ns, e.end_ns());
      if (long_call && e.end_ns() <= over_ns + kUs && end_ns <= over_ns + kUs && alone)
        waits.push_back({last_call_ns + 1, last_call_ns = std::max(over_ns, end_ns)});
    }
    return waits;
  }

  // How much of each launch's call the host only waited because the driver's queue was full.
  std::map<const Event*, int64_t> queue_waits(const Iteration& iteration) {
    std::map<const Event*, int64_t> out;
    std::vector<int64_t> ends;
    for (const Event* e : iteration.events)
      if (e->on_gpu()) ends.push_back(e->end_ns());
    std::sort(ends.begin(), ends.end());
    size_t launched = 0;
    for (const Event* e : iteration.events) {
      if (!e->on_gpu()) continue;
      const auto done = size_t(std::upper_bound(ends.begin(), ends.end(), e->call_ns) - ends.begin());
      if (launched > done + kQueueIsFull && e->call_length_ns > kLongCallNs) {
        out[e] = e->call_length_ns - kLongCallNs / 2;
        ++seen_.full_queue;
      }
      ++launched;
    }
    return out;
  }

  Job job_of(const Iteration& iteration) {
    std::map<const Event*, int64_t> calls;
    const std::vector<Wait> waits = waits_of(iteration, &calls);
    const std::map<const Event*, int64_t> in_queue = queue_waits(iteration);
    std::vector<Piece> pieces = pieces_of(iteration, calls);
    const auto step_of = [&](const Piece& p) {
      return std::upper_bound(waits.begin(), waits.end(), p.call_ns,
                              [](int64_t at, const Wait& w) { return at < w.begin_ns; }) -
             waits.begin();
    };
    std::stable_sort(pieces.begin(), pieces.end(),
                     [&](const Piece& x, const Piece& y) { return step_of(x) < step_of(y); });

    Job job;
    const auto gap_ns = int64_t(how_.costs.gap_ns), sync_ns = int64_t(how_.costs.sync_ns);
    const Piece& first = pieces.front();
    // A delay because earlier work ran is not this iteration's.
    const int64_t behind_ns = std::max<int64_t>(0, first.start_ns - (first.call_ns + latency_ns_));
    const bool behind = behind_ns > kMostArrivalNs;
    if (behind) seen_.behind_ns = std::max(seen_.behind_ns, behind_ns);
    int64_t host_ns = iteration.host_ns;                                 // of the recording
    int64_t debt_ns = behind && how_.use == Use::kLoop ? behind_ns : 0;  // by which the replay's host is late
    int64_t free_ns = first.start_ns - gap_ns;                           // when the GPU was free
    long step = -1;
    uint64_t graph = 0;
    bool opens = true;  // the next launch is the first after a wait
    int64_t arrived_ns = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      if (step_of(p) != step) {
        if (step >= 0) end_step(&job, waits[size_t(step_of(p)) - 1].over_ns, free_ns, &debt_ns);
        if (step_of(p) > 0) host_ns = waits[size_t(step_of(p)) - 1].over_ns;
        step = step_of(p);
        job.steps.emplace_back();
        opens = true;
        graph = 0;
      }
      const bool joins = !opens && (!p.first || (graph != 0 && p.event->graph == graph));
      if (p.event->graph != 0 && p.event->graph != graph) ++seen_.graphs;
      graph = p.event->graph;
      const int64_t ready_ns = p.call_ns + latency_ns_;
      const bool queued = i == 0 ? behind : free_ns + gap_ns + kUs >= ready_ns;
      const int64_t could_ns = queued ? std::max(ready_ns, free_ns + gap_ns) : ready_ns;
      int64_t late_ns = p.start_ns - could_ns;
      if (i == 0 && behind) late_ns = 0;
      // Something else than the launch and the stream was waited for.
      const bool waited = late_ns > (queued ? kAtOnceNs : kMostArrivalNs);
      // When the launch has to arrive at the GPU, so that the work begins as it did.
      const int64_t arrives_ns = queued || waited ? ready_ns : std::max(p.start_ns, host_ns);
      int64_t host_time_ns = 0;
      if (!joins) {
        const auto launch_ns = int64_t(how_.costs.launch_ns);
        const int64_t since_ns = opens ? host_ns : arrived_ns;
        const int64_t want_ns = std::max<int64_t>(0, arrives_ns - since_ns) - launch_ns - debt_ns;
        host_time_ns = std::max<int64_t>(0, want_ns);
        debt_ns = host_time_ns - want_ns;
        arrived_ns = std::max(since_ns, arrives_ns);
        host_ns = std::max(host_ns, p.call_ns);
        if (const auto waited_in_call = in_queue.find(p.event); waited_in_call != in_queue.end())
          debt_ns += waited_in_call->second;
      }
      if (waited) {
        ++seen_.dependencies;
        seen_.dependency_ns += late_ns;
        Kernel nothing = copy_kernel(uint64_t(std::max<int64_t>(kUs, late_ns - gap_ns)));
        job.steps.back().segments.push_back(
            {.kernel = nothing, .host_ns = uint64_t(host_time_ns), .joins = joins});
      }
      const int64_t from_ns =
          waited || !queued || (i == 0 && behind) ? p.start_ns : std::max(ready_ns, free_ns + gap_ns);
      const int64_t length_ns = std::max<int64_t>(int64_t(kShortestNs), p.end_ns - from_ns);
      job.steps.back().segments.push_back({.kernel = kernel_of(*p.event, length_ns),
                                           .host_ns = waited ? 0 : uint64_t(host_time_ns),
                                           .joins = joins || waited,
                                           .of_tokens = attention_[p.event->name]});
      job.gpu_ns += p.end_ns - p.start_ns;
      free_ns = std::max(free_ns, p.end_ns);
      opens = false;
    }
    const bool waits_at_end = size_t(step) < waits.size();
    const int64_t end_ns = waits_at_end ? waits.back().over_ns : free_ns + sync_ns;
    job.recorded_ns = end_ns - iteration.host_ns - (behind ? behind_ns : 0);
    return job;
  }

  // The host goes on at `over_ns`, having waited for work that ended at `end_ns`.
  void end_step(Job* job, int64_t over_ns, int64_t end_ns, int64_t* debt_ns) const {
    const int64_t gap_ns = over_ns - end_ns - int64_t(how_.costs.sync_ns) - *debt_ns;
    job->steps.back().gap_ns = uint64_t(std::max<int64_t>(0, gap_ns));
    *debt_ns = std::max<int64_t>(0, -gap_ns);
  }

  Kernel kernel_of(const Event& e, int64_t length_ns) {
    const Device& target = *how_.target;
    if (!computes(e)) {
      Kernel copy = copy_kernel(uint64_t(length_ns));
      copy.collective = e.kind == EventKind::kKernel;
      return copy;
    }
    const Work work = works_[e.name];
    ++seen_.kernels;
    seen_.kernel_ns += length_ns;
    if (work == Work::kUnknown) {
      ++seen_.unknown;
      seen_.unknown_ns += length_ns;
    }
    const uint64_t scaled_ns =
        std::max(kShortestNs, uint64_t(double(length_ns) * length_factor(work, *source_, target)));
    seen_.scaled_ns += double(scaled_ns);
    Kernel kernel;
    const uint32_t per_sm =
        e.threads_per_block == 0
            ? kSlotsPerSm
            : std::max(1u,
                       profiles::blocks_per_sm(target, e.threads_per_block, e.registers,
                                               uint32_t(std::min<uint64_t>(e.shared_bytes, UINT32_MAX / 2))));
    kernel.sms_per_block = 1.0 / per_sm;
    const uint64_t wave = kernel.wave_blocks(target.sm.count);
    uint64_t blocks = std::min(e.blocks, kMostBlocks);
    if (blocks == 0) {
      blocks = wave;
      ++seen_.without_grid;
      seen_.without_grid_ns += length_ns;
    }
    // Blocks shorter than the model's shortest are joined.
    const uint64_t waves = std::clamp<uint64_t>((blocks + wave - 1) / wave, 1, scaled_ns / kShortestNs);
    kernel.n_blocks = uint32_t(std::min(blocks, waves * wave));
    kernel.block_ns = std::max(kShortestNs, scaled_ns / waves);
    const Shape& shape = shapes_.at({e.name, e.blocks});
    const double usual = e.length_ns > 0 ? shape.sum_ns / double(shape.count) / double(e.length_ns) : 1;
    kernel.usual_block_ns = std::max<uint64_t>(1, uint64_t(double(kernel.block_ns) * usual));
    const bool narrow = double(blocks) < kNarrow * target.sm.count;
    kernel.resource_class = work == Work::kUnknown  ? policy::ResourceClass::kUnknown
                            : narrow                ? policy::ResourceClass::kLatency
                            : work == Work::kMemory ? policy::ResourceClass::kMemory
                                                    : policy::ResourceClass::kCompute;
    kernel.can_cut =
        how_.cuttable == Cuttable::kAll || (how_.cuttable == Cuttable::kTriton && triton_[e.name]);
    return kernel;
  }

  void say(Program* out) {
    std::vector<std::string>& say = out->inferred;
    const double kernel_ns = std::max(1.0, double(seen_.kernel_ns));
    const auto percent = [&](int64_t ns) { return 100 * double(ns) / kernel_ns; };
    say.push_back(marks_.empty()
                      ? "the whole recording is one iteration: it has no marks, and nothing repeats with a "
                        "wait in each; a range names others"
                      : text_of("iterations by %s: %zu; %s", marks_.c_str(), n_iterations_,
                                how_.use == Use::kLoop ? "all of them are repeated"
                                                       : "the one of median GPU time stands for all"));
    say.push_back(
        text_of("recorded on %s, simulated on %s; kernels take %.2f of their recorded time there (compute by "
                "peak, memory by bandwidth, launch times as recorded)",
                source_->path.c_str(), how_.target->path.c_str(),
                seen_.kernel_ns > 0 ? seen_.scaled_ns / double(seen_.kernel_ns) : 1));
    say.push_back(text_of("a launch arrives %.1f us after its call begins", double(latency_ns_) / 1000));
    if (seen_.graphs > 0)
      say.push_back(text_of("%zu launches of CUDA graphs are one call each", seen_.graphs));
    if (seen_.beside > 0)
      say.push_back(text_of(
          "one stream: %zu operations ran beside others (%.1f %% of kernel time), and count only where "
          "they were alone",
          seen_.beside, percent(seen_.beside_ns)));
    if (seen_.dependencies > 0)
      say.push_back(
          text_of("%zu times the GPU waited for something that was not recorded (%.1f %% of kernel time)",
                  seen_.dependencies, percent(seen_.dependency_ns)));
    if (seen_.behind_ns > 0)
      say.push_back(text_of("the first launch waited %.1f ms behind earlier work, which was left out",
                            double(seen_.behind_ns) / 1e6));
    if (seen_.full_queue > 0)
      say.push_back(text_of("%zu calls waited because the driver's queue was full: that is no host time",
                            seen_.full_queue));
    if (seen_.without_grid > 0)
      say.push_back(
          text_of("%zu kernels have no grid (%.1f %% of kernel time): they are taken to fill the GPU once",
                  seen_.without_grid, percent(seen_.without_grid_ns)));
    if (seen_.unknown > 0)
      say.push_back(text_of("%zu kernels have names that say nothing (%.1f %% of kernel time): class unknown",
                            seen_.unknown, percent(seen_.unknown_ns)));
    for (const std::string& remark : remarks_) say.push_back(remark);
    for (const std::string& remark : recording_.remarks) say.push_back(remark);
  }

  const Recording& recording_;
  const Reading& how_;
  const Device* source_ = nullptr;
  uint32_t device_ = 0;
  size_t n_iterations_ = 0;
  int64_t latency_ns_ = kUsualLatencyNs;
  std::vector<Work> works_;               // by name
  std::vector<bool> triton_, attention_;  // by name
  std::vector<const Event*> loose_;
  std::map<std::pair<uint32_t, uint64_t>, Shape> shapes_;
  std::string marks_;
  std::vector<std::string> remarks_;
  Seen seen_;
};

}  // namespace

base::Result<Program> program_of(const Recording& recording, const std::string& name,
                                 const Reading& reading) {
  return Converter(recording, reading).convert(name);
}

}  // namespace tessera::simulator::traces
