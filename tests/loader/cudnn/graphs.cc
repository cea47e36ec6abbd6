// Linked with a cuDNN, whichever is found at run time: makes a plan of a convolution, a bias and an activation by a heuristic, one by an
// engine, one of which nothing can be known, and runs each; prints each status. NVIDIA's library makes no plan without a GPU.
#include <cudnn.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace {

using Descriptor = cudnnBackendDescriptor_t;

int said(int status) {
  printf("%d\n", status);
  return status;
}
Descriptor make(cudnnBackendDescriptorType_t type) {
  Descriptor out = nullptr;
  said(cudnnBackendCreateDescriptor(type, &out));
  return out;
}
void set(Descriptor descriptor, cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
         int64_t n, const void* elements) {
  said(cudnnBackendSetAttribute(descriptor, attribute, type, n, elements));
}
void give(Descriptor descriptor, cudnnBackendAttributeName_t attribute,
          std::initializer_list<Descriptor> given) {
  set(descriptor, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(given.size()), given.begin());
}
Descriptor finished(Descriptor descriptor) {
  said(cudnnBackendFinalize(descriptor));
  return descriptor;
}

Descriptor tensor(int64_t id, std::initializer_list<int64_t> dims, bool is_virtual = false) {
  const Descriptor out = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = CUDNN_DATA_HALF;
  const int64_t alignment = 16;
  int64_t strides[8], stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims.begin()[i]) strides[i] = stride;
  set(out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, int64_t(dims.size()), dims.begin());
  set(out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, int64_t(dims.size()), strides);
  set(out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(out, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  return finished(out);
}

Descriptor convolution() {
  const Descriptor out = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const int64_t space = 2, ones[] = {1, 1};
  set(out, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &space);
  set(out, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(out, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  for (const auto attribute : {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                               CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES})
    set(out, attribute, CUDNN_TYPE_INT64, 2, ones);
  return finished(out);
}

Descriptor pointwise(cudnnPointwiseMode_t mode) {
  const Descriptor out = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  set(out, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(out, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
  return finished(out);
}
Descriptor pointwise_step(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Descriptor y) {
  const Descriptor out = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR), own = pointwise(mode);
  give(out, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {own});
  give(out, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {x});
  if (b) give(out, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, {b});
  give(out, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, {y});
  cudnnBackendDestroyDescriptor(own);
  return finished(out);
}

Descriptor graph() {
  const Descriptor x = tensor(1, {2, 64, 8, 8}), w = tensor(2, {32, 64, 3, 3}),
                   bias = tensor(3, {1, 32, 1, 1}), y = tensor(4, {2, 32, 8, 8}),
                   summed = tensor(5, {2, 32, 8, 8}, true), biased = tensor(6, {2, 32, 8, 8}, true),
                   how = convolution();
  const Descriptor first = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  const float one = 1, zero = 0;
  give(first, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, {x});
  give(first, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, {w});
  give(first, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, {summed});
  give(first, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, {how});
  set(first, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
  set(first, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
  finished(first);
  const Descriptor second = pointwise_step(CUDNN_POINTWISE_ADD, summed, bias, biased),
                   third = pointwise_step(CUDNN_POINTWISE_RELU_FWD, biased, nullptr, y);
  const Descriptor out = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  give(out, CUDNN_ATTR_OPERATIONGRAPH_OPS, {first, second, third});
  finished(out);
  // The graph keeps what it was given.
  for (const Descriptor gone : {x, w, bias, y, summed, biased, how, first, second, third})
    said(cudnnBackendDestroyDescriptor(gone));
  return out;
}

Descriptor plan_of(Descriptor configuration) {
  const Descriptor out = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  give(out, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {configuration});
  return finished(out);
}

char g_here;
void run(Descriptor plan) {
  cudnnBackendExecute(reinterpret_cast<cudnnHandle_t>(&g_here), plan, plan);
  puts("ran");
}

}  // namespace

int main(int argc, char**) {
  const bool has_plans = argc > 1;  // of the fake library only
  const Descriptor all = graph(), heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  give(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, {all});
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  finished(heuristic);
  const Descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  give(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, {all});
  finished(engine);
  if (!has_plans) return 0;
  Descriptor found[2] = {make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR), make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)};
  int64_t n = 0;
  said(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 2,
                                &n, found));
  const Descriptor by_heuristic = plan_of(found[1]);
  const Descriptor own = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  give(own, CUDNN_ATTR_ENGINECFG_ENGINE, {engine});
  const Descriptor by_engine = plan_of(finished(own));
  const Descriptor unknown = finished(make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
  for (const Descriptor gone : {all, heuristic, engine, found[0], found[1], own})
    said(cudnnBackendDestroyDescriptor(gone));
  for (int i = 0; i < 3; i++) run(by_heuristic);
  run(by_engine);
  run(unknown);
  said(cudnnBackendDestroyDescriptor(by_engine));
  return 0;
}
