// Graph nodes by kind: kernel, copy, fill, host function, event, child graph, empty.

#include <cstring>

#include "softgpu/runtime/copy_params.h"
#include "softgpu/runtime/registry.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

cudaError_t to_driver(const cudaKernelNodeParams* from, CUDA_KERNEL_NODE_PARAMS* to) {
  if (!from) return cudaErrorInvalidValue;
  CUkernel kernel = nullptr;
  if (const cudaError_t status = find_kernel(from->func, &kernel)) return status;
  *to = {};
  to->kern = kernel;
  to->gridDimX = from->gridDim.x;
  to->gridDimY = from->gridDim.y;
  to->gridDimZ = from->gridDim.z;
  to->blockDimX = from->blockDim.x;
  to->blockDimY = from->blockDim.y;
  to->blockDimZ = from->blockDim.z;
  to->sharedMemBytes = from->sharedMemBytes;
  to->kernelParams = from->kernelParams;
  to->extra = from->extra;
  return cudaSuccess;
}

CUcontext current_context() {
  CUcontext context = nullptr;
  driver().CtxGetCurrent(&context);
  return context;
}

template <class Use>
cudaError_t with_copy(const cudaMemcpy3DParms* params, Use&& body) {
  return with_context([&]() -> cudaError_t {
    CUDA_MEMCPY3D copy{};
    if (!params) return cudaErrorInvalidValue;
    if (const cudaError_t status = tessera::softgpu::runtime::to_driver(*params, &copy)) return status;
    return as_error(body(&copy));
  });
}

template <class Use>
cudaError_t with_kernel_params(const cudaKernelNodeParams* params, Use&& body) {
  return with_context([&]() -> cudaError_t {
    CUDA_KERNEL_NODE_PARAMS p{};
    if (const cudaError_t status = to_driver(params, &p)) return status;
    return as_error(body(&p));
  });
}

// Copy parameters for a symbol on one side; the address is fixed when the node is made.
cudaError_t symbol_address(const void* symbol, size_t offset, size_t count, char** address) {
  return with_context([&]() -> cudaError_t {
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    if (const cudaError_t status = find_variable(symbol, &begin, &bytes)) return status;
    if (offset > bytes || count > bytes - offset) return cudaErrorInvalidValue;
    *address = reinterpret_cast<char*>(begin + offset);
    return cudaSuccess;
  });
}

static_assert(sizeof(cudaMemsetParams) == sizeof(CUDA_MEMSET_NODE_PARAMS));
static_assert(sizeof(cudaHostNodeParams) == sizeof(CUDA_HOST_NODE_PARAMS));
static_assert(sizeof(cudaMemAllocNodeParams) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS));
const CUDA_MEMSET_NODE_PARAMS* to_driver(const cudaMemsetParams* p) {
  return reinterpret_cast<const CUDA_MEMSET_NODE_PARAMS*>(p);
}
const CUDA_HOST_NODE_PARAMS* to_driver(const cudaHostNodeParams* p) {
  return reinterpret_cast<const CUDA_HOST_NODE_PARAMS*>(p);
}

// The generic structure. Kinds whose parameters look alike in both are copied, the others translated; the
// numbers of the kinds are the same.
static_assert(sizeof(cudaGraphNodeParams) == sizeof(CUgraphNodeParams));
static_assert(sizeof(cudaMemsetParamsV2) <= sizeof(CUDA_MEMSET_NODE_PARAMS_v2));
static_assert(sizeof(cudaConditionalNodeParams) <= sizeof(CUDA_CONDITIONAL_NODE_PARAMS));
static_assert(sizeof(cudaMemAllocNodeParamsV2) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2));
template <class Use>
cudaError_t with_generic(const cudaGraphNodeParams* from, Use&& use) {
  return with_context([&]() -> cudaError_t {
    CUgraphNodeParams p{};
    if (!from) return cudaErrorInvalidValue;
    p.type = static_cast<CUgraphNodeType>(from->type);
    switch (from->type) {
      case cudaGraphNodeTypeKernel: {
        const cudaKernelNodeParamsV2& k = from->kernel;
        const cudaKernelNodeParams old{k.func,           dim3(k.gridDim), dim3(k.blockDim),
                                       k.sharedMemBytes, k.kernelParams,  k.extra};
        CUDA_KERNEL_NODE_PARAMS translated{};
        if (const cudaError_t status = to_driver(&old, &translated)) return status;
        std::memcpy(&p.kernel, &translated, sizeof translated);
        break;
      }
      case cudaGraphNodeTypeMemcpy:
        if (const cudaError_t status =
                tessera::softgpu::runtime::to_driver(from->memcpy.copyParams, &p.memcpy.copyParams))
          return status;
        p.memcpy.copyCtx = current_context();
        break;
      case cudaGraphNodeTypeMemset:
        std::memcpy(&p.memset, &from->memset, sizeof from->memset);
        p.memset.ctx = current_context();
        break;
      case cudaGraphNodeTypeConditional:
        std::memcpy(&p.conditional, &from->conditional, sizeof from->conditional);
        p.conditional.ctx = current_context();
        break;
      default:
        std::memcpy(p.reserved1, from->reserved1, sizeof p.reserved1);
    }
    return as_error(use(&p));
  });
}

}  // namespace

