#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "support.h"

namespace softgpu_driver_test {
namespace {

class LaunchApi : public Cuda {
 protected:
  std::vector<char> fatbin(const char* file) {
    std::ifstream in(std::string(TESSERA_TEST_IMAGES) + "/" + file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(LaunchApi, GridsDoTheirWork) {
  CUdeviceptr p = alloc(1000 * 4);
  CUfunction fill = function("fill"), add = function("add");
  EXPECT_CU(launch(fill, 8, 128, nullptr, p, 5u, 1000u));
  for (int i = 0; i < 10; ++i) EXPECT_CU(launch(add, 8, 128, nullptr, p, 2u, 1000u));
  EXPECT_EQ(std::vector<uint32_t>(1000, 25), read(p, 1000));
}

// Under lazy loading, handles of cuModuleEnumerateFunctions and of libraries are loaded when they are used.
TEST_F(LaunchApi, FunctionsAreLoadedLazilyOrEagerly) {
  auto loaded = [](CUfunction f) {
    CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_MAX;
    EXPECT_CU(cuFuncIsLoaded(&state, f));
    return state == CU_FUNCTION_LOADING_STATE_LOADED;
  };
  const std::vector<char> image = fatbin("kernel_default.fatbin");
  CUfunction f = nullptr;
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  EXPECT_CU(cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_LAZY_LOADING);
  EXPECT_CU(cuModuleLoadData(&module, image.data()));
  EXPECT_CU(cuModuleEnumerateFunctions(&f, 1, module));
  EXPECT_FALSE(loaded(f));
  int value = -1;
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f),
            CUDA_ERROR_FUNCTION_NOT_LOADED);
  EXPECT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, f));
  EXPECT_CU(cuFuncLoad(f));
  EXPECT_TRUE(loaded(f));
  EXPECT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
  EXPECT_CU(cuModuleUnload(module));

  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  EXPECT_CU(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  EXPECT_CU(cuLibraryEnumerateKernels(&kernel, 1, library));
  EXPECT_CU(cuKernelGetFunction(&f, kernel));
  EXPECT_FALSE(loaded(f));
  CUdeviceptr p = alloc(64 * 4);
  EXPECT_CU(launch(reinterpret_cast<CUfunction>(kernel), 1, 32, nullptr, p, 2.0f, 32u));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_TRUE(loaded(f));
  EXPECT_CU(cuLibraryUnload(library));

  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  EXPECT_CU(cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_EAGER_LOADING);
  EXPECT_CU(cuModuleLoadData(&module, image.data()));
  EXPECT_CU(cuModuleEnumerateFunctions(&f, 1, module));
  EXPECT_TRUE(loaded(f));
  EXPECT_CU(cuModuleUnload(module));
  unsetenv("CUDA_MODULE_LOADING");
}

TEST_F(LaunchApi, ExtraStyleParametersAndEx) {
  CUdeviceptr p = alloc(64);
  CUfunction fill = function("fill");
  struct __attribute__((packed)) {
    CUdeviceptr p;
    uint32_t value, n;
  } block = {p, 9, 16};
  size_t size = sizeof block;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  EXPECT_CU(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(9u, read(p, 16)[15]);
  size = 4;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
  uint32_t value = 10, n = 16;
  void* params[] = {&p, &value, &n};
  size = sizeof block;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, params, extra));
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  CUlaunchConfig config = {2, 1, 1, 32, 1, 1, 0, nullptr, &attribute, 1};
  EXPECT_CU(cuLaunchKernelEx(&config, fill, params, nullptr));
  EXPECT_EQ(10u, read(p, 16)[0]);
  config.gridDimX = 1000000;
  EXPECT_EQ(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchKernelEx(&config, fill, params, nullptr));
}

TEST_F(LaunchApi, WrongLaunchesAreRefused) {
  CUfunction f = function("trapper");
  auto shape = [&](unsigned gx, unsigned gy, unsigned bx, unsigned bz, unsigned shared) {
    return cuLaunchKernel(f, gx, gy, 1, bx, 1, bz, shared, nullptr, nullptr, nullptr);
  };
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, shape(0, 1, 32, 1, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, shape(1, 70000, 32, 1, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, shape(1, 1, 1025, 1, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, shape(1, 1, 1, 65, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, shape(1, 1, 512, 4, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, shape(1, 1, 32, 1, 60000));  // no opt-in
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE,
            cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE,
            cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, reinterpret_cast<CUstream>(0x770), nullptr, nullptr));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(reinterpret_cast<CUfunction>(module), 1, 1, 1, 1, 1, 1,
                                                      0, nullptr, nullptr, nullptr));
  EXPECT_CU(cuCtxSynchronize());
}

TEST_F(LaunchApi, AttributesAndOccupancy) {
  CUfunction f = function("fill");
  int value = 0, blocks = 0, grid = 0, block = 0;
  EXPECT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
  EXPECT_EQ(1024, value);
  EXPECT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PTX_VERSION, f));
  EXPECT_EQ(75, value);
  EXPECT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
  EXPECT_EQ(49152, value);
  int optin = 0;
  EXPECT_CU(cuDeviceGetAttribute(&optin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, optin + 1));
  EXPECT_CU(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, optin));
  CUdeviceptr p = alloc(64);
  uint32_t one = 1, n = 16;
  void* params[] = {&p, &one, &n};
  EXPECT_CU(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, unsigned(optin), nullptr, params, nullptr));
  EXPECT_CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0));
  EXPECT_EQ(8, blocks);  // 2048 threads
  EXPECT_CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 32, 100000));
  EXPECT_EQ(2, blocks);  // shared memory
  EXPECT_CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, nullptr, 0, 0));
  EXPECT_EQ(0, 2048 % block);
  EXPECT_EQ(4 * (2048 / block), grid);
  size_t available = 0;
  EXPECT_CU(cuOccupancyAvailableDynamicSMemPerBlock(&available, f, 2, 256));
  EXPECT_CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, available));
  EXPECT_EQ(2, blocks);
  const char* name = nullptr;
  EXPECT_CU(cuFuncGetName(&name, f));
  EXPECT_STREQ("fill", name);
  size_t offset = 0, size = 0;
  EXPECT_CU(cuFuncGetParamInfo(f, 2, &offset, &size));
  EXPECT_EQ(12u, offset);
  EXPECT_EQ(4u, size);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 3, &offset, &size));
}

