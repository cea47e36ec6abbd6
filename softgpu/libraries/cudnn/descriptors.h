// Descriptors of the stand-in cuDNN: what they hold, and what the entry points make of them. As in cuDNN, threads take turns with
// one. A descriptor that was never set has no dimensions.
#pragma once

#include <cudnn.h>

#include "softgpu/libraries/cudnn/kernels.h"

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int n = 0;
  int dims[CUDNN_DIM_MAX] = {};
  int strides[CUDNN_DIM_MAX] = {};  // elements
};

struct cudnnFilterStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  int n = 0;
  int dims[CUDNN_DIM_MAX] = {};  // outputs, inputs of a group, space
};

struct cudnnConvolutionStruct {
  static constexpr int kMost = CUDNN_DIM_MAX - 2;
  int n = 0;  // dimensions of space
  int pad[kMost] = {}, stride[kMost] = {}, dilation[kMost] = {};
  cudnnConvolutionMode_t mode = CUDNN_CONVOLUTION;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  cudnnReorderType_t reorder = CUDNN_DEFAULT_REORDER;
  int groups = 1;
};

struct cudnnPoolingStruct {
  static constexpr int kMost = CUDNN_DIM_MAX - 2;
  cudnnPoolingMode_t mode = CUDNN_POOLING_MAX;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
  int n = 0;
  int window[kMost] = {}, pad[kMost] = {}, stride[kMost] = {};
};

struct cudnnActivationStruct {
  cudnnActivationMode_t mode = CUDNN_ACTIVATION_SIGMOID;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
  double coefficient = 0, swish_beta = 1;
};

struct cudnnOpTensorStruct {
  cudnnOpTensorOp_t operation = CUDNN_OP_TENSOR_ADD;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
};

struct cudnnReduceTensorStruct {
  cudnnReduceTensorOp_t operation = CUDNN_REDUCE_TENSOR_ADD;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
  cudnnReduceTensorIndices_t indices = CUDNN_REDUCE_TENSOR_NO_INDICES;
  cudnnIndicesType_t indices_type = CUDNN_32BIT_INDICES;
};

namespace tessera::softgpu::cudnn {

// Strides of a packed tensor: channels innermost or, NCHW, the last dimension.
void pack(cudnnTensorFormat_t format, int n, const int* dims, int64_t* strides);

}  // namespace tessera::softgpu::cudnn