extern "C" {

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                   size_t n_deps, const cudaKernelNodeParams* params) {
  return with_kernel_params(params, [&](const CUDA_KERNEL_NODE_PARAMS* p) {
    return driver().GraphAddKernelNode(node, graph, deps, n_deps, p);
  });
}
cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* params) {
  return with_kernel_params(
      params, [&](const CUDA_KERNEL_NODE_PARAMS* p) { return driver().GraphKernelNodeSetParams(node, p); });
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* params) {
  return with_kernel_params(params, [&](const CUDA_KERNEL_NODE_PARAMS* p) {
    return driver().GraphExecKernelNodeSetParams(exec, node, p);
  });
}
// `func` is the kernel's handle, which every function of this library takes in place of the host address.
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* params) {
  return with_context([&]() -> cudaError_t {
    if (!params) return cudaErrorInvalidValue;
    CUDA_KERNEL_NODE_PARAMS p{};
    if (const CUresult result = driver().GraphKernelNodeGetParams(node, &p)) return as_error(result);
    *params = {};
    params->func = p.kern ? static_cast<void*>(p.kern) : static_cast<void*>(p.func);
    if (p.kern) remember_kernel(p.kern);
    params->gridDim = dim3(p.gridDimX, p.gridDimY, p.gridDimZ);
    params->blockDim = dim3(p.blockDimX, p.blockDimY, p.blockDimZ);
    params->sharedMemBytes = p.sharedMemBytes;
    params->kernelParams = p.kernelParams;
    params->extra = p.extra;
    return cudaSuccess;
  });
}
cudaError_t cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t dst, cudaGraphNode_t src) {
  return with_driver([&] { return driver().GraphKernelNodeCopyAttributes(dst, src); });
}
cudaError_t cudaGraphKernelNodeGetAttribute(cudaGraphNode_t node, cudaLaunchAttributeID attr,
                                            cudaLaunchAttributeValue* value) {
  return with_driver([&] {
    return driver().GraphKernelNodeGetAttribute(node, static_cast<CUkernelNodeAttrID>(attr),
                                                reinterpret_cast<CUkernelNodeAttrValue*>(value));
  });
}
cudaError_t cudaGraphKernelNodeSetAttribute(cudaGraphNode_t node, cudaLaunchAttributeID attr,
                                            const cudaLaunchAttributeValue* value) {
  return with_driver([&] {
    return driver().GraphKernelNodeSetAttribute(node, static_cast<CUkernelNodeAttrID>(attr),
                                                reinterpret_cast<const CUkernelNodeAttrValue*>(value));
  });
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                   size_t n_deps, const cudaMemcpy3DParms* params) {
  return with_copy(params, [&](const CUDA_MEMCPY3D* copy) {
    return driver().GraphAddMemcpyNode(node, graph, deps, n_deps, copy, current_context());
  });
}
cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* params) {
  return with_copy(params,
                   [&](const CUDA_MEMCPY3D* copy) { return driver().GraphMemcpyNodeSetParams(node, copy); });
}
cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemcpy3DParms* params) {
  return with_copy(params, [&](const CUDA_MEMCPY3D* copy) {
    return driver().GraphExecMemcpyNodeSetParams(exec, node, copy, current_context());
  });
}
cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* params) {
  return with_driver([&]() -> cudaError_t {
    if (!params) return cudaErrorInvalidValue;
    CUDA_MEMCPY3D copy{};
    if (const CUresult result = driver().GraphMemcpyNodeGetParams(node, &copy)) return as_error(result);
    to_runtime(copy, params);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                     size_t n_deps, void* dst, const void* src, size_t count,
                                     cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = linear_copy(dst, src, count, kind);
  return cudaGraphAddMemcpyNode(node, graph, deps, n_deps, &params);
}
cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* dst, const void* src, size_t count,
                                           cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = linear_copy(dst, src, count, kind);
  return cudaGraphMemcpyNodeSetParams(node, &params);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* dst,
                                               const void* src, size_t count, cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = linear_copy(dst, src, count, kind);
  return cudaGraphExecMemcpyNodeSetParams(exec, node, &params);
}

cudaError_t cudaGraphAddMemcpyNodeToSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                           const cudaGraphNode_t* deps, size_t n_deps, const void* symbol,
                                           const void* src, size_t count, size_t offset,
                                           cudaMemcpyKind kind) {
  char* address = nullptr;
  if (const cudaError_t status = symbol_address(symbol, offset, count, &address)) return status;
  return cudaGraphAddMemcpyNode1D(node, graph, deps, n_deps, address, src, count, kind);
}
cudaError_t cudaGraphAddMemcpyNodeFromSymbol(cudaGraphNode_t* node, cudaGraph_t graph,
                                             const cudaGraphNode_t* deps, size_t n_deps, void* dst,
                                             const void* symbol, size_t count, size_t offset,
                                             cudaMemcpyKind kind) {
  char* address = nullptr;
  if (const cudaError_t status = symbol_address(symbol, offset, count, &address)) return status;
  return cudaGraphAddMemcpyNode1D(node, graph, deps, n_deps, dst, address, count, kind);
}
cudaError_t cudaGraphMemcpyNodeSetParamsToSymbol(cudaGraphNode_t node, const void* symbol, const void* src,
                                                 size_t count, size_t offset, cudaMemcpyKind kind) {
  char* address = nullptr;
  if (const cudaError_t status = symbol_address(symbol, offset, count, &address)) return status;
  return cudaGraphMemcpyNodeSetParams1D(node, address, src, count, kind);
}
cudaError_t cudaGraphMemcpyNodeSetParamsFromSymbol(cudaGraphNode_t node, void* dst, const void* symbol,
                                                   size_t count, size_t offset, cudaMemcpyKind kind) {
  char* address = nullptr;
  if (const cudaError_t status = symbol_address(symbol, offset, count, &address)) return status;
  return cudaGraphMemcpyNodeSetParams1D(node, dst, address, count, kind);
}
cudaError_t cudaGraphExecMemcpyNodeSetParamsToSymbol(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                     const void* symbol, const void* src, size_t count,
                                                     size_t offset, cudaMemcpyKind kind) {
  char* address = nullptr;
  if (const cudaError_t status = symbol_address(symbol, offset, count, &address)) return status;
  return cudaGraphExecMemcpyNodeSetParams1D(exec, node, address, src, count, kind);
}
cudaError_t cudaGraphExecMemcpyNodeSetParamsFromSymbol(cudaGraphExec_t exec, cudaGraphNode_t node, void* dst,
                                                       const void* symbol, size_t count, size_t offset,
                                                       cudaMemcpyKind kind) {
  char* address = nullptr;
  if (const cudaError_t status = symbol_address(symbol, offset, count, &address)) return status;
  return cudaGraphExecMemcpyNodeSetParams1D(exec, node, dst, address, count, kind);
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                   size_t n_deps, const cudaMemsetParams* params) {
  return with_context([&] {
    return driver().GraphAddMemsetNode(node, graph, deps, n_deps, to_driver(params), current_context());
  });
}
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* params) {
  return with_driver([&] {
    return driver().GraphMemsetNodeGetParams(node, reinterpret_cast<CUDA_MEMSET_NODE_PARAMS*>(params));
  });
}
cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* params) {
  return with_context([&] { return driver().GraphMemsetNodeSetParams(node, to_driver(params)); });
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemsetParams* params) {
  return with_context([&] {
    return driver().GraphExecMemsetNodeSetParams(exec, node, to_driver(params), current_context());
  });
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                 size_t n_deps, const cudaHostNodeParams* params) {
  return with_context(
      [&] { return driver().GraphAddHostNode(node, graph, deps, n_deps, to_driver(params)); });
}
cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* params) {
  return with_driver([&] {
    return driver().GraphHostNodeGetParams(node, reinterpret_cast<CUDA_HOST_NODE_PARAMS*>(params));
  });
}
cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node, const cudaHostNodeParams* params) {
  return with_driver([&] { return driver().GraphHostNodeSetParams(node, to_driver(params)); });
}
cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                           const cudaHostNodeParams* params) {
  return with_driver([&] { return driver().GraphExecHostNodeSetParams(exec, node, to_driver(params)); });
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                  size_t n_deps) {
  return with_driver([&] { return driver().GraphAddEmptyNode(node, graph, deps, n_deps); });
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                       size_t n_deps, cudaGraph_t child) {
  return with_driver([&] { return driver().GraphAddChildGraphNode(node, graph, deps, n_deps, child); });
}
cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) {
  return with_driver([&] { return driver().GraphChildGraphNodeGetGraph(node, graph); });
}
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 cudaGraph_t child) {
  return with_context([&] { return driver().GraphExecChildGraphNodeSetParams(exec, node, child); });
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                        size_t n_deps, cudaEvent_t event) {
  return with_driver([&] { return driver().GraphAddEventRecordNode(node, graph, deps, n_deps, event); });
}
cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                      size_t n_deps, cudaEvent_t event) {
  return with_driver([&] { return driver().GraphAddEventWaitNode(node, graph, deps, n_deps, event); });
}
cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return with_driver([&] { return driver().GraphEventRecordNodeGetEvent(node, event); });
}
cudaError_t cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return with_driver([&] { return driver().GraphEventRecordNodeSetEvent(node, event); });
}
cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return with_driver([&] { return driver().GraphEventWaitNodeGetEvent(node, event); });
}
cudaError_t cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return with_driver([&] { return driver().GraphEventWaitNodeSetEvent(node, event); });
}
cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 cudaEvent_t event) {
  return with_driver([&] { return driver().GraphExecEventRecordNodeSetEvent(exec, node, event); });
}
cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                               cudaEvent_t event) {
  return with_driver([&] { return driver().GraphExecEventWaitNodeSetEvent(exec, node, event); });
}

cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                     size_t n_deps, cudaMemAllocNodeParams* params) {
  return with_context([&] {
    return driver().GraphAddMemAllocNode(node, graph, deps, n_deps,
                                         reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS*>(params));
  });
}
cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                                    size_t n_deps, void* pointer) {
  return with_context(
      [&] { return driver().GraphAddMemFreeNode(node, graph, deps, n_deps, device_pointer(pointer)); });
}
cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* pointer) {
  return with_driver(
      [&] { return driver().GraphMemFreeNodeGetParams(node, static_cast<CUdeviceptr*>(pointer)); });
}
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph,
                                             unsigned value, unsigned flags) {
  return with_context([&] {
    return driver().GraphConditionalHandleCreate(reinterpret_cast<CUgraphConditionalHandle*>(handle), graph,
                                                 current_context(), value, flags);
  });
}

cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node, cudaMemAllocNodeParams* params) {
  return with_driver([&] {
    return driver().GraphMemAllocNodeGetParams(node, reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS*>(params));
  });
}

cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* deps,
                             const cudaGraphEdgeData* edges, size_t n_deps, cudaGraphNodeParams* params) {
  return with_generic(params, [&](CUgraphNodeParams* p) {
    const CUresult result =
        driver().GraphAddNode(node, graph, deps, reinterpret_cast<const CUgraphEdgeData*>(edges), n_deps, p);
    // The driver fills these in.
    if (result == CUDA_SUCCESS && params->type == cudaGraphNodeTypeConditional)
      params->conditional.phGraph_out = p->conditional.phGraph_out;
    if (result == CUDA_SUCCESS && params->type == cudaGraphNodeTypeMemAlloc)
      params->alloc.dptr = reinterpret_cast<void*>(p->alloc.dptr);
    return result;
  });
}
cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams* params) {
  return with_generic(params, [&](CUgraphNodeParams* p) { return driver().GraphNodeSetParams(node, p); });
}
cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                       cudaGraphNodeParams* params) {
  return with_generic(params,
                      [&](CUgraphNodeParams* p) { return driver().GraphExecNodeSetParams(exec, node, p); });
}

}  // extern "C"
