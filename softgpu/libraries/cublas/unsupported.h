// The answer to what this library does not compute. Any thread.
#pragma once

#include <atomic>

namespace tessera::softgpu::cublas {

// CUBLAS_STATUS_NOT_SUPPORTED as an integer; the name and `detail` go to standard error the first time `said` is false.
int not_supported(const char* name, const char* detail, std::atomic<bool>* said);

}  // namespace tessera::softgpu::cublas