TEST_F(LaunchApi, ModuleVariables) {
  CUfunction unused = function("fill");
  (void)unused;
  CUdeviceptr counter = 0, table = 0;
  size_t bytes = 0;
  ASSERT_CU(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
  EXPECT_EQ(4u, bytes);
  EXPECT_EQ(7u, read(counter, 1)[0]);
  EXPECT_CU(cuMemsetD32(counter, 8, 1));
  EXPECT_EQ(8u, read(counter, 1)[0]);
  ASSERT_CU(cuModuleGetGlobal(&table, &bytes, module, "table"));
  EXPECT_EQ((std::vector<uint32_t>{1, 2, 3, 4}), read(table, 4));
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&table, &bytes, module, "nothing"));
  unsigned count = 0;
  EXPECT_CU(cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(6u, count);
}

TEST_F(LaunchApi, ModulesGoAway) {
  CUfunction f = function("fill");
  CUfunction none;
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&none, module, "nothing"));
  EXPECT_CU(cuModuleUnload(module));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&none, module, "fill"));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

TEST_F(LaunchApi, BadImagesAndTheirLog) {
  CUmodule m;
  EXPECT_NE(CUDA_SUCCESS, cuModuleLoadData(&m, "this is not PTX"));
  EXPECT_EQ(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/nonexistent/file.ptx"));
  EXPECT_EQ(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/tmp"));  // a folder opens, but cannot be read
  char log[256] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  EXPECT_EQ(CUDA_ERROR_INVALID_PTX,
            cuModuleLoadDataEx(
                &m, ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() { add.s32 %r1 }", 2,
                options, values));
  EXPECT_STRNE("untouched", log);
}

// A kernel with an instruction that the software GPU does not execute is refused, its neighbours run.
const char* const kPartlySupported = R"(
.version 8.0
.target sm_90a
.address_size 64
.func unsupported() { tcgen05.wait::ld.sync.aligned; ret; }
.visible .entry refused(.param .u64 p) { call unsupported; ret; }
.visible .entry fine(.param .u64 fine_p)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [fine_p];
  mov.u32 %r1, 11;
  st.global.u32 [%rd1], %r1;
  ret;
}
)";

