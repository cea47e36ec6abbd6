#include "interpose/track/graph_notes.h"

#include <pthread.h>

#include <new>

#include "base/errno_guard.h"
#include "interpose/gate/launch.h"
#include "interpose/track/lock.h"

namespace tessera::track {
namespace {

using driver_api::real;

constexpr uint32_t kTextBytes = 160;

struct Kept {
  std::shared_ptr<GraphNotes> notes = std::make_shared<GraphNotes>();
  bool complete = false;  // its capture has ended
  // Of the latest launch.
  const operations::Note* note = nullptr;
  std::shared_ptr<const CapturedCall> call;
};
using Table = std::unordered_map<CUgraph, Kept>;

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // of the two below; innermost
constinit Table* g_table = nullptr;  // never freed: threads may launch while the program exits
constinit size_t g_nodes = 0;

struct CapturedNode {
  CUgraph graph;
  CUgraphNode node;
};

// What was captured last in this stream; false: the driver does not say, or it was more than one node.
bool latest_node(driver_api::StreamArg s, CapturedNode* out) {
  const bool per_thread = s.flavour == driver_api::Flavour::kPerThread;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t n = 0;
  CUresult result = (per_thread ? real().cuStreamGetCaptureInfo_v3_ptsz : real().cuStreamGetCaptureInfo_v3)(
      s.stream, &status, &id, &out->graph, &nodes, &edges, &n);
  if (result != CUDA_SUCCESS)  // before 12.3
    result = (per_thread ? real().cuStreamGetCaptureInfo_v2_ptsz : real().cuStreamGetCaptureInfo_v2)(
        s.stream, &status, &id, &out->graph, &nodes, &n);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE || !out->graph || n != 1)
    return false;
  out->node = nodes[0];
  return true;
}

std::shared_ptr<const CapturedCall> captured(const operations::Note& note) {
  char text[kTextBytes] = {};
  const uint64_t identity = note.describe(&note, text, sizeof text);
  return std::make_shared<const CapturedCall>(
      CapturedCall{note.flop, note.bytes, identity, note.entry, note.type, note.name, text});
}

void add(const CapturedNode& at, const gate::LaunchCall& launch, operations::Note& note) {
  const Lock lock(g_mutex);
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

}  // namespace

void GraphNotes::add(CUgraphNode node, uint64_t blocks, uint32_t threads, NodeCall call) {
  nodes_.insert_or_assign(node, Node{blocks, threads, std::move(call)});
}

NodeCall GraphNotes::find(CUgraphNode node, uint64_t blocks, uint32_t threads) const {
  const auto at = nodes_.find(node);
  const bool same = at != nodes_.end() && at->second.blocks == blocks && at->second.threads == threads;
  return same ? at->second.call : NodeCall{};
}

std::shared_ptr<const GraphNotes> notes_of(CUgraph graph) {
  const Lock lock(g_mutex);
  if (!g_table) return nullptr;
  const auto at = g_table->find(graph);
  return at == g_table->end() ? nullptr : at->second.notes;
}

void note_captured(const gate::LaunchCall& launch, operations::Note& note) noexcept {
  const base::ErrnoGuard keep_errno;
  const gate::DepthGuard depth;  // a signal handler's launch is forwarded: it must not take the lock
  CapturedNode at{};
  if (latest_node(launch.stream, &at)) {
    try {
      add(at, launch, note);
    } catch (const std::bad_alloc&) {
    }
  }
  note.captured++;
}

void notes_complete(CUgraph graph) noexcept {
  const Lock lock(g_mutex);
  if (!g_table) return;
  if (const auto at = g_table->find(graph); graph && at != g_table->end()) {
    at->second.complete = true;
    at->second.call = nullptr;
    at->second.note = nullptr;
  }
  if (graph) return;
  // Which graph it was is not told any more: what other open captures have is lost with it.
  std::erase_if(*g_table, [](const auto& entry) {
    if (entry.second.complete) return false;
    g_nodes -= entry.second.notes->size();
    return true;
  });
}

void notes_end_with(CUgraph graph) noexcept {
  const Lock lock(g_mutex);
  if (!g_table) return;
  const auto at = g_table->find(graph);
  if (at == g_table->end()) return;
  g_nodes -= at->second.notes->size();
  g_table->erase(at);
}

}  // namespace tessera::track
