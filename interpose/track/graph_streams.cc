#include "interpose/track/graph_streams.h"

#include <pthread.h>

#include "driver_api/ask.h"
#include "interpose/state/lock.h"
#include "interpose/state/state.h"
#include "interpose/track/graphs.h"

namespace tessera::track {
namespace {

using driver_api::Flavour;
using driver_api::real;
using driver_api::StreamArg;

struct OwnStream {
  CUstream stream = nullptr;  // null: not made yet
  CUcontext context = nullptr;
  int priority = 0;
  uint64_t graph = 0;   // serial number of whose work is in it
  bool in_use = false;  // by a launch that goes on
};

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;  // of the one below
constinit OwnStream g_pool[kMostLanes - 1] = {};

bool make(OwnStream& own, CUcontext context, int priority) {
  own.stream = nullptr;
  if (!driver_api::made(own.stream, real().cuStreamCreateWithPriority, unsigned(CU_STREAM_NON_BLOCKING),
                        priority))
    return false;
  own.context = context;
  own.priority = priority;
  return true;
}

bool usable(OwnStream& own, CUcontext context, int priority, uint64_t graph) {
  if (own.in_use) return false;
  if (!own.stream) return make(own, context, priority);
  if (own.context != context || own.priority != priority) return false;
  return own.graph == graph || real().cuStreamQuery(own.stream) == CUDA_SUCCESS;
}

}  // namespace

LaneStreams::LaneStreams(const ExecutableGraph& graph, CUcontext context, StreamArg launch, uint32_t wanted) {
  streams_[0] = launch;
  if (wanted < 2 || !state::enter_driver()) return;
  int priority = 0;
  const bool known = real().cuStreamGetPriority(driver_api::on(launch), &priority) == CUDA_SUCCESS;
  const state::Lock lock(g_mutex);
  for (uint32_t i = 0; known && i < kMostLanes - 1 && count_ < wanted; i++) {
    OwnStream& own = g_pool[i];
    if (!usable(own, context, priority, graph.serial)) continue;
    own.in_use = true;
    own.graph = graph.serial;
    places_[count_] = i;
    streams_[count_++] = {own.stream, launch.flavour};
  }
  state::leave_driver();
}

LaneStreams::~LaneStreams() {
  const state::Lock lock(g_mutex);
  for (uint32_t i = 1; i < count_; i++) g_pool[places_[i]].in_use = false;
}

void streams_end_with(CUcontext context) noexcept {
  const state::Lock lock(g_mutex);
  for (OwnStream& own : g_pool)
    if (!context || own.context == context) own = {};
}

}  // namespace tessera::track
