// Graphs beyond the basics: conditional nodes, memory nodes, attributes, updates, user objects; and batches.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "support.h"

extern "C" CUresult cuGraphNodeGetParams(CUgraphNode, CUgraphNodeParams*);  // since CUDA 13.2

namespace softgpu_driver_test {
namespace {

// step(handle, counter): --*counter; the condition becomes *counter.
constexpr char kStep[] = R"(.version 8.0
.target sm_75
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 a, .param .b32 b);
.visible .entry step(.param .u64 handle, .param .u64 counter)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [handle];
  ld.param.u64 %rd2, [counter];
  ld.global.u32 %r1, [%rd2];
  sub.u32 %r2, %r1, 1;
  st.global.u32 [%rd2], %r2;
  { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd1; st.param.b32 [b], %r2;
    call cudaGraphSetConditional, (a, b); }
  ret;
}
)";

class Graphs : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    ASSERT_CU(cuGraphCreate(&graph, 0));
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    p = alloc(4096);
    ASSERT_CU(cuMemsetD32(p, 0, 1024));
  }
  void run(CUgraphExec exec) {
    ASSERT_CU(cuGraphLaunch(exec, stream));
    ASSERT_CU(cuStreamSynchronize(stream));
  }
  CUgraphExec make() {
    CUgraphExec exec = nullptr;
    EXPECT_CU(cuGraphInstantiate(&exec, graph, 0));
    return exec;
  }
  CUgraphNode set_word(CUgraph in, CUdeviceptr at, unsigned value, std::vector<CUgraphNode> after = {}) {
    CUgraphNode node = nullptr;
    const CUDA_MEMSET_NODE_PARAMS fill = {at, 0, value, 4, 1, 1};
    EXPECT_CU(cuGraphAddMemsetNode(&node, in, after.data(), after.size(), &fill, context));
    return node;
  }
  CUgraphNode conditional(CUgraphConditionalHandle handle, CUgraphConditionalNodeType type, unsigned size,
                          std::vector<CUgraph>* bodies, std::vector<CUgraphNode> after = {}) {
    CUgraphNodeParams params = {};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    params.conditional.ctx = context;
    CUgraphNode node = nullptr;
    EXPECT_CU(cuGraphAddNode(&node, graph, after.data(), nullptr, after.size(), &params));
    if (node) bodies->assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    return node;
  }
  CUgraphConditionalHandle condition(unsigned value) {
    CUgraphConditionalHandle handle = 0;
    EXPECT_CU(cuGraphConditionalHandleCreate(&handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
    return handle;
  }

  CUgraph graph = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr p = 0;
};

TEST_F(Graphs, WhileRunsUntilTheKernelSaysSo) {
  const auto handle = condition(1);
  std::vector<CUgraph> bodies;
  const CUgraphNode first = set_word(graph, p, 5);
  const CUgraphNode loop = conditional(handle, CU_GRAPH_COND_TYPE_WHILE, 1, &bodies, {first});
  set_word(graph, p + 8, 77, {loop});
  CUmodule stepper;
  CUfunction step;
  ASSERT_CU(cuModuleLoadData(&stepper, kStep));
  ASSERT_CU(cuModuleGetFunction(&step, stepper, "step"));
  void* arguments[] = {const_cast<CUgraphConditionalHandle*>(&handle), &p};
  CUDA_KERNEL_NODE_PARAMS kernel = {};
  kernel.func = step;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY =
      kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  CUgraphNode inside, count;
  ASSERT_CU(cuGraphAddKernelNode(&inside, bodies[0], nullptr, 0, &kernel));
  CUdeviceptr rounds = p + 4;
  unsigned one = 1, n = 1;
  void* add_arguments[] = {&rounds, &one, &n};
  kernel.func = function("add");
  kernel.kernelParams = add_arguments;
  ASSERT_CU(cuGraphAddKernelNode(&count, bodies[0], nullptr, 0, &kernel));
  CUgraphExec exec = make();
  run(exec);
  EXPECT_EQ(read(p, 3), (std::vector<uint32_t>{0, 5, 77}));
  run(exec);  // the default value holds again
  EXPECT_EQ(read(p, 3), (std::vector<uint32_t>{0, 10, 77}));
}

TEST_F(Graphs, IfElseAndSwitch) {
  std::vector<CUgraph> branches, cases;
  conditional(condition(0), CU_GRAPH_COND_TYPE_IF, 2, &branches);
  conditional(condition(2), CU_GRAPH_COND_TYPE_SWITCH, 3, &cases);
  std::vector<CUgraph> none;
  conditional(condition(9), CU_GRAPH_COND_TYPE_SWITCH, 1, &none);
  ASSERT_EQ(branches.size(), 2u);
  set_word(branches[0], p, 1);
  set_word(branches[1], p, 2);
  for (unsigned i = 0; i < 3; ++i) set_word(cases[i], p + 4, 10 + i);
  set_word(none[0], p + 8, 1);
  run(make());
  EXPECT_EQ(read(p, 3), (std::vector<uint32_t>{2, 12, 0}));
}

TEST_F(Graphs, ConditionalsThatAreRefused) {
  std::vector<CUgraph> bodies;
  CUgraphNodeParams params = {};
  CUgraphNode node;
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = 4096;  // no handle of this graph
  params.conditional.size = 1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  params.conditional.handle = condition(1);
  params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
  params.conditional.size = 2;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  conditional(condition(1), CU_GRAPH_COND_TYPE_IF, 1, &bodies);
  CUDA_HOST_NODE_PARAMS host = {[](void*) {}, nullptr};
  CUgraphNode inside;
  EXPECT_CU(cuGraphAddHostNode(&inside, bodies[0], nullptr, 0, &host));
  CUgraphExec exec;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&exec, graph, 0));  // no host nodes in bodies
}