TEST_F(LaunchApi, OneUnsupportedKernelOfAModule) {
  CUmodule m;
  CUfunction fine = nullptr, refused = nullptr;
  ASSERT_CU(cuModuleLoadData(&m, kPartlySupported));
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuModuleGetFunction(&refused, m, "refused"));
  EXPECT_EQ(nullptr, refused);
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&refused, m, "missing"));
  unsigned count = 0;
  EXPECT_CU(cuModuleGetFunctionCount(&count, m));
  EXPECT_EQ(1u, count);  // what can run
  ASSERT_CU(cuModuleGetFunction(&fine, m, "fine"));
  CUdeviceptr p = alloc(64);
  EXPECT_CU(launch(fine, 1, 1, nullptr, p));
  EXPECT_EQ(11u, read(p, 1)[0]);
  EXPECT_CU(cuModuleUnload(m));
}

TEST_F(LaunchApi, OneUnsupportedKernelOfALibrary) {
  CUlibrary library;
  CUkernel kernel, fine;
  CUfunction f;
  ASSERT_CU(cuLibraryLoadData(&library, kPartlySupported, nullptr, nullptr, 0, nullptr, nullptr, 0));
  ASSERT_CU(cuLibraryGetKernel(&kernel, library, "refused"));
  ASSERT_CU(cuLibraryGetKernel(&fine, library, "fine"));
  CUdeviceptr p = alloc(64);
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuKernelGetFunction(&f, kernel));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, launch(reinterpret_cast<CUfunction>(kernel), 1, 1, nullptr, p));
  const std::string report = ::testing::internal::GetCapturedStderr();
  for (const char* part : {"kernel refused", "in unsupported", "line 5", "tcgen05.wait::ld.sync.aligned"})
    EXPECT_NE(std::string::npos, report.find(part)) << part << " in: " << report;
  // Not sticky, and the others run.
  EXPECT_CU(launch(reinterpret_cast<CUfunction>(fine), 1, 1, nullptr, p));
  EXPECT_EQ(11u, read(p, 1)[0]);
  EXPECT_CU(cuLibraryUnload(library));
}

TEST_F(LaunchApi, LibrariesAndKernelHandles) {
  CUlibrary library;
  CUkernel kernel, missing;
  ASSERT_CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  ASSERT_CU(cuLibraryGetKernel(&kernel, library, "fill"));
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&missing, library, "nothing"));
  const char* name = nullptr;
  EXPECT_CU(cuKernelGetName(&name, kernel));
  EXPECT_STREQ("fill", name);
  CUdeviceptr p = alloc(64);
  EXPECT_CU(launch(reinterpret_cast<CUfunction>(kernel), 1, 32, nullptr, p, 3u, 16u));
  EXPECT_EQ(3u, read(p, 16)[15]);
  CUfunction f;
  EXPECT_CU(cuKernelGetFunction(&f, kernel));
  EXPECT_CU(launch(f, 1, 32, nullptr, p, 4u, 16u));
  EXPECT_EQ(4u, read(p, 16)[15]);
  EXPECT_CU(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000, kernel, 0));
  // The same kernel in another context is another instance with the same attributes.
  CUcontext other;
  ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, launch(f, 1, 32, nullptr, p, 4u, 16u));
  int value = 0;
  EXPECT_CU(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0));
  EXPECT_EQ(100000, value);
  EXPECT_CU(cuCtxDestroy(other));
  CUmodule m;
  EXPECT_CU(cuLibraryGetModule(&m, library));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(m));  // the library's
  EXPECT_CU(cuLibraryUnload(library));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuKernelGetName(&name, kernel));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(library));
}

