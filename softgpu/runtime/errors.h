// Names and texts of cudaError_t. Called from everywhere, any thread; no state.
#pragma once

#include <cuda_runtime_api.h>

namespace tessera::softgpu::runtime {

const char* error_name(cudaError_t status);  // nullptr for a number that the toolkit does not define
const char* error_text(cudaError_t status);  // words made from the name; nullptr likewise

}  // namespace tessera::softgpu::runtime
