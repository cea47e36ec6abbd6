// H7: streams of a green context with functions of the primary context: does a launch work, and does it stay
// on the multiprocessors that the green context has? Every block reports %smid.
#include <set>

#include "probe.h"

namespace {

__global__ void where(unsigned* seen, int rounds) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  float x = float(id);
  for (int i = 0; i < rounds; ++i) x = x * 0.999f + 0.5f;
  if (threadIdx.x == 0) seen[blockIdx.x] = x == 1234.5f ? ~0u : id;
}

template <class F>
F entry(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &address, 12050, cudaEnableDefault, &found) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<F>(address);
}

}  // namespace

int main(int argc, char** argv) {
  int64_t share_of_sms = 4, rounds = 20000;
  samples::parse_options(
      argc, argv, "H7: green contexts.",
      {{"--share-of-sms", samples::Option::kInt, &share_of_sms, "one n-th of the multiprocessors"},
       {"--rounds", samples::Option::kInt, &rounds, "work per block"}});
  int n_multiprocessors = 0;
  CUDA_CHECK(cudaFree(nullptr));  // the primary context
  CUDA_CHECK(cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  probe::Report report("H7");
  probe::add_device(report);
  const auto get_resource = entry<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource");
  const auto split = entry<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
  const auto describe = entry<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc");
  const auto create = entry<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate");
  const auto create_stream = entry<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate");
  CUdevResource whole{}, part{};
  unsigned groups = 1;
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUstream stream = nullptr;
  const char* step = "entry points";
  CUresult result =
      get_resource && split && describe && create && create_stream ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  const auto then = [&](const char* name, auto&& call) {
    if (result != CUDA_SUCCESS) return;
    step = name;
    result = call();
  };
  const unsigned wanted = std::max(1u, unsigned(n_multiprocessors / std::max<int64_t>(1, share_of_sms)));
  then("cuDeviceGetDevResource", [&] { return get_resource(0, &whole, CU_DEV_RESOURCE_TYPE_SM); });
  then("cuDevSmResourceSplitByCount", [&] { return split(&part, &groups, &whole, nullptr, 0, wanted); });
  then("cuDevResourceGenerateDesc", [&] { return describe(&description, &part, 1); });
  then("cuGreenCtxCreate", [&] { return create(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM); });
  then("cuGreenCtxStreamCreate", [&] { return create_stream(&stream, green, CU_STREAM_NON_BLOCKING, 0); });
  report.boolean("created", result == CUDA_SUCCESS);
  if (result != CUDA_SUCCESS) {
    report.text("failed_at", step).number("result", int(result)).print();
    return 0;  // "no" is an answer
  }
  const int blocks = n_multiprocessors * 8;
  unsigned* seen = samples::device_array<unsigned>(size_t(blocks));
  where<<<blocks, 128, 0, stream>>>(seen, int(rounds));  // a function of the primary context
  const cudaError_t launched = cudaStreamSynchronize(stream);
  report.number("multiprocessors_of_part", part.sm.smCount).text("launch", cudaGetErrorName(launched));
  if (launched == cudaSuccess) {
    std::vector<unsigned> ids(static_cast<size_t>(blocks));
    CUDA_CHECK(cudaMemcpy(ids.data(), seen, ids.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    const std::set<unsigned> used(ids.begin(), ids.end());
    report.number("multiprocessors_used", double(used.size()))
        .boolean("stays_inside", used.size() <= part.sm.smCount);
  }
  report.print();
}
