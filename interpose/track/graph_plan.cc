#include "interpose/track/graph_plan.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

namespace tessera::track {
namespace {

constexpr size_t kMaxAlign = 16;  // of a parameter

constexpr size_t rounded(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

constexpr size_t kExtraPointers = 5;  // pointer, address, size, address, end

}  // namespace

KernelArguments::KernelArguments(std::span<const size_t> sizes, void* const* params) {
  if (sizes.empty()) return;
  const size_t pointers = rounded(sizes.size() * sizeof(void*), kMaxAlign);
  size_t bytes = pointers;
  for (const size_t size : sizes) bytes += rounded(size, kMaxAlign);
  size_bytes_ = bytes;
  memory_ = std::make_unique<void*[]>(bytes / sizeof(void*));
  auto* at = reinterpret_cast<std::byte*>(memory_.get()) + pointers;
  for (size_t i = 0; i < sizes.size(); i++) {
    memcpy(at, params[i], sizes[i]);
    memory_[i] = at;
    at += rounded(sizes[i], kMaxAlign);
  }
}

KernelArguments::KernelArguments(const void* buffer, size_t n_bytes) : buffer_(true) {
  const size_t head = rounded(kExtraPointers * sizeof(void*) + sizeof(size_t), kMaxAlign);
  size_bytes_ = head + rounded(n_bytes, kMaxAlign);
  memory_ = std::make_unique<void*[]>(size_bytes_ / sizeof(void*));
  auto* bytes = reinterpret_cast<std::byte*>(memory_.get());
  std::byte* count = bytes + kExtraPointers * sizeof(void*);
  memcpy(count, &n_bytes, sizeof n_bytes);
  memcpy(bytes + head, buffer, n_bytes);
  void* const extra[kExtraPointers] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes + head,
                                       CU_LAUNCH_PARAM_BUFFER_SIZE, count, CU_LAUNCH_PARAM_END};
  memcpy(bytes, extra, sizeof extra);
}

void** KernelArguments::params() const {
  return buffer_ ? nullptr : memory_.get();
}
void** KernelArguments::extra() const {
  return buffer_ ? memory_.get() : nullptr;
}

size_t GraphStep::size_bytes() const {
  size_t bytes = sizeof *this;
  if (const auto* kernel = std::get_if<KernelStep>(&work))
    bytes += kernel->arguments.size_bytes() + kernel->attributes.size() * sizeof(CUlaunchAttribute) +
             (kernel->call.launch == 0 && kernel->call.call ? sizeof(CapturedCall) : 0);
  if (const auto* memory = std::get_if<MemoryOpsStep>(&work))
    bytes += memory->ops.size() * sizeof(CUstreamBatchMemOpParams);
  return bytes;
}

GraphStep* GraphPlan::find(CUgraphNode node) {
  if (!node) return nullptr;
  const auto at = std::find_if(steps.begin(), steps.end(), [&](const auto& s) { return s.node == node; });
  return at == steps.end() ? nullptr : &*at;
}

size_t GraphPlan::size_bytes() const {
  size_t bytes = children.size() * sizeof(ChildRange) + lanes.size_bytes();
  for (const GraphStep& step : steps) bytes += step.size_bytes();
  return bytes;
}

void GraphPlan::sum_calls() {
  calls.clear();
  for (const GraphStep& step : steps) {
    const auto* kernel = step.enabled ? std::get_if<KernelStep>(&step.work) : nullptr;
    if (!kernel || !kernel->call.call) continue;
    const CapturedCall& call = *kernel->call.call;
    auto sum = std::find_if(calls.begin(), calls.end(), [&](const CallSum& s) { return s.has(call); });
    if (sum == calls.end()) sum = calls.insert(sum, {.like = kernel->call.call});
    sum->launches++;
    if (kernel->call.launch != 0) continue;
    sum->calls++;
    sum->flop += call.flop;
    sum->bytes += call.bytes;
  }
}

bool GraphPlan::replace_child(CUgraphNode node, GraphPlan&& other) {
  const auto child =
      std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.node == node; });
  if (child == children.end() || child->count != other.steps.size()) return false;
  for (uint32_t i = 0; i < child->count; i++)
    if (steps[child->first + i].work.index() != other.steps[i].work.index()) return false;
  lanes = {};  // edges inside were not compared
  for (uint32_t i = 0; i < child->count; i++) {
    GraphStep& step = steps[child->first + i];
    step.work = std::move(other.steps[i].work);
    step.node = nullptr;
  }
  const uint32_t first = child->first, end = first + child->count;
  std::erase_if(children, [&](const ChildRange& c) {  // those inside it can no longer be named either
    return c.node != node && c.first >= first && c.first + c.count <= end && c.count != 0;
  });
  return true;
}

