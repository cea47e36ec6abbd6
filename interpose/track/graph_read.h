// Reads a graph through the driver into a plan. Slow path: inside the program's own calls that make or change an
// executable graph, while no capture is open. The context is the calling thread's. May throw bad_alloc.
#pragma once

#include "interpose/track/graph_plan.h"

namespace tessera::track {

inline constexpr uint32_t kMostGraphNodes = 16384;  // of one graph, its children included
inline constexpr uint32_t kMostGraphDepth = 16;     // of children

// kNone: `plan` says what the graph does now. Else it goes whole, and `plan` is void. Without `node_priorities` kernels have
// the priority of the launch stream.
GraphObstacle read_graph(CUgraph graph, CUcontext context, bool node_priorities, GraphPlan& plan);

// Returns the class of most of some kernels of the graph (abi::ResourceClass); 0 = not known. Children do not count.
uint32_t class_of_graph(CUgraph graph);

// New parameters of a step, as the program gave them to the driver, which took them.
GraphObstacle take_kernel(const CUDA_KERNEL_NODE_PARAMS& params, CUcontext context, KernelStep& step);
GraphObstacle take_memory_ops(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, CUcontext context,
                              MemoryOpsStep& step);
// `of_copy`, `of_fill`: the context that it runs in; null: not known.
GraphObstacle take_copy(const CUDA_MEMCPY3D& params, CUcontext of_copy, CUcontext context, CopyStep& step);
GraphObstacle take_fill(const CUDA_MEMSET_NODE_PARAMS& params, CUcontext of_fill, CUcontext context,
                        FillStep& step);

}  // namespace tessera::track
