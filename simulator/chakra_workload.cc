#include "simulator/chakra_workload.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <queue>
#include <unordered_map>

namespace tessera::simulator {
namespace {

using chakra::Node;
using chakra::NodeType;

constexpr uint64_t kShortestNs = 200, kLongestNs = 1'000'000'000'000;  // of one kernel, as in scenarios
constexpr uint64_t kMostBlocks = 1u << 31;

bool is_host(const Node& node) {
  return flag(node.attributes, "is_cpu_op") || node.type >= NodeType::kStorage;
}
bool counts(const Node& node) {
  return node.type != NodeType::kInvalid && node.type != NodeType::kMetadata;
}
// Tessera writes nanoseconds beside the schema's microseconds.
uint64_t nanoseconds(const Node& node, const char* attribute, uint64_t us) {
  const uint64_t ns = number(node.attributes, attribute);
  return ns != 0 ? ns : us > UINT64_MAX / 1000 ? UINT64_MAX : us * 1000;
}
uint64_t duration_ns(const Node& node) {
  return std::min(nanoseconds(node, "duration_ns", node.duration_us), kLongestNs);
}
uint64_t start_ns(const Node& node) {
  return nanoseconds(node, "start_ns", node.start_us);
}

template <class F>
void each_dependency(const Node& node, F&& use) {
  for (const auto* list : {&node.control_dependencies, &node.data_dependencies})
    for (const uint64_t id : *list) use(id);
}

// Indices of nodes: none before what it depends on, else by start, else as in the file.
base::Result<std::vector<size_t>> ordered(const std::vector<Node>& nodes,
                                          const std::unordered_map<uint64_t, size_t>& index) {
  std::vector<std::vector<size_t>> successors(nodes.size());
  std::vector<uint32_t> waits_for(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    uint64_t missing = 0;
    bool complete = true;
    each_dependency(nodes[i], [&](uint64_t id) {
      const auto at = index.find(id);
      if (at == index.end()) return void((complete = false, missing = id));
      successors[at->second].push_back(i);
      ++waits_for[i];
    });
    if (!complete)
      return base::error(base::Code::kInvalid, "node " + std::to_string(nodes[i].id) + " depends on node " +
                                                   std::to_string(missing) + ", which is not in the trace");
  }
  using Ready = std::pair<uint64_t, size_t>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (waits_for[i] == 0) ready.push({start_ns(nodes[i]), i});
  std::vector<size_t> order;
  while (!ready.empty()) {
    const size_t i = ready.top().second;
    ready.pop();
    order.push_back(i);
    for (const size_t next : successors[i])
      if (--waits_for[next] == 0) ready.push({start_ns(nodes[next]), next});
  }
  if (order.size() == nodes.size()) return order;
  const auto stuck =
      size_t(std::find_if(waits_for.begin(), waits_for.end(), [](uint32_t n) { return n != 0; }) -
             waits_for.begin());
  return base::error(base::Code::kInvalid,
                     "node " + std::to_string(nodes[stuck].id) + " depends on itself, through others");
}

Kernel kernel_of(const Node& node, uint32_t sm_count) {
  const uint64_t ns = std::max(duration_ns(node), kShortestNs);
  if (node.type != NodeType::kCompute)
    return copy_kernel(ns);  // copies, and what NCCL does, take hardly an SM
  Kernel kernel;
  kernel.sms_per_block = 1.0 / kSlotsPerSm;
  const uint32_t wave = kernel.wave_blocks(sm_count);
  const uint64_t blocks = std::min(number(node.attributes, "blocks"), kMostBlocks);
  kernel.n_blocks = blocks != 0 ? uint32_t(blocks) : wave;
  const uint32_t waves = (kernel.n_blocks + wave - 1) / wave;
  kernel.block_ns = std::max<uint64_t>(1, ns / waves);
  kernel.can_cut = flag(node.attributes, "cut");
  return kernel;
}

// One job of the workload, as its nodes come.
class Job {
 public:
  explicit Job(uint32_t sm_count) : sm_count_(sm_count) {}

