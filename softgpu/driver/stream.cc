#include "softgpu/driver/stream.h"

#include <algorithm>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/commands.h"
#include "softgpu/driver/green.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {

namespace {
const CUstream kLegacyHandle = CU_STREAM_LEGACY;
const CUstream kPerThreadHandle = CU_STREAM_PER_THREAD;
}  // namespace

CUresult resolve(Context& context, CUstream handle, NullStream null_stream, std::shared_ptr<Stream>* stream) {
  if (!handle) handle = null_stream == NullStream::kLegacy ? kLegacyHandle : kPerThreadHandle;
  if (handle == kLegacyHandle) {
    const std::shared_ptr<GreenContext> green = current_green();
    *stream = green && green->default_stream ? green->default_stream : context.legacy;
    return CUDA_SUCCESS;
  }
  if (handle == kPerThreadHandle) {
    std::lock_guard lock(context.mutex);
    std::shared_ptr<Stream>& mine = context.per_thread[thread().number];
    if (!mine) {
      mine = make_stream(context);
      context.streams.push_back(mine);
      thread().stream_contexts.push_back(context.weak_from_this());
    }
    *stream = mine;
    return CUDA_SUCCESS;
  }
  *stream = driver().streams.find(handle);
  if (!*stream || (*stream)->context != &context) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_SUCCESS;
}

