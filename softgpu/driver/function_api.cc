// Attributes, parameters and names of functions and kernels, and the occupancy calculators.
#include <algorithm>

#include "softgpu/driver/code.h"
#include "softgpu/driver/state.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

CUresult find(CUfunction handle, std::shared_ptr<Function>* function) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  return function_of(context, handle, function);
}
CUresult find(CUkernel handle, std::shared_ptr<Function>* function) {
  return find(reinterpret_cast<CUfunction>(handle), function);
}

CUresult param_info(const Function& function, size_t index, size_t* offset, size_t* bytes) {
  if (!offset) return CUDA_ERROR_INVALID_VALUE;
  const auto& params = function.info->params;
  if (index >= params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = params[index].offset_bytes;
  if (bytes) *bytes = params[index].size_bytes;
  return CUDA_SUCCESS;
}

uint32_t blocks_per_sm(const Function& function, int block_size, size_t dynamic_bytes) {
  const auto& info = *function.info;
  const auto& gpu = device_of(*function.module->context).gpu;
  if (dynamic_bytes + info.static_shared_bytes > gpu.block.shared_optin_bytes) return 0;
  return tessera::profiles::blocks_per_sm(gpu, uint32_t(block_size), info.registers,
                                          info.static_shared_bytes + uint32_t(dynamic_bytes));
}

CUresult potential(int* min_grid, int* block_size, CUfunction func, CUoccupancyB2DSize size_of,
                   size_t dynamic_bytes, int limit) {
  if (!min_grid || !block_size) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(func, &function)) return bad;
  int most_threads = 0;
  (void)get_attribute(*function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &most_threads);
  if (limit > 0) most_threads = std::min(most_threads, limit);
  uint32_t best = 0;
  *min_grid = *block_size = 0;
  for (int threads = (most_threads + 31) / 32 * 32; threads > 0; threads -= 32) {
    const int n = std::min(threads, most_threads);
    const uint32_t blocks = blocks_per_sm(*function, n, size_of ? size_of(n) : dynamic_bytes);
    if (blocks * uint32_t(n) <= best) continue;
    best = blocks * uint32_t(n);
    *block_size = n;
    *min_grid = int(blocks * device_of(*function->module->context).gpu.sm.count);
  }
  return best ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
}