TEST_F(Graphs, MemoryNodes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  params.bytesize = 4096;
  CUgraphNode take, use, give;
  cuuint64_t used = 0;
  ASSERT_CU(cuGraphAddMemAllocNode(&take, graph, nullptr, 0, &params));
  EXPECT_CU(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 4096u);
  const CUgraphNode set = set_word(graph, params.dptr, 6, {take});
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = params.dptr, copy.dstDevice = p;
  copy.WidthInBytes = 4, copy.Height = copy.Depth = 1;
  ASSERT_CU(cuGraphAddMemcpyNode(&use, graph, &set, 1, &copy, context));
  ASSERT_CU(cuGraphAddMemFreeNode(&give, graph, &use, 1, params.dptr));
  CUDA_MEM_ALLOC_NODE_PARAMS back;
  CUdeviceptr freed = 0;
  CUDA_MEMCPY3D copied;
  EXPECT_CU(cuGraphMemAllocNodeGetParams(take, &back));
  EXPECT_EQ(back.bytesize, 4096u);
  EXPECT_EQ(back.dptr, params.dptr);
  EXPECT_CU(cuGraphMemFreeNodeGetParams(give, &freed));
  EXPECT_EQ(freed, params.dptr);
  EXPECT_CU(cuGraphMemcpyNodeGetParams(use, &copied));
  EXPECT_EQ(copied.srcDevice, copy.srcDevice);
  EXPECT_EQ(copied.dstDevice, copy.dstDevice);
  EXPECT_EQ(copied.WidthInBytes, copy.WidthInBytes);
  CUgraphExec exec = make();
  run(exec);
  run(exec);
  EXPECT_EQ(read(p, 1)[0], 6u);
  EXPECT_CU(cuGraphExecDestroy(exec));
  EXPECT_CU(cuGraphDestroy(graph));
  EXPECT_CU(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 0u);
  EXPECT_CU(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  EXPECT_GE(used, 4096u);
  used = 0;
  EXPECT_CU(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
}

TEST_F(Graphs, CapturedAllocationIsANode) {
  CUdeviceptr q = 0;
  CUgraph captured;
  ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CU(cuMemAllocAsync(&q, 1024, stream));
  EXPECT_CU(cuMemsetD32Async(q, 9, 256, stream));
  EXPECT_CU(cuMemcpyDtoDAsync(p, q, 1024, stream));
  EXPECT_CU(cuMemFreeAsync(q, stream));
  ASSERT_CU(cuStreamEndCapture(stream, &captured));
  CUgraphNode nodes[4];
  size_t n = 4;
  EXPECT_CU(cuGraphGetNodes(captured, nodes, &n));
  ASSERT_EQ(n, 4u);
  CUgraphNodeType type;
  EXPECT_CU(cuGraphNodeGetType(nodes[0], &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  CUDA_MEMCPY3D copy;  // a captured copy can be described too
  EXPECT_CU(cuGraphMemcpyNodeGetParams(nodes[2], &copy));
  EXPECT_EQ(copy.dstDevice, p);
  EXPECT_EQ(copy.WidthInBytes, 1024u);
  graph = captured;
  run(make());
  EXPECT_EQ(read(p, 256)[255], 9u);
}

TEST_F(Graphs, KernelAttributesAndGenericParameters) {
  CUgraphNode a, b;
  unsigned value = 3, n = 4;
  void* arguments[] = {&p, &value, &n};
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel.func = function("fill");
  params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
  params.kernel.blockDimX = 32, params.kernel.blockDimY = params.kernel.blockDimZ = 1;
  params.kernel.kernelParams = arguments;
  ASSERT_CU(cuGraphAddNode(&a, graph, nullptr, nullptr, 0, &params));
  ASSERT_CU(cuGraphAddNode(&b, graph, &a, nullptr, 1, &params));
  CUkernelNodeAttrValue attribute = {};
  attribute.priority = -3;
  EXPECT_CU(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
  EXPECT_CU(cuGraphKernelNodeCopyAttributes(b, a));
  value = 5;  // new parameters keep the attributes
  EXPECT_CU(cuGraphNodeSetParams(b, &params));
  attribute = {};
  EXPECT_CU(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute));
  EXPECT_EQ(attribute.priority, -3);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, &attribute));
  CUgraphExec exec = make();
  run(exec);
  EXPECT_EQ(read(p, 1)[0], 5u);
  value = 8;
  EXPECT_CU(cuGraphExecNodeSetParams(exec, b, &params));
  run(exec);
  EXPECT_EQ(read(p, 1)[0], 8u);
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetParams(a, &params));  // another kind
}

// As an H200 answers: of a node made by hand, and of a captured one.
TEST_F(Graphs, AttributesThatNobodySet) {
  CUgraphNode by_hand, captured_node;
  unsigned value = 3, n = 4;
  void* arguments[] = {&p, &value, &n};
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.func = function("fill"), params.kernelParams = arguments;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = 32;
  ASSERT_CU(cuGraphAddKernelNode(&by_hand, graph, nullptr, 0, &params));
  CUgraph captured;
  ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_CU(cuLaunchKernel(function("fill"), 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
  ASSERT_CU(cuStreamEndCapture(stream, &captured));
  size_t one = 1;
  ASSERT_CU(cuGraphGetNodes(captured, &captured_node, &one));
  const auto named = [](CUgraphNode node) {  // those that are not zero with their first two bytes
    std::string all;
    for (int id = 0; id < 20; ++id) {
      CUlaunchAttributeValue got = {};
      if (cuGraphKernelNodeGetAttribute(node, CUlaunchAttributeID(id), &got) != CUDA_SUCCESS) continue;
      all += std::to_string(id) + " ";
      if (got.pad[0] || got.pad[1])
        all += "(" + std::to_string(got.pad[0]) + " " + std::to_string(got.pad[1]) + ") ";
    }
    return all;
  };
  EXPECT_EQ(named(by_hand), "1 2 4 5 8 9 (0 1) 10 13 14 ");
  EXPECT_EQ(named(captured_node), "1 2 4 5 (1 0) 8 9 (0 1) 10 13 14 ");
}

// Also clusters, and new parameters keep them.
TEST_F(Graphs, ACapturedLaunchKeepsItsAttributes) {
  unsigned value = 3, n = 4;
  void* arguments[] = {&p, &value, &n};
  CUlaunchAttribute given[2] = {};
  given[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, given[0].value.clusterDim = {2, 1, 1};
  given[1].id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
  given[1].value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  CUlaunchConfig config = {};
  config.gridDimX = 2, config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32, config.hStream = stream, config.attrs = given, config.numAttrs = 2;
  const CUfunction fill = function("fill");
  CUgraph captured;
  ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_CU(cuLaunchKernelEx(&config, fill, arguments, nullptr));
  ASSERT_CU(cuStreamEndCapture(stream, &captured));
  size_t one = 1;
  CUgraphNode node;
  ASSERT_CU(cuGraphGetNodes(captured, &node, &one));
  CUDA_KERNEL_NODE_PARAMS params;
  ASSERT_CU(cuGraphKernelNodeGetParams(node, &params));
  ASSERT_CU(cuGraphKernelNodeSetParams(node, &params));
  CUlaunchAttributeValue got;
  ASSERT_CU(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &got));
  EXPECT_EQ(got.clusterDim.x, 2u);
  ASSERT_CU(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &got));
  EXPECT_EQ(got.memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
  got = {};
  got.clusterDim = {4, 1, 1};  // the grid is no multiple
  EXPECT_EQ(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &got));
}

TEST_F(Graphs, EventAndMemOpNodes) {
  CUevent one, two;
  CUgraphNode record, wait, batch;
  ASSERT_CU(cuEventCreate(&one, 0));
  ASSERT_CU(cuEventCreate(&two, 0));
  ASSERT_CU(cuGraphAddEventRecordNode(&record, graph, nullptr, 0, one));
  ASSERT_CU(cuGraphAddEventWaitNode(&wait, graph, &record, 1, one));
  EXPECT_CU(cuGraphEventRecordNodeSetEvent(record, two));
  CUevent now;
  EXPECT_CU(cuGraphEventRecordNodeGetEvent(record, &now));
  EXPECT_EQ(now, two);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphEventWaitNodeSetEvent(record, two));
  CUstreamBatchMemOpParams op = {};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = p, op.writeValue.value = 4;
  CUDA_BATCH_MEM_OP_NODE_PARAMS ops = {context, 1, &op, 0};
  ASSERT_CU(cuGraphAddBatchMemOpNode(&batch, graph, &wait, 1, &ops));
  CUDA_BATCH_MEM_OP_NODE_PARAMS back;
  EXPECT_CU(cuGraphBatchMemOpNodeGetParams(batch, &back));
  ASSERT_EQ(back.count, 1u);
  EXPECT_EQ(back.paramArray[0].writeValue.value, 4u);
  CUgraphExec exec = make();
  EXPECT_CU(cuGraphExecEventWaitNodeSetEvent(exec, wait, two));
  op.writeValue.value = 6;
  EXPECT_CU(cuGraphExecBatchMemOpNodeSetParams(exec, batch, &ops));
  run(exec);
  EXPECT_CU(cuEventQuery(two));
  EXPECT_EQ(read(p, 1)[0], 6u);
}

TEST_F(Graphs, OneCallSaysAllOfANode) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = p, copy.dstDevice = p + 4;
  copy.WidthInBytes = 4, copy.Height = copy.Depth = 1;
  CUgraphNode nodes[3];
  ASSERT_CU(cuGraphAddMemcpyNode(&nodes[0], graph, nullptr, 0, &copy, context));
  nodes[1] = set_word(graph, p, 6, {nodes[0]});
  ASSERT_CU(cuGraphAddEmptyNode(&nodes[2], graph, nullptr, 0));
  CUgraph clone = nullptr;
  ASSERT_CU(cuGraphClone(&clone, graph));
  for (CUgraph each : {graph, clone}) {
    CUgraphNode same[3];
    size_t n = 3;
    ASSERT_CU(cuGraphGetNodes(each, same, &n));
    CUgraphNodeParams params = {};
    ASSERT_CU(cuGraphNodeGetParams(same[0], &params));
    EXPECT_EQ(params.type, CU_GRAPH_NODE_TYPE_MEMCPY);
    EXPECT_EQ(params.memcpy.copyCtx, context);
    EXPECT_EQ(params.memcpy.copyParams.dstDevice, copy.dstDevice);
    ASSERT_CU(cuGraphNodeGetParams(same[1], &params));
    EXPECT_EQ(params.type, CU_GRAPH_NODE_TYPE_MEMSET);
    EXPECT_EQ(params.memset.ctx, context);
    EXPECT_EQ(params.memset.value, 6u);
    ASSERT_CU(cuGraphNodeGetParams(same[2], &params));
    EXPECT_EQ(params.type, CU_GRAPH_NODE_TYPE_EMPTY);
  }
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetParams(nodes[0], nullptr));
  EXPECT_CU(cuGraphDestroy(clone));
}