TEST_F(LaunchApi, ImagesFromNvcc) {
  for (const char* file : {"kernel_default.fatbin", "kernel_size.fatbin", "kernel_none.fatbin"}) {
    const std::vector<char> image = fatbin(file);
    ASSERT_FALSE(image.empty()) << file;
    CUmodule m;
    CUfunction f;
    ASSERT_CU(cuModuleLoadData(&m, image.data())) << file;
    ASSERT_CU(cuModuleGetFunction(&f, m, "scale"));
    CUdeviceptr p = alloc(256 * 4);
    std::vector<float> in(256), out(256);
    for (size_t i = 0; i < in.size(); ++i) in[i] = float(i);
    ASSERT_CU(cuMemcpyHtoD(p, in.data(), 1024));
    EXPECT_CU(launch(f, 2, 128, nullptr, p, 2.5f, 256));
    ASSERT_CU(cuMemcpyDtoH(out.data(), p, 1024));
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(float(i) * 2.5f, out[i]);
  }
  const std::vector<char> sass = fatbin("kernel_sass.cubin");
  ASSERT_FALSE(sass.empty());
  CUmodule m;
  EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, sass.data()));
}

TEST_F(LaunchApi, KernelsAreCaptured) {
  CUstream s;
  ASSERT_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = alloc(64);
  CUfunction fill = function("fill"), add = function("add");
  CUgraph graph;
  CUgraphExec exec;
  ASSERT_CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CU(launch(fill, 1, 32, s, p, 1u, 16u));
  EXPECT_CU(launch(add, 1, 32, s, p, 4u, 16u));
  ASSERT_CU(cuStreamEndCapture(s, &graph));
  ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) EXPECT_CU(cuGraphLaunch(exec, s));
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_EQ(5u, read(p, 16)[15]);
  CUgraphNode nodes[2];
  size_t n = 2;
  ASSERT_CU(cuGraphGetNodes(graph, nodes, &n));
  CUDA_KERNEL_NODE_PARAMS params;
  ASSERT_CU(cuGraphKernelNodeGetParams(nodes[1], &params));
  EXPECT_EQ(add, params.func);
  uint32_t more = 10;
  params.kernelParams[1] = &more;
  EXPECT_CU(cuGraphExecKernelNodeSetParams(exec, nodes[1], &params));
  EXPECT_CU(cuGraphLaunch(exec, s));
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_EQ(11u, read(p, 16)[0]);
}

TEST_F(LaunchApi, ThreadsLaunchTogether) {
  constexpr uint32_t kThreads = 4, kRounds = 25;
  CUdeviceptr p = alloc(kThreads * 64);
  CUfunction add = function("add");
  ASSERT_CU(cuMemsetD32(p, 0, kThreads * 16));
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      EXPECT_CU(cuCtxSetCurrent(context));
      for (uint32_t i = 0; i < kRounds; ++i)
        EXPECT_CU(launch(add, 1, 32, CU_STREAM_PER_THREAD, p + t * 64, t + 1, 16u));
      EXPECT_CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    });
  for (auto& thread : threads) thread.join();
  const std::vector<uint32_t> got = read(p, kThreads * 16);
  for (uint32_t i = 0; i < kThreads * 16; ++i) ASSERT_EQ((i / 16 + 1) * kRounds, got[i]);
}

// ---- cancelled threads ----

