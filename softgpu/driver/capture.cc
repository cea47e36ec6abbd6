#include "softgpu/driver/capture.h"

#include <algorithm>
#include <unordered_set>

#include "softgpu/driver/graph.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {
namespace {

std::mutex g_mutex;  // guards g_open
std::vector<std::shared_ptr<Capture>>& open_captures() {
  static auto* open = new std::vector<std::shared_ptr<Capture>>;
  return *open;
}
std::atomic<int> g_n_open{0};  // size of the list, for the common case of none

void close(const std::shared_ptr<Capture>& capture) {
  std::lock_guard lock(g_mutex);
  std::erase(open_captures(), capture);
  g_n_open.store(int(open_captures().size()), std::memory_order_release);
}

void join_locked(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture) {
  stream->capture = capture;
  capture->streams.push_back(stream);
  if (stream->blocking()) ++stream->context->n_blocking_captures;
}

void leave_locked(Stream& stream) {
  if (stream.blocking()) --stream.context->n_blocking_captures;
  stream.capture = nullptr;
  stream.frontier.clear();
}

void add_to_frontier(std::vector<Node*>* frontier, const std::vector<Node*>& nodes) {
  for (Node* node : nodes)
    if (std::find(frontier->begin(), frontier->end(), node) == frontier->end()) frontier->push_back(node);
}

// Is every node that other streams ended with an ancestor of what the origin ended with?
bool all_joined(const Capture& capture) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> work(capture.origin->frontier.begin(), capture.origin->frontier.end());
  while (!work.empty()) {
    const Node* node = work.back();
    work.pop_back();
    if (seen.insert(node).second) work.insert(work.end(), node->deps.begin(), node->deps.end());
  }
  for (const auto& stream : capture.streams)
    for (const Node* node : stream->frontier)
      if (!seen.count(node)) return false;
  return true;
}

}  // namespace

bool any_capture_open() {
  return g_n_open.load(std::memory_order_acquire) != 0;
}

void invalidate(Capture& capture) {
  capture.invalidated.store(true, std::memory_order_release);
}

CUresult check_unsafe() {
  if (!any_capture_open()) return CUDA_SUCCESS;
  const Thread& self = thread();
  if (self.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard lock(g_mutex);
  bool refused = false;
  for (const auto& capture : open_captures()) {
    const bool own = capture->thread == self.number && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool others = capture->thread != self.number && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        self.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !others) continue;
    invalidate(*capture);
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult begin_capture(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                       CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                       const CUgraphNode* dependencies, size_t n_dependencies) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->mutex);
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = driver().next_id.fetch_add(1, std::memory_order_relaxed);  // relaxed: only unique
  capture->mode = mode;
  capture->thread = thread().number;
  capture->origin = stream.get();
  capture->to_existing_graph = graph != nullptr;
  capture->graph = graph ? std::move(graph) : make_graph();
  std::vector<Node*> frontier;
  for (size_t i = 0; i < n_dependencies; ++i) {
    Node* node = find_node(dependencies ? dependencies[i] : nullptr);
    if (!node || node->graph != capture->graph.get()) return CUDA_ERROR_INVALID_VALUE;
    frontier.push_back(node);
  }
  capture->graph->owner_capture = capture;
  join_locked(stream, capture);
  stream->frontier = std::move(frontier);
  std::lock_guard open_lock(g_mutex);
  open_captures().push_back(capture);
  g_n_open.store(int(open_captures().size()), std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult end_capture(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                     CUgraph* graph) {
  std::shared_ptr<Capture> capture;
  CUresult code = CUDA_SUCCESS;
  {
    std::lock_guard lock(context->mutex);
    capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream.get()) {
      invalidate(*capture);
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread().number)
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->invalidated.load(std::memory_order_acquire))
      code = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(*capture))
      code = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    for (const auto& joined : capture->streams) leave_locked(*joined);
    capture->streams.clear();
    capture->graph->owner_capture = nullptr;
  }
  close(capture);
  if (code != CUDA_SUCCESS) {
    if (!capture->to_existing_graph) destroy_graph(capture->graph);
    *graph = nullptr;
    return code;
  }
  *graph = reinterpret_cast<CUgraph>(capture->graph.get());
  return CUDA_SUCCESS;
}

CUresult add_captured_node_locked(Stream& stream, Command command) {
  Capture& capture = *stream.capture;
  if (capture.invalidated.load(std::memory_order_acquire)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (auto* kernel = std::get_if<KernelCommand>(&command)) {
    if (kernel->tag != 0 && thread().captured++ == 0) kernel->tag |= kTagOfNode;
    // A captured node has this attribute on an H200, though the launch does not name it.
    CUlaunchAttributeValue spread{};
    spread.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
    kernel->attributes.try_emplace(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, spread);
  }
  Node* node = add_node(*capture.graph, std::move(command), stream.frontier);
  node->context = reinterpret_cast<CUcontext>(stream.context);
  stream.frontier = {node};
  return CUDA_SUCCESS;
}

CUresult capture_event_record_locked(Stream& stream, const std::shared_ptr<Event>& event, bool external) {
  Capture& capture = *stream.capture;
  if (capture.invalidated.load(std::memory_order_acquire)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (external) return add_captured_node_locked(stream, EventRecordCommand{event});
  std::lock_guard lock(event->mutex);
  event->capture = stream.capture;
  event->frontier = stream.frontier;
  event->recorded = true;
  event->op = nullptr;
  return CUDA_SUCCESS;
}

CUresult capture_event_wait_locked(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event,
                                   bool external) {
  std::shared_ptr<Capture> from;
  std::vector<Node*> frontier;
  bool recorded;
  {
    std::lock_guard lock(event->mutex);
    from = event->capture;
    frontier = event->frontier;
    recorded = event->recorded;
  }
  const std::shared_ptr<Capture> to = stream->capture;
  if (to && to->invalidated.load(std::memory_order_acquire)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (to && external) return add_captured_node_locked(*stream, EventWaitCommand{event});
  if (!from) {
    if (!recorded) return CUDA_SUCCESS;  // an event that was never recorded holds nothing up
    invalidate(*to);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (from->invalidated.load(std::memory_order_acquire)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (from->streams.empty()) return CUDA_ERROR_CAPTURED_EVENT;  // that capture has ended
  if (to && to != from) {
    invalidate(*to);
    invalidate(*from);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->legacy) {
    invalidate(*from);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!to) join_locked(stream, from);
  add_to_frontier(&stream->frontier, frontier);
  return CUDA_SUCCESS;
}

void abandon_capture_locked(Stream& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return;
  invalidate(*capture);
  const bool origin = capture->origin == &stream;
  std::erase_if(capture->streams, [&](const auto& joined) { return joined.get() == &stream; });
  leave_locked(stream);
  if (!origin) return;
  for (const auto& joined : capture->streams) leave_locked(*joined);
  capture->streams.clear();
  close(capture);
}

CUresult check_stream_access_locked(Context& context, Stream& stream) {
  if (stream.capture) {
    invalidate(*stream.capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return check_implicit_locked(context, stream);
}

}  // namespace tessera::softgpu::driver
