// Notes of captured library calls (operations/note.h). They are kept for the kernel nodes that the calls became until their
// graph ends; the reader of the graph (graph_read.h) takes them over. For best-effort programs. Some kernels have no note:
// those of large clones, of executable graphs launched into a capture, and those beyond kMostNotedNodes.
//
// Slow path: captured launches, ends of captures and graphs, in the program's threads. Locks and allocates; nothing throws
// where it says so. While a graph is read no capture is open, so its notes do not change.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "driver_api/real_table.h"
#include "operations/note.h"

namespace tessera::gate {
struct LaunchCall;
}

namespace tessera::track {

// The limit for all graphs: about 15 MB. A server of a large model captures 40,000.
inline constexpr size_t kMostNotedNodes = 65'536;

// A clone with more noted nodes has no notes: the driver is asked about each of them.
inline constexpr size_t kMostClonedNodes = 4'096;

struct CapturedCall {
  uint64_t flop, bytes;
  uint64_t identity;  // Note::describe
  uint32_t entry;
  int32_t type;
  const char* name;  // static
  std::string text;  // for people
};

// The call of a kernel.
struct NodeCall {
  std::shared_ptr<const CapturedCall> call;  // null: not known
  uint32_t launch = 0;                       // number of the kernel among those of the call
};

class GraphNotes {  // of one graph
 public:
  void add(CUgraphNode node, uint64_t blocks, uint32_t threads, NodeCall call);
  // None for a node that has become another kernel.
  NodeCall find(CUgraphNode node, uint64_t blocks, uint32_t threads) const;
  // The same of `clone`, as far as the driver says which nodes it has. May throw bad_alloc.
  GraphNotes of_clone(CUgraph clone) const;
  bool erase(CUgraphNode node) { return nodes_.erase(node) != 0; }
  size_t size() const { return nodes_.size(); }

 private:
  struct Node {
    uint64_t blocks;
    uint32_t threads;
    NodeCall call;
  };
  std::unordered_map<CUgraphNode, Node> nodes_;
};

// Null: none. May throw bad_alloc.
std::shared_ptr<const GraphNotes> notes_of(CUgraph graph);

// The thread has just launched this into a capture, inside the call of `note`. Asks the driver for the node.
void note_captured(const gate::LaunchCall& launch, operations::Note& note) noexcept;
// The graph of a stream that is captured; null: the driver does not say.
CUgraph graph_of_capture(driver_api::StreamArg stream) noexcept;
void notes_complete(CUgraph graph) noexcept;  // its capture has ended
// Made of `graph`; or a node of `outer`, made of `child`. In the program's call that made it.
void notes_cloned(CUgraph graph, CUgraph clone) noexcept;
void notes_of_child(CUgraph outer, CUgraphNode node, CUgraph child) noexcept;
// Before the driver destroys it, for another may have its handle then; or when the graph's capture has come to nothing.
void notes_end_with(CUgraph graph) noexcept;
void notes_end_with(CUgraphNode node) noexcept;

}  // namespace tessera::track