struct CancelledWork {
  CUcontext context;
  CUfunction add;
  CUdeviceptr p;
  std::atomic<uint32_t> rounds{0};
};
extern "C" void* work_until_cancelled(void* argument) {
  auto& work = *static_cast<CancelledWork*>(argument);
  (void)cuCtxSetCurrent(work.context);
  uint32_t one = 1, n = 16;
  void* params[] = {&work.p, &one, &n};
  for (;;) {
    uint32_t word = 0;
    (void)cuLaunchKernel(work.add, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD, params, nullptr);
    (void)cuStreamSynchronize(CU_STREAM_PER_THREAD);
    CUdeviceptr q = 0;
    (void)cuMemAllocAsync(&q, 4096, CU_STREAM_PER_THREAD);
    (void)cuMemFreeAsync(q, CU_STREAM_PER_THREAD);
    (void)cuMemcpyDtoH(&word, work.p, 4);
    work.rounds.fetch_add(1);
    pthread_testcancel();
  }
}

// A call ends before the thread does, so no lock stays held and no operation half made.
TEST_F(LaunchApi, CancelledThreadsLeaveTheDriverWhole) {
  CancelledWork work{context, function("add"), alloc(64)};
  ASSERT_CU(cuMemsetD32(work.p, 0, 16));
  for (uint32_t i = 0; i < 30; ++i) {
    pthread_t threads[2];
    const uint32_t before = work.rounds.load();
    for (pthread_t& t : threads) ASSERT_EQ(0, pthread_create(&t, nullptr, work_until_cancelled, &work));
    while (work.rounds.load() < before + i % 4) sched_yield();
    for (pthread_t t : threads) {
      void* result = nullptr;
      ASSERT_EQ(0, pthread_cancel(t));
      ASSERT_EQ(0, pthread_join(t, &result));
      EXPECT_EQ(PTHREAD_CANCELED, result);
    }
  }
  const uint32_t least = work.rounds.load();
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_GE(read(work.p, 1)[0], least);
  // A thread that waits in the driver for something that comes.
  Gate gate;
  ASSERT_CU(gate.hold(CU_STREAM_LEGACY));
  pthread_t waiting;
  ASSERT_EQ(0, pthread_create(&waiting, nullptr, work_until_cancelled, &work));
  ASSERT_EQ(0, pthread_cancel(waiting));
  gate.open();
  ASSERT_EQ(0, pthread_join(waiting, nullptr));
  EXPECT_CU(launch(work.add, 1, 32, nullptr, work.p, 1u, 16u));
  EXPECT_CU(cuCtxSynchronize());
}

// ---- registers and logs ----

TEST_F(LaunchApi, RegistersCanBeLimited) {
  const auto registers = [](const void* image, CUjit_option* options, void** values, unsigned n) {
    CUmodule m = nullptr;
    CUfunction f = nullptr;
    int value = 0;
    EXPECT_CU(cuModuleLoadDataEx(&m, image, n, options, values));
    EXPECT_CU(cuModuleGetFunction(&f, m, "k"));
    EXPECT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, f));
    EXPECT_CU(cuModuleUnload(m));
    return value;
  };
  // 40 registers are live at once.
  std::string body =
      ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p) LIMIT\n{\n"
      ".reg .b32 %r<50>;\n.reg .b64 %d;\nld.param.u64 %d, [p];\n";
  for (int i = 0; i < 40; ++i)
    body += "ld.global.u32 %r" + std::to_string(i) + ", [%d+" + std::to_string(4 * i) + "];\n";
  for (int i = 0; i < 40; ++i) body += "st.global.u32 [%d], %r" + std::to_string(i) + ";\n";
  body += "ret;\n}\n";
  const auto with = [&](const char* limit) {
    return std::string(body).replace(body.find("LIMIT"), 5, limit);
  };
  const std::string plain = with(""), limited = with(".maxnreg 24");
  CUjit_option option[] = {CU_JIT_MAX_REGISTERS};
  void* value[] = {reinterpret_cast<void*>(uintptr_t(32))};
  EXPECT_GE(registers(plain.c_str(), nullptr, nullptr, 0), 40);
  EXPECT_EQ(32, registers(plain.c_str(), option, value, 1));
  EXPECT_EQ(24, registers(limited.c_str(), nullptr, nullptr, 0));
  EXPECT_EQ(24, registers(limited.c_str(), option, value, 1));
  CUlinkState link;
  void* cubin = nullptr;
  ASSERT_CU(cuLinkCreate(1, option, value, &link));
  ASSERT_CU(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(plain.c_str()), plain.size() + 1, "k", 0,
                          nullptr, nullptr));
  ASSERT_CU(cuLinkComplete(link, &cubin, nullptr));
  EXPECT_EQ(32, registers(cubin, nullptr, nullptr, 0));
  EXPECT_CU(cuLinkDestroy(link));
}

