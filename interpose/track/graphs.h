// What executable graphs are made of: their nodes as calls on a stream, in an order that every edge agrees with, so
// that a best-effort launch may go out node by node (interpose/hooks/graph_launch.cc). Read when a graph is made, from
// the graph that it is made from, and kept in step with what the program changes in it. A graph with anything that is
// not understood goes whole; the reason is counted (reasons.h). docs/graphs.md.
//
// Slow path: allocates and locks, in the program's own calls; enters the driver only to ask. Never throws.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include "driver_api/real_table.h"
#include "interpose/track/reasons.h"

namespace tessera::track {

struct KernelNode {
  CUfunction function = nullptr;  // or a CUkernel, as cuLaunchKernel takes it
  uint32_t grid[3], block[3], shared_bytes;
  std::vector<unsigned char> values;          // of the parameters, copied
  std::vector<void*> params;                  // into `values`; kernelParams
  size_t buffer_bytes = 0;                    // not 0: `values` is one buffer, given by `extra`
  std::vector<CUlaunchAttribute> attributes;  // other than the default ones
};

struct GraphNode {
  bool enabled = true;
  std::variant<KernelNode, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUDA_HOST_NODE_PARAMS> work;
};

class ExecutableGraph {
 public:
  std::mutex mutex;  // of everything below but atomics; held while it is launched
  std::optional<RunTimeReason> obstacle;
  std::vector<GraphNode> nodes;  // empty ones are left out, child graphs are flattened
  CUcontext context = nullptr;   // current when it was made

  // The driver runs no graph beside itself. Streams by name_of_stream(), 0 = none.
  std::atomic<uint64_t> whole_in{0};    // stream of its latest whole launch, which only the driver orders
  std::atomic<uint64_t> pieces_in{0};   // stream of its latest launch in pieces,
  std::atomic<CUevent> ended{nullptr};  // which is recorded behind them
  ~ExecutableGraph();

  void read(CUgraph graph, unsigned long long flags) noexcept;  // anew
  void set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& params) noexcept;
  template <class Params>
  void set(CUgraphNode node, const Params& params) noexcept;  // of a copy, fill or host function
  void set(CUgraphNode node, const CUgraphNodeParams& params) noexcept;
  void exchanged(CUgraph graph) noexcept;  // every node's parameters are those of this graph
  void enable(CUgraphNode node, bool enabled) noexcept;
  void changed() noexcept;  // in a way that is not followed: whole from now on

 private:
  GraphNode* find(CUgraphNode node);
  void whole_because(RunTimeReason reason);
  std::unordered_map<CUgraphNode, size_t> index_;  // by handles of the graph it was made from
};

// A stream's name, which is not the same for the per-thread streams of two threads.
uint64_t name_of_stream(driver_api::StreamArg stream);

void graph_made(CUgraphExec exec, CUgraph graph, unsigned long long flags) noexcept;
std::shared_ptr<ExecutableGraph> find_graph(CUgraphExec exec) noexcept;  // null: nothing is known of it
void graph_destroyed(CUgraphExec exec) noexcept;
void graphs_lose_stream(CUstream stream) noexcept;
void graphs_lose_context(CUcontext context) noexcept;  // null = every context

}  // namespace tessera::track
