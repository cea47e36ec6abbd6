// Green contexts for the questions about sharing multiprocessors: the device in two parts, a stream in each.
// Host code of the .cu files in this folder; everything lives until the program ends.
#pragma once

#include <set>

#include "probe.h"

namespace probe {

struct GreenPart {
  unsigned multiprocessors = 0;
  CUgreenCtx context = nullptr;
  CUstream stream = nullptr;
};

// Entry points of green contexts; `missing` names the first that the driver lacks.
struct GreenDriver {
  const char* missing = nullptr;
#define TS_GREEN(field, symbol) decltype(&symbol) field = load<decltype(&symbol)>(#symbol)
  TS_GREEN(get_resource, cuDeviceGetDevResource);
  TS_GREEN(split, cuDevSmResourceSplitByCount);
  TS_GREEN(describe, cuDevResourceGenerateDesc);
  TS_GREEN(create, cuGreenCtxCreate);
  TS_GREEN(destroy, cuGreenCtxDestroy);
  TS_GREEN(create_stream, cuGreenCtxStreamCreate);
#undef TS_GREEN

 private:
  template <class F>
  F load(const char* name) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion(name, &address, 12050, cudaEnableDefault, &found) == cudaSuccess &&
        address)
      return reinterpret_cast<F>(address);
    cudaGetLastError();
    missing = missing ? missing : name;
    return nullptr;
  }
};

struct TwoParts {
  GreenPart first, rest;
  std::string failed_at;  // empty: both are there
  int result = 0;         // of what failed
};

// A green context and a stream of `resource`.
inline CUresult make_part(const GreenDriver& driver, CUdevResource resource, GreenPart* part,
                          const char** step) {
  CUdevResourceDesc description = nullptr;
  part->multiprocessors = resource.sm.smCount;
  *step = "cuDevResourceGenerateDesc";
  CUresult result = driver.describe(&description, &resource, 1);
  if (result != CUDA_SUCCESS) return result;
  *step = "cuGreenCtxCreate";
  result = driver.create(&part->context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return result;
  *step = "cuGreenCtxStreamCreate";
  return driver.create_stream(&part->stream, part->context, CU_STREAM_NON_BLOCKING, 0);
}

// Each block says on which multiprocessor it ran.
__global__ void where(unsigned* seen, int rounds) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  float x = float(id);
  for (int i = 0; i < rounds; ++i) x = x * 0.999f + 0.5f;
  if (threadIdx.x == 0) seen[blockIdx.x] = x == 1234.5f ? ~0u : id;
}

// The multiprocessors on which the blocks of a finished launch ran.
inline std::set<unsigned> multiprocessors_of(const unsigned* seen, int blocks) {
  std::vector<unsigned> ids(static_cast<size_t>(blocks));
  CUDA_CHECK(cudaMemcpy(ids.data(), seen, ids.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
  return {ids.begin(), ids.end()};
}

// The device's multiprocessors in two: `wanted` of them (rounded up as the driver does), and the others.
inline TwoParts split_device(const GreenDriver& driver, unsigned wanted) {
  TwoParts parts;
  const char* step = driver.missing;
  CUresult result = step ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  CUdevResource whole{}, first{}, rest{};
  unsigned groups = 1;
  const auto then = [&](const char* name, auto&& call) {
    if (result != CUDA_SUCCESS) return;
    step = name;
    result = call();
  };
  then("cuDeviceGetDevResource", [&] { return driver.get_resource(0, &whole, CU_DEV_RESOURCE_TYPE_SM); });
  then("cuDevSmResourceSplitByCount",
       [&] { return driver.split(&first, &groups, &whole, &rest, 0, wanted); });
  if (result == CUDA_SUCCESS) result = make_part(driver, first, &parts.first, &step);
  if (result == CUDA_SUCCESS) result = make_part(driver, rest, &parts.rest, &step);
  if (result != CUDA_SUCCESS) parts.failed_at = step;
  parts.result = int(result);
  return parts;
}

}  // namespace probe