CUresult name_of(const char** out, const std::string& name) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = name.c_str();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  TS_ENTER(cuFuncGetAttribute);
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(hfunc, &function)) return bad;
  // As documented for handles of cuModuleEnumerateFunctions; for those of libraries nothing is.
  const bool needs_code = attrib == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ||
                          attrib == CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES ||
                          attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  if (needs_code && !function->loaded && !function->module->library) return CUDA_ERROR_FUNCTION_NOT_LOADED;
  return get_attribute(*function, attrib, pi);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  TS_ENTER(cuFuncSetAttribute);
  std::shared_ptr<Function> function;
  if (CUresult bad = find(hfunc, &function)) return bad;
  return set_attribute(*function, attrib, value);
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  TS_ENTER(cuFuncSetCacheConfig);
  if (!hfunc) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(hfunc, &function)) return bad;
  return unsigned(config) > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  TS_ENTER(cuFuncSetSharedMemConfig);
  std::shared_ptr<Function> function;
  if (CUresult bad = find(hfunc, &function)) return bad;
  return unsigned(config) > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  TS_ENTER(cuFuncGetModule);
  if (!hmod) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(hfunc, &function)) return bad;
  *hmod = reinterpret_cast<CUmodule>(function->module.get());
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
  TS_ENTER(cuFuncGetName);
  if (!hfunc) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(hfunc, &function)) return bad;
  return name_of(name, function->info->name);
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  TS_ENTER(cuFuncGetParamInfo);
  std::shared_ptr<Function> function;
  if (CUresult bad = find(func, &function)) return bad;
  return param_info(*function, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction func) {
  TS_ENTER(cuFuncIsLoaded);
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(func, &function)) return bad;
  *state = function->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED;
  return CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction func) {
  TS_ENTER(cuFuncLoad);
  std::shared_ptr<Function> function;
  if (CUresult bad = find(func, &function)) return bad;
  function->loaded = true;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  TS_ENTER(cuKernelGetAttribute);
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  if (!find_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(kernel, &function)) return bad;
  return get_attribute(*function, attrib, pi);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  TS_ENTER(cuKernelSetAttribute);
  if (!find_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(kernel, &function)) return bad;
  if (CUresult bad = set_attribute(*function, attrib, val)) return bad;
  if (const std::shared_ptr<LibraryKernel> mine = driver().kernels.find(kernel)) {
    std::lock_guard lock(mine->mutex);
    mine->attributes[attrib] = val;  // for the instances in contexts that do not exist yet
  }
  return CUDA_SUCCESS;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  TS_ENTER(cuKernelSetCacheConfig);
  if (!find_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (!driver().kernels.find(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return unsigned(config) > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  TS_ENTER(cuKernelGetName);
  if (!kernel) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<LibraryKernel> mine = driver().kernels.find(kernel);
  return mine ? name_of(name, mine->name) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  TS_ENTER(cuKernelGetParamInfo);
  std::shared_ptr<Function> function;
  if (CUresult bad = find(kernel, &function)) return bad;
  return param_info(*function, paramIndex, paramOffset, paramSize);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags) {
  TS_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  if (!numBlocks || blockSize <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(func, &function)) return bad;
  *numBlocks = int(blocks_per_sm(*function, blockSize, dynamicSMemSize));
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
  TS_ENTER(cuOccupancyMaxPotentialBlockSize);
  return potential(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags) {
  TS_ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags);
  if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
  return potential(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize) {
  TS_ENTER(cuOccupancyAvailableDynamicSMemPerBlock);
  if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Function> function;
  if (CUresult bad = find(func, &function)) return bad;
  const auto& gpu = device_of(*function->module->context).gpu;
  const int64_t share = int64_t(gpu.sm.shared_bytes) / numBlocks - gpu.block.reserved_shared_bytes;
  const int64_t most =
      std::min<int64_t>(share, gpu.block.shared_optin_bytes) - function->info->static_shared_bytes;
  if (most < 0 || blocks_per_sm(*function, blockSize, 0) < uint32_t(numBlocks))
    return CUDA_ERROR_INVALID_VALUE;
  *dynamicSmemSize = size_t(most);
  return CUDA_SUCCESS;
}

// Blocks of the shape that the kernel was compiled for, or that was set; 0: any.
static uint32_t required_cluster_blocks(const Function& function) {
  uint32_t blocks = 1;
  for (size_t axis = 0; axis < 3; ++axis) {
    const uint32_t compiled = function.info->required_cluster[axis];
    blocks *= compiled ? compiled : uint32_t(function.cluster[axis].load(std::memory_order_relaxed));
  }
  return blocks;
}

// Clusters as far as occupancy goes: blocks of a cluster are counted as resident together, GPCs are not
// modelled. `cluster`: blocks of one, 0 if neither the kernel nor the launch says.
static CUresult cluster_shape(const CUlaunchConfig* config, CUfunction func,
                              std::shared_ptr<Function>* function, uint32_t* cluster, uint32_t* blocks) {
  if (!config || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = find(func, function)) return bad;
  const auto& device = device_of(*(*function)->module->context);
  if (device.gpu.cc_major < 9) return CUDA_ERROR_NOT_SUPPORTED;
  *cluster = required_cluster_blocks(**function);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& dim = config->attrs[i].value.clusterDim;
    const uint32_t required = *cluster;
    *cluster = dim.x * dim.y * dim.z;
    if (!*cluster || *cluster > 16 || (required && *cluster != required))
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  const uint64_t threads = uint64_t(config->blockDimX) * config->blockDimY * config->blockDimZ;
  if (!threads || threads > device.gpu.block.max_threads) return CUDA_ERROR_INVALID_VALUE;
  *blocks = blocks_per_sm(**function, int(threads), config->sharedMemBytes) * device.gpu.sm.count;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func, const CUlaunchConfig* config) {
  TS_ENTER(cuOccupancyMaxActiveClusters);
  std::shared_ptr<Function> function;
  uint32_t cluster = 0, blocks = 0;
  if (!numClusters) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = cluster_shape(config, func, &function, &cluster, &blocks)) return bad;
  if (!cluster) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  const bool allowed = cluster <= 8 || function->non_portable_cluster.load(std::memory_order_relaxed);
  if (!allowed) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  *numClusters = int(blocks / cluster);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func, const CUlaunchConfig* config) {
  TS_ENTER(cuOccupancyMaxPotentialClusterSize);
  std::shared_ptr<Function> function;
  uint32_t cluster = 0, blocks = 0;
  if (!clusterSize) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = cluster_shape(config, func, &function, &cluster, &blocks)) return bad;
  uint32_t most = function->non_portable_cluster.load(std::memory_order_relaxed) ? 16 : 8;
  while (most > 1 && most > blocks) most /= 2;
  *clusterSize = int(most);
  return CUDA_SUCCESS;
}