TEST_F(LaunchApi, ConstantMemoryOfAKernel) {
  CUmodule m;
  ASSERT_CU(cuModuleLoadData(&m, R"(.version 8.0
.target sm_75
.address_size 64
.const .align 4 .b8 one[12];
.const .align 8 .f64 two[100];
.func f() { .reg .b64 %d; ld.const.u64 %d, [two+8]; ret; }
.visible .entry both() { .reg .b32 %r; ld.const.u32 %r, [one]; ld.const.u32 %r, [one+4]; call f; ret; }
.visible .entry none() { ret; }
)"));
  for (const auto& [name, bytes] : {std::pair("both", 812), std::pair("none", 0)}) {
    CUfunction f;
    int value = -1;
    ASSERT_CU(cuModuleGetFunction(&f, m, name));
    EXPECT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, f));
    EXPECT_EQ(bytes, value) << name;
  }
}

TEST_F(LaunchApi, LogsSayWhatWentWrong) {
  CUlogIterator before = 0, after = 0;
  std::string heard;
  CUlogsCallbackHandle callback = nullptr;
  const auto hear = [](void* data, CUlogLevel, char* message, size_t length) {
    static_cast<std::string*>(data)->append(message, length);
  };
  EXPECT_CU(cuLogsRegisterCallback(hear, &heard, &callback));
  EXPECT_CU(cuLogsCurrent(&before, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuLogsCurrent(&before, 1));
  const auto fail = [&] {
    CUmodule m;
    CUfunction refused;
    ASSERT_CU(cuModuleLoadData(&m, kPartlySupported));
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuModuleGetFunction(&refused, m, "refused"));
    EXPECT_CU(cuModuleUnload(m));
  };
  fail();
  EXPECT_NE(std::string::npos, heard.find("kernel refused")) << heard;
  EXPECT_CU(cuLogsUnregisterCallback(callback));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuLogsUnregisterCallback(callback));
  const size_t n_heard = heard.size();
  for (int i = 0; i < 200; ++i) fail();  // more than it holds
  EXPECT_EQ(n_heard, heard.size());
  char text[4096];
  size_t size = sizeof text;
  CUlogIterator at = before;
  EXPECT_CU(cuLogsDumpToMemory(&at, text, &size, 0));
  EXPECT_EQ(strlen(text), size);
  EXPECT_EQ(text, strstr(text, "earlier messages are lost\n"));
  EXPECT_EQ('\n', text[size - 1]);
  EXPECT_CU(cuLogsCurrent(&after, 0));
  EXPECT_EQ(after, at);
  size = sizeof text;
  EXPECT_CU(cuLogsDumpToMemory(&at, text, &size, 0));  // nothing new
  EXPECT_EQ(0u, size);
  char small[8];
  size = sizeof small;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuLogsDumpToMemory(nullptr, small, &size, 0));
  EXPECT_EQ(0u, size);
}

// ---- faults of kernels ----

TEST_F(LaunchApi, IllegalAddressIsSticky) {
  CUfunction store = function("store");
  CUdeviceptr p = alloc(100);
  EXPECT_CU(launch(store, 1, 1, nullptr, p + 96));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_CU(launch(store, 1, 1, nullptr, p + 100));  // the red zone
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  CUdeviceptr q;
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&q, 16));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, launch(store, 1, 1, nullptr, p));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(nullptr));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree(p));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));  // it was freed all the same
  // Another context of the process goes on.
  CUcontext other;
  ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
  EXPECT_CU(cuMemAlloc(&q, 16));
  EXPECT_CU(cuMemsetD32(q, 1, 4));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_CU(cuCtxDestroy(other));
}

