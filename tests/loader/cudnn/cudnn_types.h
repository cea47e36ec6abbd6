// Types of cuDNN for programs that are built without its headers.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;
#define TS_DESCRIPTOR(name)   \
  struct cudnn##name##Struct; \
  using cudnn##name##Descriptor_t = cudnn##name##Struct*;
TS_DESCRIPTOR(Activation)
TS_DESCRIPTOR(Convolution)
TS_DESCRIPTOR(Dropout)
TS_DESCRIPTOR(Filter)
TS_DESCRIPTOR(LRN)
TS_DESCRIPTOR(OpTensor)
TS_DESCRIPTOR(Pooling)
TS_DESCRIPTOR(RNN)
TS_DESCRIPTOR(RNNData)
TS_DESCRIPTOR(ReduceTensor)
TS_DESCRIPTOR(Tensor)
TS_DESCRIPTOR(TensorTransform)
#undef TS_DESCRIPTOR
using cudnnBackendDescriptor_t = void*;
struct cudnnContext;
using cudnnHandle_t = cudnnContext*;
#define TS_NUMBER(name) enum cudnn##name##_t : int{};
TS_NUMBER(BatchNormMode)
TS_NUMBER(BatchNormOps)
TS_NUMBER(ConvolutionBwdDataAlgo)
TS_NUMBER(ConvolutionBwdFilterAlgo)
TS_NUMBER(ConvolutionFwdAlgo)
TS_NUMBER(ForwardMode)
TS_NUMBER(LRNMode)
TS_NUMBER(NormAlgo)
TS_NUMBER(NormMode)
TS_NUMBER(NormOps)
TS_NUMBER(SoftmaxAlgorithm)
TS_NUMBER(SoftmaxMode)
TS_NUMBER(WgradMode)
#undef TS_NUMBER
