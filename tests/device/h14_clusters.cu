// H14: what cutting kernels in clusters takes for granted. Does the driver tell the shape that a kernel was
// compiled for, is a launch without clusters one with clusters of one block, and what does the launch's
// attribute do to a kernel that fixes no shape?
#include "probe.h"

namespace {

// The last block tells what it sees.
const char kBody[] = R"({
  .reg .u64 %o; .reg .u32 %v, %n; .reg .pred %p;
  ld.param.u64 %o, [out];
  cvta.to.global.u64 %o, %o;
  mov.u32 %v, %ctaid.x;
  mov.u32 %n, %nctaid.x;
  add.u32 %v, %v, 1;
  setp.ne.u32 %p, %v, %n;
  @%p ret;
  mov.u32 %v, %cluster_nctaid.x;
  st.global.u32 [%o], %v;
  mov.u32 %v, %nclusterid.x;
  st.global.u32 [%o+4], %v;
  mov.u32 %v, %clusterid.x;
  st.global.u32 [%o+8], %v;
  ret;
}
)";

std::string module_text() {
  const std::string parameter = "(.param .u64 out)\n";
  return std::string(".version 7.8\n.target sm_90\n.address_size 64\n") + ".visible .entry free_shape" +
         parameter + kBody + ".visible .entry fixed_shape" + parameter +
         ".explicitcluster\n.reqnctapercluster 2, 1, 1\n" + kBody;
}

constexpr unsigned kBlocks = 8;

template <class F>
F entry(const char* name) {
  return probe::driver_function<F>(name);
}

struct Words {
  uint32_t shape = 0, clusters = 0, last = 0;
};

// `cluster`: as the launch asks; 0 = it asks for nothing.
void launch(probe::Report& report, const std::string& name, CUfunction function, unsigned cluster,
            uint32_t* out) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {cluster, 1, 1};
  CUlaunchConfig config{};
  config.gridDimX = kBlocks;
  config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster != 0;
  void* parameters[] = {&out};
  const CUresult launched =
      entry<decltype(&cuLaunchKernelEx)>("cuLaunchKernelEx")(&config, function, parameters, nullptr);
  Words w;
  if (launched == CUDA_SUCCESS) CUDA_CHECK(cudaMemcpy(&w, out, sizeof w, cudaMemcpyDeviceToHost));
  report.number(name + "_result", launched)
      .number(name + "_cluster_nctaid", w.shape)
      .number(name + "_nclusterid", w.clusters)
      .number(name + "_last_clusterid", w.last);
}

int attribute(CUfunction function, CUfunction_attribute which) {
  int value = 0;
  probe::driver_check(entry<decltype(&cuFuncGetAttribute)>("cuFuncGetAttribute")(&value, which, function),
                      "attribute");
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  samples::parse_options(argc, argv, "H14: the shape of clusters.", {});
  CUDA_CHECK(cudaFree(nullptr));
  probe::Report report("H14");
  probe::add_device(report);
  CUmodule module = nullptr;
  const CUresult loaded =
      entry<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module, module_text().c_str());
  report.number("loaded", loaded);  // not before sm_90
  if (loaded == CUDA_SUCCESS) {
    uint32_t* out = samples::device_array<uint32_t>(3);
    for (const std::string name : {"free_shape", "fixed_shape"}) {
      CUfunction function = nullptr;
      probe::driver_check(
          entry<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&function, module, name.c_str()),
          name.c_str());
      report.number(name + "_required_width", attribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH))
          .number(name + "_must_be_set", attribute(function, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET));
      launch(report, name + "_plain", function, 0, out);
      launch(report, name + "_with_2", function, 2, out);
      launch(report, name + "_with_4", function, 4, out);
    }
  }
  report.print();
}
