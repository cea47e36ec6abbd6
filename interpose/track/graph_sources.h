// The program's graphs that executable ones were made from, as long as those are not read (graphs.h): reading waits for
// a launch that needs it, or for a call that would change what is read. A graph that the program destroys before lives
// on, out of its reach, until nothing unread is left of it. Slow path; any thread. May throw bad_alloc where not noexcept.
//
// The driver wants the calls on one graph one at a time, also those that only look, and the program sees to that for
// its own. So the program's calls on graphs hold g_graph_calls shared, and who reads a graph that the program still
// has holds it alone. A graph that the program has destroyed is read without.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <vector>

#include "driver_api/real_table.h"

namespace tessera::track {

struct ExecutableGraph;

struct GraphSource {
  explicit GraphSource(CUgraph handle) : graph(handle) {}
  ~GraphSource();  // destroys what the program wanted destroyed
  GraphSource(const GraphSource&) = delete;
  CUgraph const graph;
  std::atomic<bool> kept{false};  // destroyed by the program: nobody but us has it
  size_t n_nodes = 0;             // of a kept one; those of its children not counted
};

extern pthread_rwlock_t g_graph_calls;
extern constinit std::atomic<uint32_t> g_live_sources;  // that the program still has

// Around the driver's call. With no live source there is none that could be read: it becomes one by a call
// on that same graph, which comes later.
class GraphCall {
 public:
  GraphCall() : held_(g_live_sources.load(std::memory_order_relaxed) != 0) {
    if (held_) pthread_rwlock_rdlock(&g_graph_calls);
  }
  ~GraphCall() {
    if (held_) pthread_rwlock_unlock(&g_graph_calls);
  }
  GraphCall(const GraphCall&) = delete;

 private:
  bool const held_;
};

// The source that `graph` is, `user` being one of those that will read it.
std::shared_ptr<GraphSource> graph_source(CUgraph graph, const std::shared_ptr<ExecutableGraph>& user);

// Those that have not read `graph`, null: any graph that the program still has.
std::vector<std::shared_ptr<ExecutableGraph>> users_of_source(CUgraph graph);

enum class SourceEnd {
  kDestroy,  // it is the driver's alone
  kKept,     // what the program is told: success
  kGone,     // a kept one, destroyed again: not a graph
  kRead,     // must be read first, then destroyed: it may not be kept
};
SourceEnd source_ends(CUgraph graph, bool may_keep) noexcept;  // within a GraphCall

}  // namespace tessera::track
