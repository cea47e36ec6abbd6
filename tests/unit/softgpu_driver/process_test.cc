// The edges of a process: fork, exit with work outstanding, and scripted faults, which are read once.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

constexpr int kOk = 42;

// Exit status of `body` in a forked child; the parent must not have initialised the driver.
// `leave` ends the child: by default exit, because the library's exit code is under test.
int in_child(const std::function<int()>& body, void (*leave)(int) = exit) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    leave(body());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#define CHILD_CU(call) \
  if (CUresult code_of_call = (call)) return int(code_of_call) & 0xff

CUresult fresh_context(CUcontext* context) {
  if (CUresult failed = cuInit(0)) return failed;
  return cuCtxCreate(context, nullptr, 0, 0);
}

CUresult load_fill(CUfunction* fill) {
  CUmodule module;
  if (CUresult failed = cuModuleLoadData(&module, kPtx)) return failed;
  return cuModuleGetFunction(fill, module, "fill");
}

CUresult launch_fill(CUfunction fill, CUdeviceptr p, uint32_t value, CUstream stream) {
  uint32_t n = 4;
  void* params[] = {&p, &value, &n};
  return cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr);
}

TEST(Process, ExitWithWorkOutstanding) {
  EXPECT_EQ(kOk, in_child([] {
              CUcontext context;
              CUmodule module;
              CUfunction spin;
              CUdeviceptr p;
              CUstream held;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuModuleLoadData(&module, kPtx));
              CHILD_CU(cuModuleGetFunction(&spin, module, "spin"));
              CHILD_CU(cuMemAlloc(&p, 64));
              CHILD_CU(cuMemsetD32(p, 0, 16));
              CHILD_CU(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
              CHILD_CU(cuStreamWaitValue32(held, p, 1, CU_STREAM_WAIT_VALUE_EQ));
              uint32_t rounds = 0xffffffff;
              void* params[] = {&p, &rounds};
              CHILD_CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
              return kOk;
            }));
}