  void launch(const Node& node) {
    if (gpu_ns_ == 0) start_ns_ = start_ns(node);
    const Kernel kernel = kernel_of(node, sm_count_);
    gpu_ns_ += kernel.solo_ns(sm_count_);
    const bool same = !open_.empty() && node.name == last_name_ &&
                      kernel.n_blocks == open_.back().segment.kernel.n_blocks &&
                      kernel.can_cut == open_.back().segment.kernel.can_cut;
    if (!same) open_.push_back({Segment{.count = 0, .kernel = kernel}, {}});
    Run& run = open_.back();
    run.segment.count++;
    run.block_ns.push_back(double(kernel.block_ns));
    last_name_ = node.name;
  }
  // The host waits for GPU work, then computes for that time.
  void synchronise(uint64_t host_ns) {
    close();
    if (!steps_.empty()) steps_.back().gap_ns += host_ns;
  }
  void host(uint64_t host_ns) {
    if (open_.empty() && !steps_.empty()) steps_.back().gap_ns += host_ns;
  }
  void close() {
    if (open_.empty()) return;
    Step step;
    for (Run& run : open_) step.segments.push_back(finish(run));
    open_.clear();
    steps_.push_back(std::move(step));
  }
  bool empty() const { return steps_.empty() && open_.empty(); }
  uint64_t gpu_ns() const { return gpu_ns_; }
  uint64_t began_ns() const { return start_ns_; }
  std::vector<Step> take() {
    close();
    return std::move(steps_);
  }

 private:
  struct Run {  // launches of one kernel, one behind the other
    Segment segment;
    std::vector<double> block_ns;
  };
  static Segment finish(Run& run) {
    const double n = double(run.block_ns.size());
    const double mean = std::accumulate(run.block_ns.begin(), run.block_ns.end(), 0.0) / n;
    double squares = 0;
    for (const double ns : run.block_ns) squares += (ns - mean) * (ns - mean);
    run.segment.kernel.block_ns = uint64_t(std::llround(mean));
    run.segment.cv = std::sqrt(squares / n) / mean;
    return run.segment;
  }

  uint32_t sm_count_;
  std::vector<Run> open_;
  std::vector<Step> steps_;
  std::string last_name_;
  uint64_t gpu_ns_ = 0, start_ns_ = 0;
};

// The job of median length stands for all.
Workload one_of(std::vector<Job> jobs, const std::string& name) {
  Workload out;
  out.name = name;
  double sum = 0, squares = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    sum += double(jobs[i].gpu_ns());
    if (i > 0)
      out.recorded_gaps_ns.push_back(
          double(std::max(jobs[i].began_ns(), jobs[i - 1].began_ns()) - jobs[i - 1].began_ns()));
  }
  const double mean = sum / double(jobs.size());
  for (const Job& job : jobs) squares += (double(job.gpu_ns()) - mean) * (double(job.gpu_ns()) - mean);
  out.cv = std::sqrt(squares / double(jobs.size())) / mean;
  const auto middle = jobs.begin() + long(jobs.size() / 2);
  std::nth_element(jobs.begin(), middle, jobs.end(),
                   [](const Job& x, const Job& y) { return x.gpu_ns() < y.gpu_ns(); });
  out.steps = middle->take();
  return out;
}

}  // namespace

base::Result<Workload> workload_of(const chakra::Trace& trace, const std::string& name, uint32_t sm_count) {
  std::unordered_map<uint64_t, size_t> index;
  for (size_t i = 0; i < trace.nodes.size(); ++i)
    if (!index.emplace(trace.nodes[i].id, i).second)
      return base::error(base::Code::kInvalid, "two nodes have the id " + std::to_string(trace.nodes[i].id));
  const auto order = ordered(trace.nodes, index);
  if (!order) return order.error();

  std::map<uint64_t, Job> jobs;  // by burst; 0: all
  uint64_t burst = 0;
  for (const size_t i : *order) {
    const Node& node = trace.nodes[i];
    if (!counts(node)) continue;
    if (!is_host(node)) burst = number(node.attributes, "burst");
    Job& job = jobs.try_emplace(burst, sm_count).first->second;
    if (!is_host(node)) {
      job.launch(node);
      continue;
    }
    bool waits = false;
    each_dependency(node, [&](uint64_t id) { waits |= !is_host(trace.nodes[index.at(id)]); });
    if (waits)
      job.synchronise(duration_ns(node));
    else
      job.host(duration_ns(node));
  }
  std::vector<Job> all;
  for (auto& [number, job] : jobs)
    if (!job.empty()) all.push_back(std::move(job));
  if (all.empty())
    return base::error(base::Code::kInvalid, "no node of the trace runs on the GPU: was anything launched?");
  return one_of(std::move(all), name);
}

}  // namespace tessera::simulator
