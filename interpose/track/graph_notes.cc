#include "interpose/track/graph_notes.h"

#include <pthread.h>

#include <new>
#include <vector>

#include "base/errno_guard.h"
#include "interpose/gate/launch.h"
#include "interpose/state/lock.h"

namespace tessera::track {
namespace {

using driver_api::real;

constexpr uint32_t kTextBytes = 160;

struct Kept {
  std::shared_ptr<GraphNotes> notes = std::make_shared<GraphNotes>();
  std::vector<std::pair<CUgraphNode, CUgraph>> children;  // inside of it, that have notes
  // The note of the latest launch.
  const operations::Note* note = nullptr;
  std::shared_ptr<const CapturedCall> call;
};
using Table = std::unordered_map<CUgraph, Kept>;

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // of the two below; innermost
constinit Table* g_table = nullptr;  // never freed: threads may launch while the program exits
constinit size_t g_nodes = 0;

struct CapturedNode {
  CUgraph graph;
  CUgraphNode node;  // what was captured last in this stream; null: nothing, or more than one
};

// False: the driver does not say, or the stream is not captured.
bool look_at_capture(driver_api::StreamArg s, CapturedNode* out) {
  const CUstream stream = driver_api::on(s);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t n = 0;
  CUresult result = real().cuStreamGetCaptureInfo_v3(stream, &status, &id, &out->graph, &nodes, &edges, &n);
  if (result != CUDA_SUCCESS)  // before 12.3
    result = real().cuStreamGetCaptureInfo_v2(stream, &status, &id, &out->graph, &nodes, &n);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return false;
  out->node = n == 1 ? nodes[0] : nullptr;
  return out->graph != nullptr;
}

std::shared_ptr<const CapturedCall> captured(const operations::Note& note) {
  char text[kTextBytes] = {};
  const uint64_t identity = note.describe(&note, text, sizeof text);
  return std::make_shared<const CapturedCall>(
      CapturedCall{note.flop, note.bytes, identity, note.entry, note.type, note.name, text});
}

void add(const CapturedNode& at, const gate::LaunchCall& launch, operations::Note& note) {
  const state::Lock lock(g_mutex);
  if (g_nodes >= kMostNotedNodes) return;
  if (!g_table) g_table = new Table;
  Kept& kept = (*g_table)[at.graph];
  // The latest one may be of another thread: then what is left of this one counts as a call of its own.
  if (note.captured == 0 || kept.note != &note) kept.call = captured(note);
  kept.note = &note;
  const size_t before = kept.notes->size();
  kept.notes->add(at.node, launch.blocks(), launch.threads(), {kept.call, note.captured});
  g_nodes += kept.notes->size() - before;
}

// False: there is nothing that is known, or no room.
bool copy_notes(CUgraph graph, CUgraph copy) {
  const std::shared_ptr<const GraphNotes> notes = notes_of(graph);
  if (!notes || notes->size() > kMostClonedNodes) return false;
  auto copied = std::make_shared<GraphNotes>(notes->of_clone(copy));
  const state::Lock lock(g_mutex);
  if (copied->size() == 0 || g_nodes + copied->size() > kMostNotedNodes) return false;
  if (!g_table->try_emplace(copy, Kept{.notes = copied}).second) return false;
  g_nodes += copied->size();
  return true;
}

void end_with(CUgraph graph) {
  const auto at = g_table->find(graph);
  if (at == g_table->end()) return;
  g_nodes -= at->second.notes->size();
  const auto children = std::move(at->second.children);
  g_table->erase(at);
  for (const auto& [node, child] : children) end_with(child);
}

}  // namespace

void GraphNotes::add(CUgraphNode node, uint64_t blocks, uint32_t threads, NodeCall call) {
  nodes_.insert_or_assign(node, Node{blocks, threads, std::move(call)});
}

NodeCall GraphNotes::find(CUgraphNode node, uint64_t blocks, uint32_t threads) const {
  const auto at = nodes_.find(node);
  const bool same = at != nodes_.end() && at->second.blocks == blocks && at->second.threads == threads;
  return same ? at->second.call : NodeCall{};
}

GraphNotes GraphNotes::of_clone(CUgraph clone) const {
  GraphNotes copy;
  for (const auto& [node, kept] : nodes_)
    if (CUgraphNode same = nullptr; real().cuGraphNodeFindInClone(&same, node, clone) == CUDA_SUCCESS)
      copy.nodes_.emplace(same, kept);
  return copy;
}

std::shared_ptr<const GraphNotes> notes_of(CUgraph graph) {
  const state::Lock lock(g_mutex);
  if (!g_table) return nullptr;
  const auto at = g_table->find(graph);
  return at == g_table->end() ? nullptr : at->second.notes;
}

void note_captured(const gate::LaunchCall& launch, operations::Note& note) noexcept {
  const base::ErrnoGuard keep_errno;
  const gate::DepthGuard depth;  // a signal handler's launch is forwarded: it must not take the lock
  CapturedNode at{};
  if (look_at_capture(launch.stream, &at) && at.node) {
    try {
      add(at, launch, note);
    } catch (const std::bad_alloc&) {
    }
  }
  note.captured++;
}

CUgraph graph_of_capture(driver_api::StreamArg stream) noexcept {
  CapturedNode at{};
  return look_at_capture(stream, &at) ? at.graph : nullptr;
}

void notes_complete(CUgraph graph) noexcept {
  const state::Lock lock(g_mutex);
  if (!g_table) return;
  if (const auto at = g_table->find(graph); at != g_table->end()) {
    at->second.call = nullptr;
    at->second.note = nullptr;
  }
}

void notes_cloned(CUgraph graph, CUgraph clone) noexcept {
  try {
    copy_notes(graph, clone);
  } catch (const std::bad_alloc&) {
  }
}

void notes_of_child(CUgraph outer, CUgraphNode node, CUgraph child) noexcept {
  CUgraph inside = nullptr;
  try {
    if (!notes_of(child) || real().cuGraphChildGraphNodeGetGraph(node, &inside) != CUDA_SUCCESS ||
        !copy_notes(child, inside))
      return;
    const state::Lock lock(g_mutex);
    (*g_table)[outer].children.emplace_back(node, inside);
  } catch (const std::bad_alloc&) {
  }
}

void notes_end_with(CUgraph graph) noexcept {
  const state::Lock lock(g_mutex);
  if (g_table) end_with(graph);
}

void notes_end_with(CUgraphNode node) noexcept {
  const state::Lock lock(g_mutex);
  if (!g_table) return;
  CUgraph inside = nullptr;
  for (auto& [graph, kept] : *g_table) {
    g_nodes -= kept.notes->erase(node);
    std::erase_if(kept.children, [&](const auto& child) {
      if (child.first != node) return false;
      inside = child.second;
      return true;
    });
  }
  if (inside) end_with(inside);
}

}  // namespace tessera::track
