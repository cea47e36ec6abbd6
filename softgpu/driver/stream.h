// Streams: from calls to operations of the engine. The ordering rules live here and nowhere else:
//   * a stream is a chain: each operation depends on the one before it;
//   * an operation of the legacy stream also depends on the tails of all blocking streams of its context, and
//     an operation of a blocking stream on the tail of the legacy stream;
//   * an operation depends on the last wait for a value in its hardware queue (hardware_queue.h), whichever stream's;
//   * a stream that captures gets nodes instead of operations (capture.h).
// All functions: any thread; the ones that take a Context lock its mutex unless their name says `_locked`.
#pragma once

#include <memory>
#include <vector>

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

inline constexpr int kLeastPriority = 0, kGreatestPriority = -5;

// The stream that a handle means; 400 for a wild one or one of another context. Makes the per-thread stream
// on demand.
CUresult resolve(Context& context, CUstream handle, NullStream null_stream, std::shared_ptr<Stream>* stream);
// Context and stream that a call names. A stream that was created is its own context's, whichever is current
// and whether one is: callers with many contexts record and wait that way.
CUresult open(CUstream handle, NullStream null_stream, std::shared_ptr<Context>* context,
              std::shared_ptr<Stream>* stream);

CUstream handle_of(const Stream& stream);
// A new stream, not in the context's list yet.
std::shared_ptr<Stream> make_stream(Context& context, unsigned flags = CU_STREAM_DEFAULT, int priority = 0);

// Puts a command into the stream: a node if it captures, else an operation, which is returned in `op` (may be
// null).
CUresult enqueue(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                 Command command, OpRef* op = nullptr);
// The dependencies of an operation that is put into the stream now.
std::vector<OpRef> dependencies_locked(Context& context, const Stream& stream);
// The operations that have to end before the stream is idle.
std::vector<OpRef> pending_locked(Context& context, const Stream& stream);
// Drops destroyed streams whose work has ended from the context's list.
void prune_orphans_locked(Context& context);
// 906 (and the capture is lost) if the legacy stream may not be used now because a blocking stream captures.
CUresult check_implicit_locked(Context& context, const Stream& stream);

// Submits one command. `deps` come from the caller; used by streams and by graph launches. `keep` is held until the
// operation is complete.
OpRef submit(const std::shared_ptr<Context>& context, Command command, std::vector<OpRef> deps,
             const Stream& stream, std::shared_ptr<void> keep = nullptr);
OpRef submit_join(const std::shared_ptr<Context>& context, std::vector<OpRef> deps, const Stream& stream);

// Records the event behind `deps`; the record is returned.
OpRef submit_record(const std::shared_ptr<Context>& context, Event& event, std::vector<OpRef> deps,
                    const Stream& stream);
// The dependency of a wait for the event's last record; null: none.
OpRef wait_for_event(const std::shared_ptr<Context>& context, Event& event, const Stream& stream);

// Blocks until the operation is complete; the sticky error of the context, if one came of it.
CUresult wait(Context& context, const OpRef& op);
CUresult wait_all(Context& context, const std::vector<OpRef>& ops);
// Checks stream memory operations (of a call or a graph node) and stores them.
CUresult check_mem_ops(const CUstreamBatchMemOpParams* ops, unsigned n, MemOpCommand* command);
CUresult synchronize(Context& context);  // all streams
// The same for calls during which kernels and graphs of other threads are not launched, as on an H200.
CUresult synchronize_without_launches(Context& context);
CUresult run_and_wait(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                      Command command);

}  // namespace tessera::softgpu::driver
