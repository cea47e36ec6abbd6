// Parameters and attributes of graph nodes, and of the nodes of executable graphs.
#include <algorithm>
#include <cstring>

#include "softgpu/driver/copy.h"
#include "softgpu/driver/graph_nodes.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

// A captured copy has no parameters as given: what they would have been.
CUDA_MEMCPY3D describe(const CopyCommand& copy) {
  CUDA_MEMCPY3D p = {};
  auto host_memory = [](uint64_t address) {
    Allocation found;
    return !Memory::get().find(address, &found) || !found.on_device();
  };
  p.srcMemoryType = host_memory(copy.src) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  p.dstMemoryType = host_memory(copy.dst) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  p.srcHost = reinterpret_cast<const void*>(copy.src), p.srcDevice = copy.src;
  p.dstHost = reinterpret_cast<void*>(copy.dst), p.dstDevice = copy.dst;
  p.srcPitch = copy.src_pitch, p.dstPitch = copy.dst_pitch;
  if (copy.src_pitch) p.srcHeight = copy.src_slice / copy.src_pitch;
  if (copy.dst_pitch) p.dstHeight = copy.dst_slice / copy.dst_pitch;
  p.WidthInBytes = copy.width, p.Height = copy.height, p.Depth = copy.depth;
  return p;
}

// Launch attributes that a kernel node can have, those that an H200 names.
bool is_kernel_attribute(int id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return true;
    default:
      return false;
  }
}

// The value of a node that nobody gave the attribute, on an H200.
CUlaunchAttributeValue default_of(int id) {
  CUlaunchAttributeValue value{};
  if (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP)
    value.memSyncDomainMap = {CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE};
  return value;
}

CUresult set_event(CUgraphNode node, CUevent handle, bool record) {
  const std::shared_ptr<Event> event = driver().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  return record ? replace(node, EventRecordCommand{event}) : replace(node, EventWaitCommand{event});
}

CUresult set_mem_ops(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  MemOpCommand command;
  if (!params || params->flags) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_mem_ops(params->paramArray, params->count, &command)) return bad;
  return replace(node, std::move(command));
}