// Streams may wait for ever for words that only another process would have written, in memory that outlives them.
TEST(Process, ExitWithManyWaitingStreams) {
  EXPECT_EQ(kOk, in_child([] {
              CUcontext context;
              CHILD_CU(fresh_context(&context));
              const int fd = memfd_create("process_test", MFD_CLOEXEC);
              if (fd < 0 || ftruncate(fd, 4096) != 0) return 1;
              void* words = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
              CUdeviceptr device;
              CHILD_CU(cuMemHostRegister(words, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
              CHILD_CU(cuMemHostGetDevicePointer(&device, words, 0));
              for (int i = 0; i < 64; ++i) {
                CUstream held;
                CHILD_CU(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
                CHILD_CU(cuStreamWaitValue64(held, device + uint64_t(i) * 8, 1, CU_STREAM_WAIT_VALUE_GEQ));
                CHILD_CU(cuMemsetD8Async(device + 2048, 1, 1, held));
              }
              return kOk;
            }));
}

// A kernel that polls p[0].
CUresult launch_await(CUdeviceptr p) {
  CUmodule module;
  CUfunction await;
  if (CUresult failed = cuModuleLoadData(&module, kPtx)) return failed;
  if (CUresult failed = cuModuleGetFunction(&await, module, "await")) return failed;
  void* params[] = {&p};
  return cuLaunchKernel(await, 3, 1, 1, 64, 1, 1, 0, nullptr, params, nullptr);
}

// The whole process waits for a kernel that waits for the process.
TEST(Process, EndlessPollOfDeviceMemoryEndsAsADeadlock) {
  EXPECT_EQ(kOk, in_child([] {
              CUcontext context;
              CUdeviceptr p;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuMemAlloc(&p, 64));
              CHILD_CU(cuMemsetD32(p, 0, 16));
              CHILD_CU(launch_await(p));
              return cuCtxSynchronize() == CUDA_ERROR_LAUNCH_TIMEOUT ? kOk : 1;
            }));
}

// A thread that does not wait may still write: the program is told of the poll, once, and goes on.
TEST(Process, PollThatTheHostMayEndIsTold) {
  for (const bool mapped : {true, false})
    EXPECT_EQ(kOk, in_child([mapped] {
                CUcontext context;
                CUdeviceptr p;
                CUstream other;
                CHILD_CU(fresh_context(&context));
                CHILD_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
                if (mapped) {
                  void* host;
                  CHILD_CU(cuMemHostAlloc(&host, 64, CU_MEMHOSTALLOC_DEVICEMAP));
                  p = reinterpret_cast<CUdeviceptr>(host);
                } else {
                  CHILD_CU(cuMemAlloc(&p, 64));
                }
                CHILD_CU(cuMemsetD32(p, 0, 16));
                int ends[2];
                if (pipe(ends) != 0) return 1;
                const int terminal = dup(STDERR_FILENO);
                dup2(ends[1], STDERR_FILENO);
                CHILD_CU(launch_await(p));
                std::string told;
                char c;
                while (read(ends[0], &c, 1) == 1 && c != '\n') told += c;
                dup2(terminal, STDERR_FILENO);
                CHILD_CU(cuMemsetD32Async(p, 1, 1, other));
                CHILD_CU(cuCtxSynchronize());
                const bool clear = told.find("kernel await polls") != told.npos &&
                                   told.find("block (") != told.npos && told.find("0x") != told.npos;
                return clear ? kOk : 2;
              }));
}

// Programs free device memory in destructors of static objects, after thread-local ones are gone.
struct FreesAtExit {
  CUdeviceptr p = 0;
  ~FreesAtExit() {
    if (p && cuMemFree(p) != CUDA_SUCCESS) _exit(1);
  }
};

TEST(Process, StaticDestructorsMayCall) {
  EXPECT_EQ(kOk, in_child([] {
              static FreesAtExit frees;
              CUcontext context;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuMemAlloc(&frees.p, 64));
              return kOk;
            }));
}

TEST(Process, ForkedChildIsNotInitialised) {
  EXPECT_EQ(kOk, in_child([] {
              CUcontext context;
              CHILD_CU(fresh_context(&context));
              const int inner = in_child(
                  [] {
                    CUdeviceptr p;
                    const bool refused = cuMemAlloc(&p, 16) == CUDA_ERROR_NOT_INITIALIZED &&
                                         cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                                         cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED;
                    return refused ? kOk : 1;
                  },
                  // Memory that the parent's threads had half allocated at the fork is no leak of this child.
                  _exit);
              if (inner != kOk) return 2;
              CUdeviceptr p;
              CHILD_CU(cuMemAlloc(&p, 16));  // the parent goes on
              CHILD_CU(cuMemsetD32(p, 1, 4));
              CHILD_CU(cuCtxSynchronize());
              return kOk;
            }));
}

TEST(Process, CallsBeforeInitialisation) {
  EXPECT_EQ(kOk, in_child([] {
              CUdeviceptr p;
              int n;
              return cuMemAlloc(&p, 16) == CUDA_ERROR_NOT_INITIALIZED &&
                             cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED &&
                             cuInit(1) == CUDA_ERROR_INVALID_VALUE
                         ? kOk
                         : 1;
            }));
}

TEST(Process, HiddenDevice) {
  EXPECT_EQ(kOk, in_child([] {
              setenv("CUDA_VISIBLE_DEVICES", "", 1);
              return cuInit(0) == CUDA_ERROR_NO_DEVICE ? kOk : 1;
            }));
}

TEST(Process, ScriptedFaults) {
  EXPECT_EQ(kOk, in_child([] {
              setenv("TESSERA_SOFTGPU_FAULTS", "oom@2,launch@1,cuEventCreate@1=801", 1);
              CUcontext context;
              CUfunction fill;
              CUdeviceptr p, q;
              CUevent e;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuMemAlloc(&p, 16));
              if (cuMemAlloc(&q, 16) != CUDA_ERROR_OUT_OF_MEMORY) return 1;
              CHILD_CU(cuMemAlloc(&q, 16));
              if (cuEventCreate(&e, 0) != CUDA_ERROR_NOT_SUPPORTED) return 2;
              CHILD_CU(cuEventCreate(&e, 0));
              CHILD_CU(load_fill(&fill));
              CHILD_CU(launch_fill(fill, p, 1, nullptr));
              return cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED ? kOk : 3;
            }));
}

// Not the first, but the one that is named; and every one.
TEST(Process, ScriptedFaultsAtCallN) {
  EXPECT_EQ(kOk, in_child([] {
              setenv("TESSERA_SOFTGPU_FAULTS", "launch@3,cuEventCreate@2=999,cuStreamCreate@*=2", 1);
              CUcontext context;
              CUfunction fill;
              CUdeviceptr p;
              CUevent e;
              CUstream stream;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuMemAlloc(&p, 16));
              CHILD_CU(cuEventCreate(&e, 0));
              if (cuEventCreate(&e, 0) != CUDA_ERROR_UNKNOWN) return 1;
              CHILD_CU(cuEventCreate(&e, 0));
              for (int i = 0; i < 3; ++i)
                if (cuStreamCreate(&stream, 0) != CUDA_ERROR_OUT_OF_MEMORY) return 2;
              CHILD_CU(load_fill(&fill));
              for (int i = 0; i < 3; ++i) {
                CHILD_CU(launch_fill(fill, p, 1, nullptr));
                if (cuCtxSynchronize() != (i < 2 ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED)) return 3 + i;
              }
              return cuMemAlloc(&p, 16) == CUDA_ERROR_LAUNCH_FAILED ? kOk : 6;  // sticky
            }));
  EXPECT_EQ(kOk, in_child([] {
              setenv("TESSERA_SOFTGPU_FAULTS", "oom@*", 1);
              CUcontext context;
              CUdeviceptr p;
              void* host;
              CHILD_CU(fresh_context(&context));
              for (int i = 0; i < 2; ++i)
                if (cuMemAlloc(&p, 16) != CUDA_ERROR_OUT_OF_MEMORY ||
                    cuMemAllocManaged(&p, 16, CU_MEM_ATTACH_GLOBAL) != CUDA_ERROR_OUT_OF_MEMORY ||
                    cuMemAllocAsync(&p, 16, nullptr) != CUDA_ERROR_OUT_OF_MEMORY ||
                    cuMemHostAlloc(&host, 16, 0) != CUDA_ERROR_OUT_OF_MEMORY)
                  return 1;
              return kOk;
            }));
}