TEST_F(Graphs, ChildGraphsTakeNewParameters) {
  CUgraph child, other;
  CUgraphNode node;
  ASSERT_CU(cuGraphCreate(&child, 0));
  ASSERT_CU(cuGraphCreate(&other, 0));
  set_word(child, p, 1);
  set_word(other, p, 2);
  ASSERT_CU(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  CUgraphExec exec = make();
  EXPECT_CU(cuGraphExecChildGraphNodeSetParams(exec, node, other));
  run(exec);
  EXPECT_EQ(read(p, 1)[0], 2u);
  set_word(other, p + 4, 2);  // another shape
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphExecChildGraphNodeSetParams(exec, node, other));
}

TEST_F(Graphs, UpdateSaysWhatIsInTheWay) {
  const CUgraphNode first = set_word(graph, p, 1);
  set_word(graph, p + 4, 1, {first});
  CUgraphExec exec = make();
  CUgraphExecUpdateResultInfo info;
  CUgraph fewer, unlinked, wider;
  ASSERT_CU(cuGraphCreate(&fewer, 0));
  set_word(fewer, p, 1);
  EXPECT_EQ(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, fewer, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  ASSERT_CU(cuGraphCreate(&unlinked, 0));
  set_word(unlinked, p, 1);
  const CUgraphNode second = set_word(unlinked, p + 4, 1);
  EXPECT_EQ(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, unlinked, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_EQ(info.errorNode, second);
  ASSERT_CU(cuGraphCreate(&wider, 0));
  const CUgraphNode one = set_word(wider, p, 1);
  const CUDA_MEMSET_NODE_PARAMS rows = {p, 64, 1, 4, 2, 3};
  CUgraphNode two;
  ASSERT_CU(cuGraphAddMemsetNode(&two, wider, &one, 1, &rows, context));
  EXPECT_EQ(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, wider, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
  EXPECT_EQ(info.errorNode, two);
}

// The older form of the call.
TEST_F(Graphs, AnUpdateFromWhatIsNoGraphSaysNothing) {
  CUresult (*update)(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*) = nullptr;
  CUdriverProcAddressQueryResult found;
  ASSERT_CU(cuGetProcAddress("cuGraphExecUpdate", reinterpret_cast<void**>(&update), 11000, 0, &found));
  set_word(graph, p, 1);
  CUgraphExec exec = make();
  const auto unchanged = reinterpret_cast<CUgraphNode>(&exec);
  CUgraphNode node = unchanged;
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, update(exec, nullptr, &node, &result));
  EXPECT_EQ(node, unchanged);
  EXPECT_EQ(result, CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
  EXPECT_CU(update(exec, graph, &node, &result));
  EXPECT_EQ(node, nullptr);
  EXPECT_EQ(result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
}

// Also after an update from another graph, and after the child was exchanged.
TEST_F(Graphs, NodesOfGraphsInsideCanBeNamed) {
  const auto nested = [&](CUgraph* outer, unsigned value) {
    CUgraph middle, inner;
    for (CUgraph* g : {outer, &middle, &inner}) EXPECT_CU(cuGraphCreate(g, 0));
    set_word(inner, p, value);
    CUgraphNode in_middle, in_outer;
    EXPECT_CU(cuGraphAddChildGraphNode(&in_middle, middle, nullptr, 0, inner));
    EXPECT_CU(cuGraphAddChildGraphNode(&in_outer, *outer, nullptr, 0, middle));
    CUgraph copy_of_middle, copy_of_inner;
    CUgraphNode copied, word;
    size_t one = 1;
    EXPECT_CU(cuGraphChildGraphNodeGetGraph(in_outer, &copy_of_middle));
    EXPECT_CU(cuGraphGetNodes(copy_of_middle, &copied, &one));
    EXPECT_CU(cuGraphChildGraphNodeGetGraph(copied, &copy_of_inner));
    EXPECT_CU(cuGraphGetNodes(copy_of_inner, &word, &one));
    return word;
  };
  CUgraph other, middle;
  const CUgraphNode word = nested(&graph, 1);
  nested(&other, 2);
  CUgraphExec exec = make();
  const auto set_through_name = [&](unsigned value) {
    const CUDA_MEMSET_NODE_PARAMS fill = {p, 0, value, 4, 1, 1};
    EXPECT_CU(cuGraphExecMemsetNodeSetParams(exec, word, &fill, context));
    run(exec);
    EXPECT_EQ(read(p, 1)[0], value);
  };
  set_through_name(3);
  CUgraphExecUpdateResultInfo info;
  ASSERT_CU(cuGraphExecUpdate(exec, other, &info));
  run(exec);
  EXPECT_EQ(read(p, 1)[0], 2u);
  set_through_name(4);
  CUgraphNode in_outer, in_other;
  size_t one = 1;
  ASSERT_CU(cuGraphGetNodes(graph, &in_outer, &one));
  ASSERT_CU(cuGraphGetNodes(other, &in_other, &one));
  ASSERT_CU(cuGraphChildGraphNodeGetGraph(in_other, &middle));
  ASSERT_CU(cuGraphExecChildGraphNodeSetParams(exec, in_outer, middle));
  run(exec);
  EXPECT_EQ(read(p, 1)[0], 2u);
  set_through_name(5);
  EXPECT_CU(cuGraphNodeSetEnabled(exec, word, 0));
  ASSERT_CU(cuMemsetD32(p, 9, 1));
  run(exec);
  EXPECT_EQ(read(p, 1)[0], 9u);
}

TEST_F(Graphs, UserObjectsLiveAsLongAsGraphs) {
  static int destroyed = 0;
  destroyed = 0;
  CUuserObject object;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(
                                          &object, nullptr, [](void*) {}, 1, 0));
  ASSERT_CU(cuUserObjectCreate(
      &object, &destroyed, [](void* n) { ++*static_cast<int*>(n); }, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  EXPECT_CU(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  EXPECT_CU(cuGraphRetainUserObject(graph, object, 2, 0));
  EXPECT_CU(cuGraphReleaseUserObject(graph, object, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(graph, object, 9));
  set_word(graph, p, 1);
  CUgraphExec exec = make();
  EXPECT_CU(cuGraphDestroy(graph));
  EXPECT_CU(cuUserObjectRelease(object, 1));
  EXPECT_EQ(destroyed, 0);  // the executable graph holds it
  run(exec);
  EXPECT_CU(cuGraphExecDestroy(exec));
  for (int i = 0; i < 1000 && !std::atomic_ref(destroyed).load(); ++i) std::this_thread::yield();
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 1));
  EXPECT_EQ(destroyed, 1);
}

TEST_F(Graphs, Picture) {
  set_word(graph, p, 1);
  char path[] = "/tmp/softgpu-dot-XXXXXX";
  close(mkstemp(path));
  EXPECT_CU(cuGraphDebugDotPrint(graph, path, 0));
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find("digraph"), text.npos);
  EXPECT_NE(text.find("memset"), text.npos);
  remove(path);
  EXPECT_EQ(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(graph, "/nonexistent/x", 0));
}

// A helper thread that asks about other work must not disturb a thread-local capture, however often it asks.
TEST_F(Graphs, WatchdogBesideAThreadLocalCapture) {
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0}, asked{0};
  std::thread watchdog([&] {
    cuCtxSetCurrent(context);
    CUevent e;
    cuEventCreate(&e, 0);
    cuEventRecord(e, CU_STREAM_PER_THREAD);
    while (!stop) {
      const CUresult got = cuEventQuery(e);
      if (got != CUDA_SUCCESS && got != CUDA_ERROR_NOT_READY) ++failures;
      ++asked;
    }
  });
  while (asked < 10) std::this_thread::yield();
  for (int i = 0; i < 50; ++i) {
    CUgraph captured;
    ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT_CU(cuMemsetD32Async(p, 1, 1, stream));
    ASSERT_CU(cuStreamEndCapture(stream, &captured));
    EXPECT_CU(cuGraphDestroy(captured));
  }
  stop = true;
  watchdog.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(Graphs, BatchesOfCopies) {
  std::vector<uint32_t> source = {1, 2, 3, 4};
  CUdeviceptr dsts[3] = {p, p + 64, p + 128};
  CUdeviceptr srcs[3] = {CUdeviceptr(source.data()), CUdeviceptr(source.data() + 1), p};
  size_t sizes[3] = {8, 12, 4}, first[2] = {0, 2}, fail = 0;
  CUmemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  EXPECT_CU(cuMemsetD32Async(p, 7, 1, stream));
  EXPECT_CU(cuMemcpyBatchAsync(dsts, srcs, sizes, 3, attributes, first, 2, stream));
  source.assign(4, 99);  // was read already
  EXPECT_CU(cuStreamSynchronize(stream));
  const std::vector<uint32_t> words = read(p, 35);
  EXPECT_EQ(words[0], 1u);
  EXPECT_EQ(words[16], 2u);
  EXPECT_EQ(words[18], 4u);
  EXPECT_TRUE(words[32] == 1 || words[32] == 7);  // no order within a batch
  first[1] = 3;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dsts, srcs, sizes, 3, attributes, first, 2, stream));
  first[1] = 2, attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dsts, srcs, sizes, 3, attributes, first, 2, stream));
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuMemcpyBatchAsync(dsts, srcs, sizes, 3, attributes, first, 2, nullptr));
  // The 12.8 entry point says which copy is wrong.
  decltype(&cuMemcpyBatchAsync) unused = nullptr;
  (void)unused;
  void* old = nullptr;
  CUdriverProcAddressQueryResult status;
  EXPECT_CU(cuGetProcAddress("cuMemcpyBatchAsync", &old, 12080, 0, &status));
  using Old = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t,
                           size_t*, CUstream);
  dsts[1] = p + 4096 - 4;  // runs over the end
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            reinterpret_cast<Old>(old)(dsts, srcs, sizes, 3, attributes, first, 2, &fail, stream));
  EXPECT_EQ(fail, 1u);
}

