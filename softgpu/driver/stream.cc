#include "softgpu/driver/stream.h"

#include "softgpu/driver/capture.h"
#include "softgpu/driver/commands.h"
#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {

namespace {
const CUstream kLegacyHandle = CU_STREAM_LEGACY;
const CUstream kPerThreadHandle = CU_STREAM_PER_THREAD;
}  // namespace

CUresult resolve(Context& context, CUstream handle, NullStream null_stream, std::shared_ptr<Stream>* stream) {
  if (!handle) handle = null_stream == NullStream::kLegacy ? kLegacyHandle : kPerThreadHandle;
  if (handle == kLegacyHandle) {
    *stream = context.legacy;
    return CUDA_SUCCESS;
  }
  if (handle == kPerThreadHandle) {
    std::lock_guard lock(context.mutex);
    std::shared_ptr<Stream>& mine = context.per_thread[thread().number];
    if (!mine) {
      mine = std::make_shared<Stream>();
      mine->context = &context;
      mine->id = driver().next_id.fetch_add(1, std::memory_order_relaxed);  // relaxed: only unique
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

CUstream handle_of(const Stream& stream) {
  return stream.legacy ? kLegacyHandle : reinterpret_cast<CUstream>(const_cast<Stream*>(&stream));
}

std::vector<OpRef> dependencies_locked(Context& context, const Stream& stream) {
  std::vector<OpRef> deps;
  const timing::Engine& engine = *driver().engine;
  auto add = [&](const OpRef& op) {
    if (op && !engine.complete(op)) deps.push_back(op);
  };
  add(stream.tail);
  if (stream.legacy) {
    for (const auto& other : context.streams)
      if (other->blocking()) add(other->tail);
  } else if (stream.blocking()) {
    add(context.legacy->tail);
  }
  return deps;
}

void prune_orphans_locked(Context& context) {
  std::erase_if(context.streams, [](const std::shared_ptr<Stream>& each) {
    return each->orphan && (!each->tail || driver().engine->complete(each->tail));
  });
}

CUresult check_implicit_locked(Context& context, const Stream& stream) {
  if (!stream.legacy || context.n_blocking_captures == 0) return CUDA_SUCCESS;
  for (const auto& other : context.streams)
    if (other->capture && other->blocking()) other->capture->invalidated.store(true);
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult enqueue(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                 Command command, OpRef* op) {
  std::lock_guard lock(context->mutex);
  if (stream->capture) return add_captured_node_locked(*stream, std::move(command));
  if (CUresult implicit = check_implicit_locked(*context, *stream)) return implicit;
  OpRef made = submit(context, std::move(command), dependencies_locked(*context, *stream), *stream);
  stream->tail = made;
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
             const Stream& stream) {
  timing::OpSpec spec = make_op(context, std::move(command), stream.priority);
  spec.stream = stream.id;
  std::erase_if(deps, [](const OpRef& dep) { return driver().engine->complete(dep); });
  if (deps.empty()) run_small_copy_now(spec);
  spec.deps = std::move(deps);
  spec.on_complete = [context](int code) {
    if (code > 0) poison(*context, code);
  };
  return driver().engine->submit(std::move(spec));
}

OpRef submit_join(const std::shared_ptr<Context>& context, std::vector<OpRef> deps, const Stream& stream) {
  return submit(context, EmptyCommand{}, std::move(deps), stream);
}

CUresult wait(Context& context, const OpRef& op) {
  if (op) {
    driver().engine->wait(op);
    // on_complete may still be on its way in an engine thread: the code is known already.
    if (const int code = driver().engine->code(op); code > 0) poison(context, code);
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
    tails.push_back(context.legacy->tail);
    for (const auto& stream : context.streams) tails.push_back(stream->tail);
  }
  return wait_all(context, tails);
}

CUresult run_and_wait(const std::shared_ptr<Context>& context, const std::shared_ptr<Stream>& stream,
                      Command command) {
  OpRef op;
  if (CUresult failed = enqueue(context, stream, std::move(command), &op)) return failed;
  return wait(*context, op);
}

}  // namespace tessera::softgpu::driver
