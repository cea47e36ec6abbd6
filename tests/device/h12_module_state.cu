// H12: what a second module can use of the first one's state. Both declare the same __device__ and
// __constant__ symbols; are they one or two, and does the address of the first one's work in kernels of the
// second?
#include "probe.h"

namespace {

const char kModule[] = R"(
.version 7.5
.target sm_75
.address_size 64
.visible .const .align 4 .u32 constant_word = 1;
.visible .global .align 4 .u32 global_word = 1;
.visible .entry by_name(.param .u64 out) {
  .reg .u64 %o; .reg .u32 %v;
  ld.param.u64 %o, [out];
  cvta.to.global.u64 %o, %o;
  ld.global.u32 %v, [global_word];
  st.global.u32 [%o], %v;
  ld.const.u32 %v, [constant_word];
  st.global.u32 [%o+4], %v;
  ret;
}
.visible .entry by_address(.param .u64 out, .param .u64 from) {
  .reg .u64 %o, %f; .reg .u32 %v;
  ld.param.u64 %o, [out];
  ld.param.u64 %f, [from];
  cvta.to.global.u64 %o, %o;
  ld.u32 %v, [%f];
  st.global.u32 [%o], %v;
  ret;
}
)";

struct Module {
  CUmodule handle = nullptr;
  CUdeviceptr global_word = 0, constant_word = 0;
};

template <class F>
F entry(const char* name) {
  return probe::driver_function<F>(name);
}

CUdeviceptr symbol(CUmodule module, const char* name) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  probe::driver_check(
      entry<decltype(&cuModuleGetGlobal)>("cuModuleGetGlobal")(&address, &bytes, module, name), name);
  return address;
}

Module load() {
  Module m;
  probe::driver_check(entry<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&m.handle, kModule), "load");
  m.global_word = symbol(m.handle, "global_word");
  m.constant_word = symbol(m.handle, "constant_word");
  return m;
}

struct Words {
  uint32_t first = 0, second = 0;
  cudaError_t result = cudaSuccess;
};

Words launch(const Module& m, const char* kernel, uint32_t* out, CUdeviceptr from) {
  CUfunction function = nullptr;
  probe::driver_check(
      entry<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&function, m.handle, kernel), kernel);
  void* parameters[] = {&out, &from};
  probe::driver_check(entry<decltype(&cuLaunchKernel)>("cuLaunchKernel")(function, 1, 1, 1, 1, 1, 1, 0,
                                                                         nullptr, parameters, nullptr),
                      kernel);
  Words w;
  w.result = cudaDeviceSynchronize();
  if (w.result == cudaSuccess) w.result = cudaMemcpy(&w, out, 2 * sizeof(uint32_t), cudaMemcpyDeviceToHost);
  return w;
}

}  // namespace

int main(int argc, char** argv) {
  samples::parse_options(argc, argv, "H12: module state seen from a second module.", {});
  CUDA_CHECK(cudaFree(nullptr));
  const Module one = load(), two = load();
  uint32_t* out = samples::device_array<uint32_t>(2);
  const uint32_t seven = 7, nine = 9;
  CUDA_CHECK(cudaMemcpy(reinterpret_cast<void*>(one.global_word), &seven, 4, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(reinterpret_cast<void*>(one.constant_word), &nine, 4, cudaMemcpyHostToDevice));
  probe::Report report("H12");
  probe::add_device(report);
  report.boolean("globals_are_separate", one.global_word != two.global_word)
      .boolean("constants_are_separate", one.constant_word != two.constant_word);
  const Words named_one = launch(one, "by_name", out, 0), named_two = launch(two, "by_name", out, 0);
  report.number("first_sees_global", named_one.first)
      .number("first_sees_constant", named_one.second)
      .number("second_sees_global", named_two.first)
      .number("second_sees_constant", named_two.second);
  const Words global = launch(two, "by_address", out, one.global_word);
  report.text("first_global_by_address_from_second", cudaGetErrorName(global.result))
      .boolean("first_global_by_address_is_right", global.result == cudaSuccess && global.first == seven);
  // Last: if the generic address of a constant is not readable, the context is lost.
  const Words constant = launch(two, "by_address", out, one.constant_word);
  report.text("first_constant_by_address_from_second", cudaGetErrorName(constant.result))
      .boolean("first_constant_by_address_is_right",
               constant.result == cudaSuccess && constant.first == nine);
  report.print();
}
