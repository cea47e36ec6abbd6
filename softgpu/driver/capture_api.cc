// Entry points of stream capture.
#include "softgpu/driver/capture.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

CUresult begin(CUstream handle, NullStream null_stream, CUstreamCaptureMode mode, CUgraph graph_handle,
               const CUgraphNode* dependencies, size_t n) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  std::shared_ptr<Graph> graph;
  if (graph_handle && !(graph = driver().graphs.find(graph_handle))) return CUDA_ERROR_INVALID_VALUE;
  return begin_capture(context, stream, mode, std::move(graph), dependencies, n);
}

struct CaptureInfo {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t n_dependencies = 0;
};

CUresult capture_info(CUstream handle, NullStream null_stream, CaptureInfo* info) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  std::lock_guard lock(context->mutex);
  // Asking about the legacy stream does not end the captures of blocking streams, unlike using it.
  if (stream->legacy && context->n_blocking_captures) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!stream->capture) return CUDA_SUCCESS;
  const Capture& capture = *stream->capture;
  info->status = capture.invalidated.load(std::memory_order_acquire) ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  info->id = capture.id;
  info->graph = reinterpret_cast<CUgraph>(capture.graph.get());
  info->dependencies = reinterpret_cast<const CUgraphNode*>(stream->frontier.data());
  info->n_dependencies = stream->frontier.size();
  return CUDA_SUCCESS;
}

CUresult update_dependencies(CUstream handle, NullStream null_stream, const CUgraphNode* nodes, size_t n,
                             unsigned flags) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (n && !nodes)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(context->mutex);
  if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream->capture->invalidated.load(std::memory_order_acquire))
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<Node*> wanted;
  for (size_t i = 0; i < n; ++i) {
    Node* node = find_node(nodes[i]);
    if (!node || node->graph != stream->capture->graph.get()) return CUDA_ERROR_INVALID_VALUE;
    wanted.push_back(node);
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    stream->frontier = std::move(wanted);
  else
    stream->frontier.insert(stream->frontier.end(), wanted.begin(), wanted.end());
  return CUDA_SUCCESS;
}

}  // namespace

TS_PAIR(cuStreamBeginCapture_v2, _ptsz, (CUstream hStream, CUstreamCaptureMode mode), (hStream, mode)) {
  TS_ENTER(cuStreamBeginCapture_v2);
  return begin(hStream, null_stream, mode, nullptr, nullptr, 0);
}
TS_PAIR(cuStreamBeginCapture, _ptsz, (CUstream hStream), (hStream)) {
  TS_ENTER(cuStreamBeginCapture);
  return begin(hStream, null_stream, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, nullptr, 0);
}
TS_PAIR(cuStreamBeginCaptureToGraph, _ptsz,
        (CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
         const CUgraphEdgeData* dependencyData, size_t numDependencies, CUstreamCaptureMode mode),
        (hStream, hGraph, dependencies, dependencyData, numDependencies, mode)) {
  TS_ENTER(cuStreamBeginCaptureToGraph);
  (void)dependencyData;
  if (!hGraph) return CUDA_ERROR_INVALID_VALUE;
  return begin(hStream, null_stream, mode, hGraph, dependencies, numDependencies);
}

TS_PAIR(cuStreamEndCapture, _ptsz, (CUstream hStream, CUgraph* phGraph), (hStream, phGraph)) {
  TS_CONTEXT(cuStreamEndCapture, context);
  if (!phGraph) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, hStream, null_stream, &stream)) return bad;
  return end_capture(context, stream, phGraph);
}

TS_PAIR(cuStreamIsCapturing, _ptsz, (CUstream hStream, CUstreamCaptureStatus* captureStatus),
        (hStream, captureStatus)) {
  TS_ENTER(cuStreamIsCapturing);
  if (!captureStatus) return CUDA_ERROR_INVALID_VALUE;
  CaptureInfo info;
  if (CUresult bad = capture_info(hStream, null_stream, &info)) return bad;
  *captureStatus = info.status;
  return CUDA_SUCCESS;
}

TS_PAIR(cuStreamGetCaptureInfo, _ptsz,
        (CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out),
        (hStream, captureStatus_out, id_out)) {
  TS_ENTER(cuStreamGetCaptureInfo);
  if (!captureStatus_out) return CUDA_ERROR_INVALID_VALUE;
  CaptureInfo info;
  if (CUresult bad = capture_info(hStream, null_stream, &info)) return bad;
  *captureStatus_out = info.status;
  if (id_out) *id_out = info.id;
  return CUDA_SUCCESS;
}
TS_PAIR(cuStreamGetCaptureInfo_v2, _ptsz,
        (CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out, CUgraph* graph_out,
         const CUgraphNode** dependencies_out, size_t* numDependencies_out),
        (hStream, captureStatus_out, id_out, graph_out, dependencies_out, numDependencies_out)) {
  TS_ENTER(cuStreamGetCaptureInfo_v2);
  if (!captureStatus_out) return CUDA_ERROR_INVALID_VALUE;
  CaptureInfo info;
  if (CUresult bad = capture_info(hStream, null_stream, &info)) return bad;
  *captureStatus_out = info.status;
  if (id_out) *id_out = info.id;
  if (graph_out) *graph_out = info.graph;
  if (dependencies_out) *dependencies_out = info.dependencies;
  if (numDependencies_out) *numDependencies_out = info.n_dependencies;
  return CUDA_SUCCESS;
}
TS_PAIR(cuStreamGetCaptureInfo_v3, _ptsz,
        (CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out, CUgraph* graph_out,
         const CUgraphNode** dependencies_out, const CUgraphEdgeData** edgeData_out,
         size_t* numDependencies_out),
        (hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
         numDependencies_out)) {
  if (edgeData_out) *edgeData_out = nullptr;
  return cuStreamGetCaptureInfo_v2_body(null_stream, hStream, captureStatus_out, id_out, graph_out,
                                        dependencies_out, numDependencies_out);
}

TS_PAIR(cuStreamUpdateCaptureDependencies, _ptsz,
        (CUstream hStream, CUgraphNode* dependencies, size_t numDependencies, unsigned int flags),
        (hStream, dependencies, numDependencies, flags)) {
  TS_ENTER(cuStreamUpdateCaptureDependencies);
  return update_dependencies(hStream, null_stream, dependencies, numDependencies, flags);
}
TS_PAIR(cuStreamUpdateCaptureDependencies_v2, _ptsz,
        (CUstream hStream, CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
         size_t numDependencies, unsigned int flags),
        (hStream, dependencies, dependencyData, numDependencies, flags)) {
  TS_ENTER(cuStreamUpdateCaptureDependencies_v2);
  (void)dependencyData;
  return update_dependencies(hStream, null_stream, dependencies, numDependencies, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  TS_ENTER(cuThreadExchangeStreamCaptureMode);
  if (!mode || number_in(*mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  std::swap(thread().capture_mode, *mode);
  return CUDA_SUCCESS;
}
