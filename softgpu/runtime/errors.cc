#include "softgpu/runtime/errors.h"

#include <algorithm>
#include <iterator>

#include "softgpu/runtime/runtime.h"

namespace tessera::softgpu::runtime {
namespace {

struct Row {
  int value;
  const char *name, *text;
};
constexpr Row kRows[] = {
#define TS_CUDA_ERROR(name, value, text) {value, #name, text},
#include "softgpu/runtime/errors.def"
};
static_assert(std::is_sorted(std::begin(kRows), std::end(kRows),
                             [](const Row& a, const Row& b) { return a.value < b.value; }));

const Row* find(cudaError_t status) {
  const Row* row = std::lower_bound(std::begin(kRows), std::end(kRows), int(status),
                                    [](const Row& r, int value) { return r.value < value; });
  return row != std::end(kRows) && row->value == int(status) ? row : nullptr;
}

}  // namespace

const char* error_name(cudaError_t status) {
  const Row* row = find(status);
  return row ? row->name : nullptr;
}
const char* error_text(cudaError_t status) {
  const Row* row = find(status);
  return row ? row->text : nullptr;
}

}  // namespace tessera::softgpu::runtime

using namespace tessera::softgpu::runtime;

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t status = last_error();
  clear_last_error();
  return status;
}

cudaError_t cudaPeekAtLastError() {
  return last_error();
}

const char* cudaGetErrorName(cudaError_t error) {
  const char* name = error_name(error);
  return name ? name : "unrecognized error code";
}

// The driver's own words where driver and runtime share the code; they may say more than the name.
const char* cudaGetErrorString(cudaError_t error) {
  const char* text = error_text(error);
  if (!text) return "unrecognized error code";
  const char* words = nullptr;
  if (error != cudaErrorInsufficientDriver && load_driver() &&
      driver().GetErrorString(static_cast<CUresult>(error), &words) == CUDA_SUCCESS && words) {
    return words;
  }
  return text;
}

}  // extern "C"
