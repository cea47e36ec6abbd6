#include "interpose/track/graph_sources.h"

#include <algorithm>
#include <new>
#include <unordered_map>

#include "interpose/state/lock.h"
#include "interpose/track/graph_notes.h"
#include "interpose/track/graphs.h"

namespace tessera::track {
namespace {

using driver_api::real;

// Nodes of graphs that only we have: as many as their plans might be in memory.
constexpr size_t kMostKeptNodes = kMostPlanBytes / sizeof(GraphStep);

struct Entry {
  std::weak_ptr<GraphSource> source;
  std::vector<std::weak_ptr<ExecutableGraph>> users;
};
using Entries = std::unordered_map<CUgraph, Entry>;

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // of the three below; innermost
constinit Entries* g_live = nullptr;                  // of graphs that the program has; never freed
constinit Entries* g_kept = nullptr;                  // of those that it has destroyed; never freed
constinit size_t g_kept_nodes = 0;

void count_live() {
  g_live_sources.store(uint32_t(g_live->size()), std::memory_order_relaxed);
}

}  // namespace

pthread_rwlock_t g_graph_calls = PTHREAD_RWLOCK_INITIALIZER;
constinit std::atomic<uint32_t> g_live_sources{0};

GraphSource::~GraphSource() {
  const bool ours = kept.load(std::memory_order_relaxed);
  {
    const state::Lock lock(g_mutex);
    Entries& entries = ours ? *g_kept : *g_live;
    const auto at = entries.find(graph);
    // Another source of a graph with the same handle may have taken the place.
    if (at != entries.end() && at->second.source.expired()) entries.erase(at);
    count_live();
    g_kept_nodes -= n_nodes;
  }
  if (!ours) return;
  notes_end_with(graph);
  (void)real().cuGraphDestroy(graph);
}

std::shared_ptr<GraphSource> graph_source(CUgraph graph, const std::shared_ptr<ExecutableGraph>& user) {
  std::shared_ptr<GraphSource> source;  // let go of behind the lock, if something throws
  const state::Lock lock(g_mutex);
  if (!g_live) g_live = new Entries;
  if (!g_kept) g_kept = new Entries;
  Entry& entry = (*g_live)[graph];
  source = entry.source.lock();
  if (!source) {
    source = std::make_shared<GraphSource>(graph);
    entry = {source, {}};
  }
  std::erase_if(entry.users, [&](const auto& other) {
    return other.expired() || (!other.owner_before(user) && !user.owner_before(other));
  });
  entry.users.push_back(user);
  count_live();
  return source;
}

std::vector<std::shared_ptr<ExecutableGraph>> users_of_source(CUgraph graph) {
  std::vector<std::shared_ptr<ExecutableGraph>> users;
  if (g_live_sources.load(std::memory_order_relaxed) == 0) return users;
  const state::Lock lock(g_mutex);
  const auto add = [&](const Entry& entry) {
    users.reserve(users.size() + entry.users.size());  // no last hold on one ends here, under the lock
    for (const auto& user : entry.users)
      if (auto alive = user.lock()) users.push_back(std::move(alive));
  };
  if (graph) {
    const auto at = g_live->find(graph);
    if (at != g_live->end()) add(at->second);
  } else {
    for (const auto& [handle, entry] : *g_live) add(entry);
  }
  return users;
}

SourceEnd source_ends(CUgraph graph, bool may_keep) noexcept {
  std::shared_ptr<GraphSource> source;  // the last hold on it may end here, behind the lock
  const state::Lock lock(g_mutex);
  if (!g_live) return SourceEnd::kDestroy;
  if (g_kept->contains(graph)) return SourceEnd::kGone;
  const auto at = g_live->find(graph);
  if (at == g_live->end() || !(source = at->second.source.lock())) return SourceEnd::kDestroy;
  size_t n = 0;
  if (!may_keep || real().cuGraphGetNodes(graph, nullptr, &n) != CUDA_SUCCESS ||
      g_kept_nodes + n > kMostKeptNodes)
    return SourceEnd::kRead;
  try {
    g_kept->reserve(g_kept->size() + 1);
  } catch (const std::bad_alloc&) {
    return SourceEnd::kRead;
  }
  g_kept->insert(g_live->extract(at));
  count_live();
  g_kept_nodes += source->n_nodes = n;
  source->kept.store(true, std::memory_order_release);  // pairs with who reads it without the lock
  return SourceEnd::kKept;
}

}  // namespace tessera::track