// The generic structure; `node` may be one of an executable graph.
CUresult set_params(CUgraphNode node, const CUgraphNodeParams& p) {
  Node* found = find_node(node);
  if (!found || type_of(found->command) != p.type) return CUDA_ERROR_INVALID_VALUE;
  switch (int(p.type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return cuGraphKernelNodeSetParams_v2(node,
                                           reinterpret_cast<const CUDA_KERNEL_NODE_PARAMS_v2*>(&p.kernel));
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphMemcpyNodeSetParams(node, &p.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v1 set{p.memset.dst,         p.memset.pitch, p.memset.value,
                                           p.memset.elementSize, p.memset.width, p.memset.height};
      return cuGraphMemsetNodeSetParams(node, &set);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS_v1 host{p.host.fn, p.host.userData};
      return cuGraphHostNodeSetParams(node, &host);
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return set_event(node, p.eventWait.event, false);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return set_event(node, p.eventRecord.event, true);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return set_mem_ops(node, reinterpret_cast<const CUDA_BATCH_MEM_OP_NODE_PARAMS*>(&p.memOp));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;  // the others cannot be changed
  }
}

// Gives what the calls for one type say, and the context of a copy or fill.
CUresult get_params(CUgraphNode node, CUcontext context, CUgraphNodeParams& p) {
  switch (int(p.type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return cuGraphKernelNodeGetParams_v2(node, reinterpret_cast<CUDA_KERNEL_NODE_PARAMS_v2*>(&p.kernel));
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      p.memcpy.copyCtx = context;
      return cuGraphMemcpyNodeGetParams(node, &p.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:  // which begins as the older one
      p.memset.ctx = context;
      return cuGraphMemsetNodeGetParams(node, reinterpret_cast<CUDA_MEMSET_NODE_PARAMS_v1*>(&p.memset));
    case CU_GRAPH_NODE_TYPE_HOST:
      return cuGraphHostNodeGetParams(node, reinterpret_cast<CUDA_HOST_NODE_PARAMS_v1*>(&p.host));
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphChildGraphNodeGetGraph(node, &p.graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphEventWaitNodeGetEvent(node, &p.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphEventRecordNodeGetEvent(node, &p.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return cuGraphMemAllocNodeGetParams(node, reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS*>(&p.alloc));
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphMemFreeNodeGetParams(node, &p.free.dptr);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return cuGraphBatchMemOpNodeGetParams(node, reinterpret_cast<CUDA_BATCH_MEM_OP_NODE_PARAMS*>(&p.memOp));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

void tessera::softgpu::driver::take_attributes(KernelCommand& to, const KernelCommand& from) {
  to.attributes = from.attributes;
  to.has_priority = from.has_priority;
  to.priority = from.priority;
  to.cooperative = from.cooperative;
  to.cluster = from.cluster;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  TS_ENTER(cuGraphMemcpyNodeGetParams);
  const CopyCommand* copy = payload<CopyCommand>(hNode);
  if (!copy || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
  *nodeParams = copy->given ? *copy->given : describe(*copy);
  return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
  TS_ENTER(cuGraphMemAllocNodeGetParams);
  const AllocCommand* alloc = payload<AllocCommand>(hNode);
  Allocation memory;
  if (!alloc || !params_out || !Memory::get().find(alloc->address, &memory)) return CUDA_ERROR_INVALID_VALUE;
  *params_out = {};
  params_out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params_out->poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, memory.device};
  params_out->bytesize = alloc->bytes;
  params_out->dptr = alloc->address;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
  TS_ENTER(cuGraphMemFreeNodeGetParams);
  const FreeCommand* free = payload<FreeCommand>(hNode);
  if (!free || !dptr_out) return CUDA_ERROR_INVALID_VALUE;
  *dptr_out = free->address;
  return CUDA_SUCCESS;
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS* out) {
  TS_ENTER(cuGraphBatchMemOpNodeGetParams);
  MemOpCommand* batch = payload<MemOpCommand>(hNode);
  if (!batch || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  out->count = unsigned(batch->ops.size());
  out->paramArray = batch->ops.data();  // lies in the node, valid until it is changed
  return CUDA_SUCCESS;
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  TS_ENTER(cuGraphBatchMemOpNodeSetParams);
  return set_mem_ops(hNode, nodeParams);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  TS_ENTER(cuGraphExecBatchMemOpNodeSetParams);
  return set_mem_ops(exec_node(exec, hNode), nodeParams);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  TS_ENTER(cuGraphEventRecordNodeSetEvent);
  return set_event(hNode, event, true);
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  TS_ENTER(cuGraphEventWaitNodeSetEvent);
  return set_event(hNode, event, false);
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode hNode, CUevent event) {
  TS_ENTER(cuGraphExecEventRecordNodeSetEvent);
  return set_event(exec_node(exec, hNode), event, true);
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode hNode, CUevent event) {
  TS_ENTER(cuGraphExecEventWaitNodeSetEvent);
  return set_event(exec_node(exec, hNode), event, false);
}

// The child takes the parameters of a graph of the same shape.
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) {
  TS_ENTER(cuGraphExecChildGraphNodeSetParams);
  const std::shared_ptr<Graph> graph = driver().graphs.find(childGraph);
  const CUgraphNode mine = exec_node(hGraphExec, hNode);
  const ChildCommand* child = payload<ChildCommand>(mine);
  if (!graph || !child) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info{};
  return update(*child->graph, *graph, &info) == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                                              : CUDA_ERROR_INVALID_VALUE;
}

// Since CUDA 13.2: older headers do not declare it.
extern "C" __attribute__((visibility("default"))) CUresult cuGraphNodeGetParams(
    CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  TS_ENTER(cuGraphNodeGetParams);
  const Node* node = find_node(hNode);
  if (!node || !nodeParams) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams p{};
  p.type = type_of(node->command);
  const CUresult result = get_params(hNode, node->context, p);
  if (result == CUDA_SUCCESS) *nodeParams = p;
  return result;
}
CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  TS_ENTER(cuGraphNodeSetParams);
  return nodeParams ? set_params(hNode, *nodeParams) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  TS_ENTER(cuGraphExecNodeSetParams);
  if (!nodeParams) return CUDA_ERROR_INVALID_VALUE;
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH)
    return cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, nodeParams->graph.graph);
  return set_params(exec_node(hGraphExec, hNode), *nodeParams);
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       const CUkernelNodeAttrValue* value) {
  TS_ENTER(cuGraphKernelNodeSetAttribute);
  KernelCommand* kernel = payload<KernelCommand>(hNode);
  if (!kernel || !value || !is_kernel_attribute(attr)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(find_node(hNode)->graph->mutex);
  switch (int(attr)) {
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      kernel->has_priority = true, kernel->priority = value->priority;
      break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      kernel->cooperative = value->cooperative != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
      LaunchShape shape{kernel->grid, kernel->block};
      shape.cluster = {value->clusterDim.x, value->clusterDim.y, value->clusterDim.z};
      if (CUresult bad = choose_cluster(*kernel->function, shape, &shape.cluster)) return bad;
      kernel->cluster = shape.cluster;
      break;
    }
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      if (value->deviceUpdatableKernelNode.deviceUpdatable) return CUDA_ERROR_NOT_SUPPORTED;
      break;
    default:
      break;  // hints
  }
  kernel->attributes[attr] = *value;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue* value_out) {
  TS_ENTER(cuGraphKernelNodeGetAttribute);
  const KernelCommand* kernel = payload<KernelCommand>(hNode);
  if (!kernel || !value_out || !is_kernel_attribute(attr)) return CUDA_ERROR_INVALID_VALUE;
  const auto it = kernel->attributes.find(attr);
  *value_out = it == kernel->attributes.end() ? default_of(attr) : it->second;
  if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) value_out->priority = kernel->priority;
  if (attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value_out->cooperative = kernel->cooperative;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  TS_ENTER(cuGraphKernelNodeCopyAttributes);
  KernelCommand* to = payload<KernelCommand>(dst);
  const KernelCommand* from = payload<KernelCommand>(src);
  if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(find_node(dst)->graph->mutex);
  take_attributes(*to, *from);
  return CUDA_SUCCESS;
}
