// Stream capture: which calls may be made while one is open, and how commands become graph nodes.
//
// Error codes are those of the driver: 900 a call that cannot be captured or is unsafe, 901 the capture was
// lost before, 902 two captures would merge, 903 ended on another stream, 904 a joined stream was not joined
// back, 905 a dependency on work outside, 906 implicit use of the legacy stream, 907 a captured event was
// asked, 908 ended in another thread. Any refused call but 903/908 and queries invalidates the capture.
#pragma once

#include <memory>
#include <vector>

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

// "Potentially unsafe" calls (allocation, synchronisation, queries, module loading ...): 900 if the calling
// thread may not make them now, see cuThreadExchangeStreamCaptureMode. One relaxed load while nothing
// captures.
CUresult check_unsafe();
bool any_capture_open();

CUresult begin_capture(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                       CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                       const CUgraphNode* dependencies, size_t n_dependencies);
CUresult end_capture(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                     CUgraph* graph);
// The three of these: Context::mutex held.
CUresult add_captured_node_locked(Stream& stream, Command command);
CUresult capture_event_record_locked(Stream& stream, const std::shared_ptr<Event>& event, bool external);
CUresult capture_event_wait_locked(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event,
                                   bool external);
void invalidate(Capture& capture);
// Drops a stream out of its capture (stream or context destroyed): the capture is lost. Context::mutex held.
void abandon_capture_locked(Stream& stream);
// Synchronise or query of a stream that captures: 900, the capture is lost; 906 through the legacy stream.
CUresult check_stream_access_locked(Context& context, Stream& stream);

}  // namespace tessera::softgpu::driver