TEST_F(Graphs, BatchesOfBoxes) {
  const CUDA_ARRAY3D_DESCRIPTOR d = {4, 2, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
  CUarray array;
  ASSERT_CU(cuArray3DCreate(&array, &d));
  std::vector<uint32_t> source = {1, 2, 3, 4, 5, 6, 7, 8};
  CUDA_MEMCPY3D_BATCH_OP op = {};
  op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = CUdeviceptr(source.data()), op.src.op.ptr.rowLength = 4;
  op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  op.dst.op.array.array = array, op.dst.op.array.offset.x = 1;
  op.extent = {3, 2, 1};
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  EXPECT_CU(cuMemcpy3DBatchAsync(1, &op, 0, stream));
  EXPECT_CU(cuStreamSynchronize(stream));
  uint32_t row[3];
  EXPECT_CU(cuMemcpyAtoH(row, array, 20, 12));  // second row from x = 1
  EXPECT_EQ(row[0], 5u);
  EXPECT_EQ(row[2], 7u);
  op.extent.depth = 0;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, &op, 0, stream));
  op.extent = {4, 2, 1};  // beyond the array
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, &op, 0, stream));
}

TEST_F(Graphs, AdviceIsRemembered) {
  CUdeviceptr managed;
  ASSERT_CU(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  int value = 7, list[3];
  auto ask = [&](CUmem_range_attribute attribute) {
    EXPECT_CU(cuMemRangeGetAttribute(&value, sizeof value, attribute, managed, 4096));
    return value;
  };
  EXPECT_EQ(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_INVALID);
  EXPECT_CU(cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  EXPECT_CU(cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  EXPECT_CU(cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
  EXPECT_EQ(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
  EXPECT_EQ(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), CU_DEVICE_CPU);
  EXPECT_EQ(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_HOST);
  EXPECT_CU(cuMemRangeGetAttribute(list, sizeof list, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, 4096));
  EXPECT_EQ(list[0], 0);
  EXPECT_EQ(list[1], CU_DEVICE_INVALID);
  size_t bytes = 4096, zero = 0;
  CUmemLocation where = device;
  EXPECT_CU(cuMemPrefetchBatchAsync(&managed, &bytes, 1, &where, &zero, 1, 0, stream));
  EXPECT_EQ(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), 0);
  EXPECT_CU(cuMemDiscardBatchAsync(&managed, &bytes, 1, 0, stream));
  bytes = 8192;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(&managed, &bytes, 1, 0, stream));
  where.id = 5;
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, where));
}

}  // namespace
}  // namespace softgpu_driver_test
