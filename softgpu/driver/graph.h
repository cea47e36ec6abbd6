// Graphs: nodes that hold the same commands as streams, copies of them, and their launch.
// Any thread; Graph::mutex guards the nodes of one graph (recursive: a child graph may be met twice).
#pragma once

#include <memory>
#include <vector>

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

Node* add_node(Graph& graph, Command command, std::vector<Node*> deps);
std::shared_ptr<Graph> make_graph();
// Deep copy; `map` (may be null) receives old -> new. Child graphs are copied too.
std::shared_ptr<Graph> clone_graph(const Graph& graph);
Command clone_command(const Command& command);  // with graphs of its own
void destroy_graph(const std::shared_ptr<Graph>& graph);
// In an order that respects the dependencies; empty result for a non-empty graph means a cycle.
std::vector<Node*> topological_order(const Graph& graph);
CUresult launch_graph(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                      const std::shared_ptr<GraphExec>& exec);
// Runs a body graph now and waits for its end, in an engine thread; stops when the context fails.
int run_conditional(const std::shared_ptr<Context>& context, const ConditionalCommand& command,
                    const Stream& stream);
CUresult add_conditional(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                         CUDA_CONDITIONAL_NODE_PARAMS* params);
// Memory of an allocation node: freed with the last graph that holds it.
std::shared_ptr<void> graph_memory(uint64_t address);
CUgraphNodeType type_of(const Command& command);
Node* find_node(CUgraphNode handle);

}  // namespace tessera::softgpu::driver
