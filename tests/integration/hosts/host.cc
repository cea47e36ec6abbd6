// A program as users have them, for what hosts do to the preloaded library: through the plain driver API, and
// it knows nothing of Tessera. It loads its kernels, launches one, says so with a byte in FILE, and goes on
// until SIGTERM with an answer of 0 if every result was right.
//
//   host FILE [no_files]     no_files: before it loads its kernels it limits files to nothing, and nobody
//                            reads its standard error
//   host FILE COMMAND...     the command runs from its first right result to its end
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kWaiting = 5;              // kernels that read what cooperative launches have: never cut
constexpr size_t kTextBytes = 64 << 10;  // more than what is not worth a file of the cache
constexpr unsigned kBlocks = 256;

std::string text() {
  std::string ptx = ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (int i = 0; i < kWaiting; ++i)
    ptx += ".visible .entry waiting" + std::to_string(i) +
           "() {\n  .reg .b32 %r<2>;\n  mov.u32 %r1, %envreg2;\n  ret;\n}\n";
  ptx += R"(.visible .entry number(.param .u64 out)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %ctaid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r1;
  ret;
}
)";
  return ptx + "//" + std::string(kTextBytes, '-') + "\n";
}

volatile sig_atomic_t g_stop = 0;
void stop(int) {
  g_stop = 1;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "host: %s: %d\n", what, int(result));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

void forbid_files() {
  const rlimit none{0, 0};
  int ends[2];
  if (setrlimit(RLIMIT_FSIZE, &none) != 0 || pipe(ends) != 0 || dup2(ends[1], 2) != 2) std::exit(1);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  signal(SIGTERM, stop);
  CUcontext context;
  CUmodule module;
  CUfunction function;
  CUdeviceptr out;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  const bool no_files = argc > 2 && strcmp(argv[2], "no_files") == 0;
  if (no_files) forbid_files();
  CHECK(cuModuleLoadData(&module, text().c_str()));
  CHECK(cuModuleGetFunction(&function, module, "number"));
  CHECK(cuMemAlloc(&out, kBlocks * 4));
  void* arguments[] = {&out};
  bool told = false;
  pid_t child = 0;
  while (!g_stop) {
    std::vector<unsigned> numbers(kBlocks, ~0u);
    CHECK(cuMemcpyHtoD(out, numbers.data(), kBlocks * 4));
    CHECK(cuLaunchKernel(function, kBlocks, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    CHECK(cuMemcpyDtoH(numbers.data(), out, kBlocks * 4));
    for (unsigned i = 0; i < kBlocks; ++i)
      if (numbers[i] != i) return 1;
    if (!told && argc > 2 && !no_files &&
        posix_spawnp(&child, argv[2], nullptr, nullptr, argv + 2, environ) != 0)
      return 1;
    if (!told) close(open(argv[1], O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    told = true;
    usleep(5'000);
  }
  CHECK(cuModuleUnload(module));
  if (child > 0 && (kill(child, SIGTERM) != 0 || waitpid(child, nullptr, 0) != child)) return 1;
  return 0;
}
