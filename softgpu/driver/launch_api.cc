// Kernel launches and host functions.
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/code.h"
#include "softgpu/driver/green.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {
namespace {

CUresult pack_params(const exec::KernelInfo& info, void** params, void** extra, std::vector<uint8_t>* block) {
  block->assign(info.param_bytes, 0);
  if (params && extra) return CUDA_ERROR_INVALID_VALUE;
  if (params) {
    for (size_t i = 0; i < info.params.size(); ++i) {
      if (!params[i]) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(block->data() + info.params[i].offset_bytes, params[i], info.params[i].size_bytes);
    }
    return CUDA_SUCCESS;
  }
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (void** at = extra; at && *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = at[1];
    else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE && at[1])
      bytes = *static_cast<const size_t*>(at[1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (info.param_bytes == 0) return CUDA_SUCCESS;
  if (!buffer || bytes < info.param_bytes) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(block->data(), buffer, info.param_bytes);
  return CUDA_SUCCESS;
}

CUresult check_shape(const Function& function, const LaunchShape& shape) {
  const exec::KernelInfo& info = *function.info;
  const auto& gpu = device_of(*function.module->context).gpu;
  const uint32_t grid_limit[3] = {2147483647u, 65535u, 65535u};
  const uint32_t block_limit[3] = {1024u, 1024u, 64u};
  for (int i = 0; i < 3; ++i) {
    if (!shape.grid[i] || shape.grid[i] > grid_limit[i]) return CUDA_ERROR_INVALID_VALUE;
    if (!shape.block[i] || shape.block[i] > block_limit[i]) return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t threads = uint64_t(shape.block[0]) * shape.block[1] * shape.block[2];
  if (threads > gpu.block.max_threads || threads > info.max_threads_per_block)
    return CUDA_ERROR_INVALID_VALUE;
  if (info.required_block[0] && info.required_block != shape.block) return CUDA_ERROR_INVALID_VALUE;
  if (profiles::registers_per_block(uint32_t(threads), info.registers) > gpu.block.max_registers)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (shape.shared_bytes > dynamic_shared_limit(function)) return CUDA_ERROR_INVALID_VALUE;
  if (shape.cooperative && uint64_t(shape.grid[0]) * shape.grid[1] * shape.grid[2] >
                               resident_blocks(function, uint32_t(threads), shape.shared_bytes))
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return CUDA_SUCCESS;
}

}  // namespace

// From the launch, the function's attributes or the kernel itself.
CUresult choose_cluster(const Function& function, const LaunchShape& shape,
                        std::array<uint32_t, 3>* cluster) {
  *cluster = shape.cluster;
  const auto& required = function.info->required_cluster;
  if (!(*cluster)[0])
    for (size_t i = 0; i < 3; ++i)
      (*cluster)[i] = uint32_t(function.cluster[i].load(std::memory_order_relaxed));
  if (required[0] && (*cluster)[0] && *cluster != required) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  const std::array<uint32_t, 3> effective = (*cluster)[0] ? *cluster : required;
  if (!effective[0]) return function.info->explicit_cluster ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
  if (device_of(*function.module->context).gpu.cc_major < 9) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t blocks = 1;
  for (size_t i = 0; i < 3; ++i) {
    if (!effective[i] || shape.grid[i] % effective[i]) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    blocks *= effective[i];
  }
  const bool large = function.non_portable_cluster.load(std::memory_order_relaxed) != 0;
  return blocks <= (large ? 16u : 8u) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

CUresult prepare_launch(const std::shared_ptr<Context>& context, CUfunction handle, const LaunchShape& shape,
                        void** params, void** extra, KernelCommand* command) {
  std::shared_ptr<Function> function;
  if (CUresult bad = function_of(context, handle, &function)) return bad;
  if (CUresult bad = check_shape(*function, shape)) return bad;
  if (CUresult bad = choose_cluster(*function, shape, &command->cluster)) return bad;
  if (CUresult bad = pack_params(*function->info, params, extra, &command->params)) return bad;
  function->loaded = true;
  if (function.get() != reinterpret_cast<Function*>(handle))
    command->kernel_handle = reinterpret_cast<CUkernel>(handle);
  command->function = std::move(function);
  command->grid = shape.grid;
  command->block = shape.block;
  command->dynamic_shared_bytes = shape.shared_bytes;
  command->cooperative = shape.cooperative;
  return CUDA_SUCCESS;
}

namespace {

struct LaunchOptions {
  bool has_priority = false;
  int priority = 0;
  CUevent completion = nullptr;  // recorded when all blocks have begun; here: when the kernel is complete
  std::map<int, CUlaunchAttributeValue> attributes;  // as given, for a node
};

CUresult launch(CUfunction f, const LaunchShape& shape, CUstream handle, NullStream null_stream,
                void** params, void** extra, const LaunchOptions& options = {}) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  KernelCommand command;
  if (CUresult bad = prepare_launch(context, f, shape, params, extra, &command)) return bad;
  command.tag = thread().tag;
  if (shape.cooperative && stream->green) {
    const auto& info = *command.function->info;
    const uint32_t per_sm =
        profiles::blocks_per_sm(device_of(*context).gpu, shape.block[0] * shape.block[1] * shape.block[2],
                                info.registers, info.static_shared_bytes + shape.shared_bytes);
    if (uint64_t(shape.grid[0]) * shape.grid[1] * shape.grid[2] > uint64_t(per_sm) * stream->green->n_sms)
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  command.has_priority = options.has_priority;
  command.priority = options.priority;
  command.attributes = options.attributes;
  std::shared_ptr<Event> completion;
  if (options.completion && !(completion = driver().events.find(options.completion)))
    return CUDA_ERROR_INVALID_HANDLE;
  OpRef op;
  if (CUresult failed = enqueue(context, stream, std::move(command), &op)) return failed;
  if (completion && op) {
    std::lock_guard lock(completion->mutex);
    completion->op = std::move(op);
    completion->recorded = true;
    completion->capture = nullptr;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

TS_PAIR(cuLaunchKernel, _ptsz,
        (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
         unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
         CUstream hStream, void** kernelParams, void** extra),
        (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
         kernelParams, extra)) {
  TS_ENTER(cuLaunchKernel);
  return launch(f, {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, false},
                hStream, null_stream, kernelParams, extra);
}

TS_PAIR(cuLaunchCooperativeKernel, _ptsz,
        (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
         unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
         CUstream hStream, void** kernelParams),
        (f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, hStream,
         kernelParams)) {
  TS_ENTER(cuLaunchCooperativeKernel);
  return launch(f, {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, true},
                hStream, null_stream, kernelParams, nullptr);
}

TS_PAIR(cuLaunchKernelEx, _ptsz,
        (const CUlaunchConfig* config, CUfunction f, void** kernelParams, void** extra),
        (config, f, kernelParams, extra)) {
  TS_ENTER(cuLaunchKernelEx);
  if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                    config->sharedMemBytes,
                    false};
  LaunchOptions options;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    options.attributes[attribute.id] = attribute.value;
    switch (int(attribute.id)) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        shape.cooperative = attribute.value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        options.has_priority = true;
        options.priority = attribute.value.priority;
        break;
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        options.completion = attribute.value.launchCompletionEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        options.completion = attribute.value.programmaticEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
        const auto& cluster = attribute.value.clusterDim;
        if (!cluster.x || !cluster.y || !cluster.z) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        shape.cluster = {cluster.x, cluster.y, cluster.z};
        break;
      }
      default:
        break;  // hints: cache windows, scheduling preferences, programmatic serialization
    }
  }
  return launch(f, shape, config->hStream, null_stream, kernelParams, extra, options);
}

TS_PAIR(cuLaunchHostFunc, _ptsz, (CUstream hStream, CUhostFn fn, void* userData), (hStream, fn, userData)) {
  TS_CONTEXT(cuLaunchHostFunc, context);
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, hStream, null_stream, &stream)) return bad;
  HostCommand command;
  command.function = fn;
  command.data = userData;
  return enqueue(context, stream, command);
}

TS_PAIR(cuStreamAddCallback, _ptsz,
        (CUstream hStream, CUstreamCallback callback, void* userData, unsigned int flags),
        (hStream, callback, userData, flags)) {
  TS_CONTEXT(cuStreamAddCallback, context);
  if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, hStream, null_stream, &stream)) return bad;
  {
    std::lock_guard lock(context->mutex);
    if (CUresult refused = check_stream_access_locked(*context, *stream)) return refused;  // not capturable
  }
  HostCommand command;
  command.callback = callback;
  command.data = userData;
  command.stream = hStream;
  return enqueue(context, stream, command);
}

// Not of the driver's interface: operations/table.h, TagLaunches.
extern "C" __attribute__((visibility("default"))) uint64_t softgpu_tag_launches(uint64_t tag) {
  tessera::softgpu::driver::Thread& thread = tessera::softgpu::driver::thread();
  thread.tag = tag;
  return std::exchange(thread.captured, 0);
}