CUresult open(CUstream handle, NullStream null_stream, std::shared_ptr<Context>* context,
              std::shared_ptr<Stream>* stream) {
  const std::shared_ptr<Stream> named = driver().streams.find(handle);
  if (!named) {
    if (CUresult none = current(context)) return none;
    return resolve(**context, handle, null_stream, stream);
  }
  *stream = named;
  *context = driver().contexts.find(named->context);
  return *context ? sticky(**context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUstream handle_of(const Stream& stream) {
  return stream.legacy ? kLegacyHandle : reinterpret_cast<CUstream>(const_cast<Stream*>(&stream));
}

std::shared_ptr<Stream> make_stream(Context& context, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->context = &context;
  stream->flags = flags;
  stream->priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
  stream->id = driver().next_id.fetch_add(1, std::memory_order_relaxed);              // relaxed: only unique
  const uint64_t number = context.n_streams.fetch_add(1, std::memory_order_relaxed);  // relaxed: only unique
  stream->queue = context.queues[number % context.queues.size()];
  return stream;
}

namespace {

// The operations that are not complete: the stream's own, and those that its kind waits for.
std::vector<OpRef> stream_order_locked(Context& context, const Stream& stream) {
  std::vector<OpRef> deps;
  const timing::Engine& engine = driver().engine();
  auto add = [&](const OpRef& op) {
    if (op && !engine.complete(op)) deps.push_back(op);
  };
  add(stream.tail);
  add(stream.marker);
  if (stream.legacy) {
    for (const auto& other : context.streams)
      if (other->blocking()) add(other->tail), add(other->marker);
  } else if (stream.blocking()) {
    add(context.legacy->tail);
    add(context.legacy->marker);
  }
  return deps;
}

}  // namespace

std::vector<OpRef> dependencies_locked(Context& context, const Stream& stream) {
  std::vector<OpRef> deps = stream_order_locked(context, stream);
  if (!driver().engine().complete(stream.queue->wait)) deps.push_back(stream.queue->wait);
  return deps;
}

std::vector<OpRef> pending_locked(Context& context, const Stream& stream) {
  if (stream.legacy) return stream_order_locked(context, stream);
  return {stream.tail, stream.marker};
}

void prune_orphans_locked(Context& context) {
  std::erase_if(context.streams, [](const std::shared_ptr<Stream>& each) {
    return each->orphan && driver().engine().complete(each->tail) && driver().engine().complete(each->marker);
  });
}

CUresult check_implicit_locked(Context& context, const Stream& stream) {
  if (!stream.legacy || context.n_blocking_captures == 0) return CUDA_SUCCESS;
  for (const auto& other : context.streams)
    if (other->capture && other->blocking()) other->capture->invalidated.store(true);
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

namespace {

// Stream writes into host memory and nothing else? Then the memory is noted in the stream.
bool is_marker(const Command& command, Stream* stream) {
  const auto* batch = std::get_if<MemOpCommand>(&command);
  if (!batch) return false;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const CUstreamBatchMemOpParams& op : batch->ops) {
    Allocation memory;
    const bool writes =
        op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (!writes || !Memory::get().find(op.writeValue.address, &memory)) return false;
    if (memory.kind != MemoryKind::kHost && memory.kind != MemoryKind::kRegistered) return false;
    ranges.emplace_back(memory.begin, memory.begin + memory.bytes);
  }
  if (driver().engine().complete(stream->marker)) stream->marked.clear();
  for (const auto& range : ranges)
    if (std::find(stream->marked.begin(), stream->marked.end(), range) == stream->marked.end())
      stream->marked.push_back(range);
  return true;
}

// May the command read or write what pending markers write? Known for copies and fills; for kernels by the
// addresses among their parameters (not by addresses that lie in memory: documented); everything else: yes.
bool may_see_markers(const Command& command, const Stream& stream) {
  auto touches = [&](uint64_t begin, uint64_t bytes) {
    return std::any_of(stream.marked.begin(), stream.marked.end(), [&](const auto& range) {
      return begin < range.second && range.first < begin + std::max<uint64_t>(bytes, 1);
    });
  };
  if (const auto* copy = std::get_if<CopyCommand>(&command))
    return touches(copy->src, copy->src_slice * copy->depth + copy->src_pitch * copy->height + copy->width) ||
           touches(copy->dst, copy->dst_slice * copy->depth + copy->dst_pitch * copy->height + copy->width);
  if (const auto* set = std::get_if<MemsetCommand>(&command))
    return touches(set->dst, set->pitch * set->height + set->width * set->element_bytes);
  const auto* kernel = std::get_if<KernelCommand>(&command);
  if (!kernel) return true;
  for (size_t at = 0; at + 8 <= kernel->params.size() && !stream.marked.empty(); at += 4) {
    uint64_t word;
    std::memcpy(&word, kernel->params.data() + at, 8);
    if (touches(word, 1)) return true;
  }
  return false;
}

}  // namespace

CUresult enqueue(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                 Command command, OpRef* op) {
  HardwareQueue& queue = *stream->queue;
  std::unique_lock lock(context->mutex);
  std::shared_ptr<void> entry;
  while (!entry) {
    if (stream->capture) return add_captured_node_locked(*stream, std::move(command));
    if (CUresult implicit = check_implicit_locked(*context, *stream)) return implicit;
    if (std::holds_alternative<KernelCommand>(command) && context->n_barring > 0) {
      context->launches_allowed.wait(lock);
    } else if (!(entry = queue.try_enter())) {
      lock.unlock();
      queue.wait_for_room();
      lock.lock();
      if (CUresult failed = sticky(*context)) return failed;
    }
  }
  std::vector<OpRef> deps = dependencies_locked(*context, *stream);
  const bool marks = is_marker(command, stream.get());
  const auto* batch = std::get_if<MemOpCommand>(&command);
  const bool waits = batch && batch->waits();
  if (!marks && stream->marker && !may_see_markers(command, *stream)) std::erase(deps, stream->marker);
  OpRef made = submit(context, std::move(command), std::move(deps), *stream, std::move(entry));
  (marks ? stream->marker : stream->tail) = made;
  if (waits) queue.wait = made;
  if (op) *op = std::move(made);
  return CUDA_SUCCESS;
}

namespace {

// Nothing is before it: the caller's thread does a short copy faster than another thread would wake up for
// it. Early is allowed (functional clock); the engine still models its time.
void run_small_copy_now(timing::OpSpec& spec) {
  constexpr uint64_t kInlineBytes = 256 << 10;
  if (spec.kind != timing::OpKind::kCopy || spec.bytes > kInlineBytes || !spec.body) return;
  if (spec.body([](const timing::BlockWork&) {}) == 0) spec.body = nullptr;
}

}  // namespace

OpRef submit(const std::shared_ptr<Context>& context, Command command, std::vector<OpRef> deps,
             const Stream& stream, std::shared_ptr<void> keep) {
  timing::OpSpec spec = make_op(context, std::move(command), stream);
  spec.stream = stream.id;
  if (stream.green) spec.first_sm = stream.green->first_sm, spec.n_sms = stream.green->n_sms;
  std::erase_if(deps, [](const OpRef& dep) { return driver().engine().complete(dep); });
  if (deps.empty()) run_small_copy_now(spec);
  spec.deps = std::move(deps);
  spec.on_complete = [context, keep = std::move(keep)](int code) {
    if (code > 0) poison(*context, code);
  };
  return device_of(*context).engine->submit(std::move(spec));
}

OpRef submit_join(const std::shared_ptr<Context>& context, std::vector<OpRef> deps, const Stream& stream) {
  return submit(context, EmptyCommand{}, std::move(deps), stream);
}

OpRef submit_record(const std::shared_ptr<Context>& context, Event& event, std::vector<OpRef> deps,
                    const Stream& stream) {
  const uint64_t number = event.shared ? event.shared->record() : 0;
  OpRef op = event.shared
                 ? submit(context, SharedRecordCommand{event.shared, number}, std::move(deps), stream)
                 : submit_join(context, std::move(deps), stream);
  std::lock_guard lock(event.mutex);
  event.op = op;
  event.number = number;
  event.recorded = true;
  event.capture = nullptr;
  event.frontier.clear();
  return op;
}

OpRef wait_for_event(const std::shared_ptr<Context>& context, Event& event, const Stream& stream) {
  {
    std::lock_guard lock(event.mutex);
    if (!event.shared || (event.op && event.number == event.shared->last())) return event.op;
  }
  const uint64_t last = event.shared->last();  // another process recorded it
  if (event.shared->over(last)) return nullptr;
  return submit(context, SharedWaitCommand{event.shared, last}, {}, stream);
}

CUresult wait(Context& context, const OpRef& op) {
  if (op) {
    driver().engine().wait(op);
    // on_complete may still be on its way in an engine thread: the code is known already.
    if (const int code = driver().engine().code(op); code > 0) poison(context, code);
  }
  return sticky(context);
}

CUresult wait_all(Context& context, const std::vector<OpRef>& ops) {
  for (const OpRef& op : ops) (void)wait(context, op);
  return sticky(context);
}

CUresult synchronize(Context& context) {
  std::vector<OpRef> tails;
  {
    std::lock_guard lock(context.mutex);
    tails = {context.legacy->tail, context.legacy->marker};
    for (const auto& stream : context.streams) tails.insert(tails.end(), {stream->tail, stream->marker});
  }
  return wait_all(context, tails);
}

CUresult synchronize_without_launches(Context& context) {
  std::unique_lock lock(context.mutex);
  ++context.n_barring;
  lock.unlock();
  const CUresult ended = synchronize(context);
  lock.lock();
  if (--context.n_barring == 0) context.launches_allowed.notify_all();
  return ended;
}

CUresult run_and_wait(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                      Command command) {
  OpRef op;
  if (CUresult failed = enqueue(context, stream, std::move(command), &op)) return failed;
  return wait(*context, op);
}

}  // namespace tessera::softgpu::driver
