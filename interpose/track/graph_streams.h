// Streams of our own, for the branches of graphs that are launched in pieces. A graph that is done with them leaves them
// to the next; as long as work of it is in one, no other graph gets it: that one would be behind something it has
// nothing to do with. Any thread; the graph's context is current. Nothing throws.
#pragma once

#include "driver_api/real_table.h"
#include "interpose/track/graph_lanes.h"

namespace tessera::track {

struct ExecutableGraph;

// Streams for the lanes of one launch, as long as this lives.
class LaneStreams {
 public:
  // `wanted` lanes, or as many as can be had; the first is the launch stream.
  LaneStreams(const ExecutableGraph& graph, CUcontext context, driver_api::StreamArg launch, uint32_t wanted);
  ~LaneStreams();
  LaneStreams(const LaneStreams&) = delete;

  uint32_t count() const { return count_; }
  // Lanes that got no stream share one with another: what is launched in an order of the graph is in order.
  driver_api::StreamArg operator[](uint32_t lane) const { return streams_[lane % count_]; }

 private:
  uint32_t count_ = 1;
  driver_api::StreamArg streams_[kMostLanes];
  uint32_t places_[kMostLanes] = {};  // in the pool
};

void streams_end_with(CUcontext context) noexcept;  // null: every context

}  // namespace tessera::track