std::vector<uint32_t> topological_order(uint32_t n, std::span<const GraphEdge> edges) {
  std::vector<uint32_t> missing(n), begin(n + 1), next(edges.size()), order;
  for (const GraphEdge& e : edges) {
    if (e.from >= n || e.to >= n) return {};
    missing[e.to]++;
    begin[e.from + 1]++;
  }
  for (uint32_t i = 0; i < n; i++) begin[i + 1] += begin[i];
  std::vector<uint32_t> at = begin;
  for (const GraphEdge& e : edges) next[at[e.from]++] = e.to;
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
  for (uint32_t i = 0; i < n; i++)
    if (missing[i] == 0) ready.push(i);
  order.reserve(n);
  while (!ready.empty()) {
    const uint32_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (uint32_t i = begin[node]; i < begin[node + 1]; i++)
      if (--missing[next[i]] == 0) ready.push(next[i]);
  }
  if (order.size() != n) order.clear();
  return order;
}

GraphObstacle obstacle_of(CUgraphNodeType type) {
  switch (int(type)) {  // a newer driver may have types that the header lacks
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_HOST:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return GraphObstacle::kNone;
    default:
      return GraphObstacle::kNodeType;
  }
}

GraphObstacle obstacle_of_flags(unsigned long long flags) {
  // Memory nodes are in the way by themselves; an upload is over when the launch comes; kernels keep their priority.
  constexpr unsigned long long kHarmless = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                           CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                           CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  return (flags & ~kHarmless) == 0 ? GraphObstacle::kNone : GraphObstacle::kFlags;
}

GraphObstacle obstacle_of(const CUgraphEdgeData& edge) {
  const bool known =
      edge.type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT || edge.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  return known && edge.from_port <= CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER && edge.to_port == 0
             ? GraphObstacle::kNone
             : GraphObstacle::kEdge;
}

GraphObstacle obstacle_of(std::span<const CUstreamBatchMemOpParams> ops) {
  for (const CUstreamBatchMemOpParams& op : ops) {
    int operation = 0;  // a newer driver may have some that the header's type cannot hold
    memcpy(&operation, &op.operation, sizeof operation);
    switch (operation) {
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        break;
      default:
        return GraphObstacle::kNodeType;
    }
  }
  return GraphObstacle::kNone;
}

std::span<const CUlaunchAttributeID> attributes_to_read() {
  static constexpr CUlaunchAttributeID kAll[] = {
      CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
      CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
      CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
      CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
      CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
      CU_LAUNCH_ATTRIBUTE_PRIORITY,
      CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
  };
  return kAll;
}

GraphObstacle obstacle_of(const CUlaunchAttribute& attribute, bool* pass_on) {
  const CUlaunchAttributeValue& value = attribute.value;
  *pass_on = false;
  bool in_the_way = false;
  switch (int(attribute.id)) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      *pass_on = uint64_t(value.clusterDim.x) * value.clusterDim.y * value.clusterDim.z > 1;
      break;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      *pass_on = value.accessPolicyWindow.num_bytes != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      *pass_on = value.cooperative != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      *pass_on =
          uint64_t(value.preferredClusterDim.x) * value.preferredClusterDim.y * value.preferredClusterDim.z >
          1;
      break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      *pass_on = value.memSyncDomain != CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
      break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      *pass_on = value.priority != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      in_the_way = value.deviceUpdatableKernelNode.deviceUpdatable != 0;
      break;
    default:
      in_the_way = true;
  }
  return in_the_way ? GraphObstacle::kAttribute : GraphObstacle::kNone;
}

}  // namespace tessera::track
