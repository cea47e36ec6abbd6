#pragma once

#include <cuda_runtime.h>

__device__ int helper(int x);
cudaError_t read_counter(int* value);
cudaError_t launch_other(int* out);