// Run twice, with and without TESSERA_SOFTGPU_STRICT=1.
TEST_F(LaunchApi, BoundsAreGranulesUnlessStrict) {
  const bool strict = std::getenv("TESSERA_SOFTGPU_STRICT");
  CUfunction store = function("store");
  CUdeviceptr p = alloc(100);
  EXPECT_CU(launch(store, 1, 1, nullptr, p + 96));
  EXPECT_CU(cuCtxSynchronize());
  CUdeviceptr base;
  size_t bytes;  // what was asked for, whatever kernels may touch
  EXPECT_CU(cuMemGetAddressRange(&base, &bytes, p));
  EXPECT_EQ(100u, bytes);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 0, 101));
  EXPECT_CU(launch(store, 1, 1, nullptr, p + 508));
  EXPECT_EQ(strict ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS, cuCtxSynchronize());
  if (strict) return;
  EXPECT_CU(launch(store, 1, 1, nullptr, p + 512));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

TEST_F(LaunchApi, UseAfterFree) {
  CUfunction store = function("store");
  CUdeviceptr p = alloc(64);
  ASSERT_CU(cuMemFree(p));
  EXPECT_CU(launch(store, 1, 1, nullptr, p));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

TEST_F(LaunchApi, Misaligned) {
  CUfunction store = function("store");
  CUdeviceptr p = alloc(64);
  EXPECT_CU(launch(store, 1, 1, nullptr, p + 2));
  EXPECT_EQ(CUDA_ERROR_MISALIGNED_ADDRESS, cuCtxSynchronize());
}

TEST_F(LaunchApi, TrapStopsWhatFollows) {
  CUdeviceptr p = 0;
  void* host;
  ASSERT_CU(cuMemHostAlloc(&host, 64, 0));
  p = reinterpret_cast<CUdeviceptr>(host);
  auto* word = static_cast<volatile uint32_t*>(host);
  *word = 1;
  CUstream s;
  ASSERT_CU(cuStreamCreate(&s, 0));
  EXPECT_CU(launch(function("trapper"), 1, 1, s));
  (void)cuMemsetD32Async(p, 2, 1, s);
  EXPECT_EQ(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(s));
  EXPECT_EQ(1u, *word);
}

TEST_F(LaunchApi, RunningKernelEndsWithItsContext) {
  CUdeviceptr p = alloc(4);
  EXPECT_CU(launch(function("spin"), 1, 1, nullptr, p, 0xffffffffu));
  EXPECT_CU(cuCtxDestroy(context));
  context = nullptr;
}

// The way of before CUDA 4.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TEST_F(Cuda, LaunchesWithArgumentsSetOneByOne) {
  const CUfunction fill = function("fill");
  CUdeviceptr p = alloc(256);
  EXPECT_CU(cuMemsetD32(p, 0, 64));
  EXPECT_CU(cuFuncSetBlockShape(fill, 32, 1, 1));
  EXPECT_CU(cuParamSetv(fill, 0, &p, sizeof p));
  EXPECT_CU(cuParamSeti(fill, 8, 6));
  EXPECT_CU(cuParamSeti(fill, 12, 64));
  EXPECT_CU(cuParamSetSize(fill, 16));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuParamSeti(fill, 14, 1));
  EXPECT_CU(cuLaunchGrid(fill, 2, 1));
  EXPECT_EQ(read(p, 64), std::vector<uint32_t>(64, 6));
  EXPECT_CU(cuParamSeti(fill, 8, 7));
  EXPECT_CU(cuLaunch(fill));
  EXPECT_EQ(read(p, 33)[31], 7u);
  EXPECT_EQ(read(p, 33)[32], 6u);
  CUcontext same = nullptr;
  EXPECT_CU(cuCtxAttach(&same, 0));
  EXPECT_EQ(same, context);
  EXPECT_CU(cuCtxDetach(context));
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_CU(cuCtxDetach(context));  // the last one
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
  context = nullptr;
}

}  // namespace
}  // namespace softgpu_driver_test
