// An executable graph as pieces that can be launched one by one: kernels, copies, fills, events and host functions in an
// order that respects the edges, with their own copies of all parameters. Pure: plain data, no driver call, no clock. Not
// synchronised: the holder of the graph's lock may change it (graphs.h). Allocates, may throw bad_alloc.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "driver_api/real_table.h"
#include "interpose/track/graph_lanes.h"
#include "interpose/track/graph_notes.h"

namespace tessera::track {

// Why a graph is launched as a whole. Rows: obstacle, name in the log, what it means.
#define TS_GRAPH_OBSTACLES(X)                                                                          \
  X(kNodeType, "graph_node", "memory of the graph, semaphores, waits for memory, conditions, unknown") \
  X(kEdge, "graph_edge", "an edge of an unknown kind, or a cycle")                                     \
  X(kFlags, "graph_flags", "device launch, unknown flags")                                             \
  X(kAttribute, "graph_attribute", "a kernel node that the device may update")                         \
  X(kKernel, "graph_kernel", "parameters of a kernel are not known, or it is a collective")            \
  X(kCopy, "graph_copy", "a copy from or to memory that is not surely pinned or on the device")        \
  X(kContext, "graph_context", "a node in another context")                                            \
  X(kUserObject, "graph_user_object", "the program ties objects to the life of graphs")                \
  X(kUpdate, "graph_update", "changed in a way that is not followed, or a change failed")              \
  X(kState, "graph_state", "a graph inside it may be as an executable graph was changed")              \
  X(kLimit, "graph_limit", "too many nodes, or too much memory for their parameters")                  \
  X(kNotRead, "graph_not_read", "a capture was open, or the driver did not answer")

enum class GraphObstacle : uint8_t {
#define TS_ROW(id, name, text) id,
  TS_GRAPH_OBSTACLES(TS_ROW)
#undef TS_ROW
      kNone
};
inline constexpr uint8_t kGraphObstacleCount = uint8_t(GraphObstacle::kNone);

// Values of a kernel's parameters, copied. Movable; pointers handed out stay valid.
class KernelArguments {
 public:
  KernelArguments() = default;
  // One value per size from where `params` point; `params` may be null if there are none.
  KernelArguments(std::span<const size_t> sizes, void* const* params);
  // A parameter buffer (`extra` of a launch).
  KernelArguments(const void* buffer, size_t n_bytes);

  // As cuLaunchKernel takes them; one of the two is null.
  void** params() const;
  void** extra() const;
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::unique_ptr<void*[]> memory_;  // pointers first, then the values they point to
  size_t size_bytes_ = 0;
  bool buffer_ = false;
};

struct KernelStep {
  CUfunction function = nullptr;  // or a CUkernel, as launches take it:
  bool is_library_kernel = false;
  uint32_t grid[3] = {}, block[3] = {}, shared_bytes = 0;
  KernelArguments arguments;
  std::vector<CUlaunchAttribute> attributes;
  NodeCall call;  // of a library, that it belongs to

  uint64_t blocks() const { return uint64_t(grid[0]) * grid[1] * grid[2]; }
  uint32_t threads() const { return block[0] * block[1] * block[2]; }
};
struct CopyStep {
  CUDA_MEMCPY3D box;
};
struct FillStep {
  CUDA_MEMSET_NODE_PARAMS area;
};
struct HostStep {
  CUDA_HOST_NODE_PARAMS call;
};
struct EventStep {
  CUevent event;
  bool waits;  // else it is recorded
};

// Writes and barriers: a wait could be for something that comes behind it in the order of steps.
struct MemoryOpsStep {
  std::vector<CUstreamBatchMemOpParams> ops;
  unsigned flags;
};

struct GraphStep {
  CUgraphNode node = nullptr;  // of the graph it was made from; null: can no longer be named
  bool enabled = true;
  std::variant<KernelStep, CopyStep, FillStep, HostStep, EventStep, MemoryOpsStep> work;
  size_t size_bytes() const;
};

// Steps of one child graph (its own children among them), for changes of the child as a whole.
struct ChildRange {
  CUgraphNode node;
  uint32_t first, count;
};

// Calls of one function and element type.
struct CallSum {
  std::shared_ptr<const CapturedCall> like;  // one of them
  uint64_t calls = 0, launches = 0, flop = 0, bytes = 0;
  uint64_t gpu_ns = 0;  // that the launches are expected to take; who launches the graph writes it
  bool has(const CapturedCall& call) const { return like->entry == call.entry && like->type == call.type; }
};

struct GraphPlan {
  std::vector<GraphStep> steps;  // a predecessor before its successors
  std::vector<ChildRange> children;
  Lanes lanes;                 // of the steps
  std::vector<CallSum> calls;  // of those that are enabled

  void sum_calls();                   // after a change
  GraphStep* find(CUgraphNode node);  // null: not among the steps
  size_t size_bytes() const;
  // The steps of child `node` become those of `other`, which was read from a graph of the same shape, and
  // lose their names; they are in one lane then. False: the shapes differ, and nothing was changed.
  bool replace_child(CUgraphNode node, GraphPlan&& other);
};

struct GraphEdge {
  uint32_t from, to;
};
// All of 0 .. n-1, each behind everything that it depends on, else ascending as far as that goes (programs add
// nodes in the order they think in). Empty for n > 0: a cycle, or an edge out of range.
std::vector<uint32_t> topological_order(uint32_t n, std::span<const GraphEdge> edges);

// Returns the obstacle that a node of this type is; kNone: it can be a step, or needs none.
GraphObstacle obstacle_of(CUgraphNodeType type);
GraphObstacle obstacle_of_flags(unsigned long long instantiate_flags);
// An edge that lets the work behind it begin early is respected by letting it begin late.
GraphObstacle obstacle_of(const CUgraphEdgeData& edge);
// An attribute of a kernel node, as the driver told it: kNone and `*pass_on` says whether a launch needs it.
GraphObstacle obstacle_of(const CUlaunchAttribute& attribute, bool* pass_on);
// A list of memory operations.
GraphObstacle obstacle_of(std::span<const CUstreamBatchMemOpParams> ops);
// Attributes that are asked for.
std::span<const CUlaunchAttributeID> attributes_to_read();

}  // namespace tessera::track