// A hung kernel holds its stream, not the others; destroying its context ends it, and the device goes on.
TEST(Process, HungKernel) {
  EXPECT_EQ(kOk, in_child([] {
              setenv("TESSERA_SOFTGPU_FAULTS", "hang@2", 1);
              CUcontext context;
              CUfunction fill;
              CUdeviceptr p;
              CUstream hung, other;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuMemAlloc(&p, 16));
              CHILD_CU(load_fill(&fill));
              CHILD_CU(cuStreamCreate(&hung, CU_STREAM_NON_BLOCKING));
              CHILD_CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
              CHILD_CU(launch_fill(fill, p, 1, hung));
              CHILD_CU(cuStreamSynchronize(hung));
              CHILD_CU(launch_fill(fill, p, 2, hung));
              uint32_t word = 0;
              CHILD_CU(cuMemcpyDtoHAsync(&word, p, 4, other));
              CHILD_CU(cuStreamSynchronize(other));
              if (word != 1 || cuStreamQuery(hung) != CUDA_ERROR_NOT_READY) return 1;
              CHILD_CU(cuCtxDestroy(context));
              CHILD_CU(cuCtxCreate(&context, nullptr, 0, 0));
              CHILD_CU(load_fill(&fill));
              CHILD_CU(cuMemAlloc(&p, 16));
              CHILD_CU(launch_fill(fill, p, 2, nullptr));
              CHILD_CU(cuMemcpyDtoH(&word, p, 4));
              return word == 2 ? kOk : 2;
            }));
}

// Modelled lengths, in ns, of the second of two equal kernels and of a copy under a script, from the trace:
// what a busy machine cannot change. (The first kernel waits for its cost to be known.)
struct Lengths {
  uint64_t kernel_ns = 0, copy_ns = 0;
};
Lengths lengths_with(const char* script) {
  char folder[] = "/tmp/tessera-lengths-XXXXXX";
  EXPECT_NE(mkdtemp(folder), nullptr);
  EXPECT_EQ(kOk, in_child([&] {
              setenv("TESSERA_SOFTGPU_FAULTS", script, 1);
              setenv("TESSERA_SOFTGPU_TRACE", folder, 1);
              CUcontext context;
              CUmodule module;
              CUfunction spin;
              CUdeviceptr p;
              void* host;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuMemAlloc(&p, 1 << 20));
              CHILD_CU(cuMemHostAlloc(&host, 1 << 20, 0));
              CHILD_CU(cuModuleLoadData(&module, kPtx));
              CHILD_CU(cuModuleGetFunction(&spin, module, "spin"));
              uint32_t rounds = 2000;
              void* params[] = {&p, &rounds};
              for (int i = 0; i < 2; ++i) {
                CHILD_CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
                CHILD_CU(cuCtxSynchronize());
              }
              CHILD_CU(cuMemcpyHtoDAsync(p, host, 1 << 20, nullptr));
              CHILD_CU(cuCtxSynchronize());
              return kOk;
            }));
  Lengths lengths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".csv") continue;
    std::ifstream trace(entry.path());
    for (std::string line; std::getline(trace, line);) {  // kind,name,stream,enqueued_ns,start_ns,end_ns,...
      char kind[16] = "";
      unsigned long start = 0, end = 0;
      if (sscanf(line.c_str(), "%15[a-z],%*[^,],%*u,%*u,%lu,%lu", kind, &start, &end) != 3) continue;
      if (std::string(kind) == "kernel") lengths.kernel_ns = end - start;
      if (std::string(kind) == "copy") lengths.copy_ns = end - start;
    }
  }
  std::filesystem::remove_all(folder);
  return lengths;
}

TEST(Process, SlowDevice) {
  const Lengths usual = lengths_with(""), slow = lengths_with("slow=4");
  EXPECT_GT(usual.kernel_ns, 0u);
  EXPECT_GT(double(slow.kernel_ns), double(usual.kernel_ns) * 3.5);
  EXPECT_GT(usual.copy_ns, 0u);
  EXPECT_GT(double(slow.copy_ns), double(usual.copy_ns) * 3.5);
}

TEST(Process, BadScriptIsIgnored) {
  EXPECT_EQ(kOk, in_child([] {
              setenv("TESSERA_SOFTGPU_FAULTS", "oom@0", 1);
              CUcontext context;
              CUdeviceptr p;
              CHILD_CU(fresh_context(&context));
              CHILD_CU(cuMemAlloc(&p, 16));
              return kOk;
            }));
}

}  // namespace
}  // namespace softgpu_driver_test
