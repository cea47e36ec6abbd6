// A cover is what a synchronise call will have completed when it returns: calls of threads on streams, by the counts that
// pulse.h keeps. A stream that waited for an event has what the event stood for behind it too.
// Hot path: no allocation, lock or system call.
#pragma once

#include "interpose/state/state.h"

namespace tessera::gate {

// A place in the work of one thread on one stream: after the first `ended` calls.
struct Point {
  state::StreamCount* count;  // null: none
  uint64_t ended;
};

inline constexpr uint32_t kMaxCover = 96;
struct Cover {  // on the caller's stack
  uint32_t n = 0;
  Point items[kMaxCover];
};
void cover_stream(Cover& cover, uint64_t key);           // one stream; key 2 means the calling thread's own
void cover_slot(Cover& cover, state::ThreadSlot& slot);  // all that the owner of the slot launched
void cover_context(Cover& cover);               // all streams; nothing if the process has several contexts
void cover_event(Cover& cover, CUevent event);  // what the stream held at the record

void note_event(CUevent event, uint64_t key);  // event recorded by this thread in its stream `key`
void forget_event(CUevent event);              // recorded in a way we do not follow, or destroyed
void leave_to_others(CUevent event);  // a graph or another process may record it: not followed from now on

// The point at which the event was recorded, none if that is not known. Ask before the driver's call that waits for it: a
// later record is further on.
Point point_of(CUevent event);
// After that call: later work of this thread's stream `key` begins behind the point.
void note_wait(uint64_t key, Point point);
void forget_waits(uint64_t key);  // stream destroyed, its handle may become another stream's; 0: all streams

}  // namespace tessera::gate
