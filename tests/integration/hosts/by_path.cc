// A program that opens the driver by its path, as tinygrad does, and launches a kernel again and again until SIGTERM. It
// ends with 1 if a result was wrong.
//
//   by_path DRIVER FILE [WAY]    FILE appears when the first result was right; WAY is one of
//     also_by_name     then through libcuda.so.1, too
//     first_by_name    the other way round
//     namespace        opened in a namespace of its own
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry number(.param .u64 out)
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
constexpr unsigned kBlocks = 64;

struct Driver {
  explicit Driver(void* opened) : library(opened) {}
  template <class Function>
  Function* get(Function*, const char* name) const {
    return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
  }
  void* library;
};
// The driver's own function, by the name that the header's macro leads to.
#define TS_TEXT(name) #name
#define TS_NAME(name) TS_TEXT(name)
#define TS_GET(driver, name) driver.get(&name, TS_NAME(name))

bool initialise(const Driver& driver) {
  auto* const init = TS_GET(driver, cuInit);
  return init && init(0) == CUDA_SUCCESS;
}

class Kernel {
 public:
  explicit Kernel(const Driver& driver) : driver_(driver) {
    CUcontext context;
    CUmodule module;
    ready_ = TS_GET(driver, cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS &&
             TS_GET(driver, cuCtxSetCurrent)(context) == CUDA_SUCCESS &&
             TS_GET(driver, cuModuleLoadData)(&module, kPtx) == CUDA_SUCCESS &&
             TS_GET(driver, cuModuleGetFunction)(&function_, module, "number") == CUDA_SUCCESS &&
             TS_GET(driver, cuMemAlloc)(&out_, kBlocks * sizeof(unsigned)) == CUDA_SUCCESS;
  }
  // True if every block wrote its number.
  bool launch() {
    unsigned numbers[kBlocks] = {};
    void* arguments[] = {&out_};
    if (!ready_ ||
        TS_GET(driver_, cuLaunchKernel)(function_, kBlocks, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) !=
            CUDA_SUCCESS ||
        TS_GET(driver_, cuMemcpyDtoH)(numbers, out_, sizeof numbers) != CUDA_SUCCESS)
      return false;
    for (unsigned i = 0; i < kBlocks; ++i)
      if (numbers[i] != i) return false;
    return true;
  }

 private:
  const Driver& driver_;
  CUfunction function_ = nullptr;
  CUdeviceptr out_ = 0;
  bool ready_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const auto is = [&](const char* way) { return argc > 3 && strcmp(argv[3], way) == 0; };
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  const Driver by_path(is("namespace") ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW)
                                       : dlopen(argv[1], RTLD_NOW | RTLD_LOCAL));
  const auto initialise_by_name = [] { return initialise(Driver(dlopen("libcuda.so.1", RTLD_NOW))); };
  if (is("first_by_name") && !initialise_by_name()) return 1;
  if (!initialise(by_path)) return 1;
  Kernel kernel(by_path);
  if (!kernel.launch()) return 1;
  if (is("also_by_name") && !initialise_by_name()) return 1;
  close(open(argv[2], O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const timespec between{0, 20'000'000};
  while (sigtimedwait(&stop, nullptr, &between) != SIGTERM)
    if (!kernel.launch()) return 1;
  return 0;
}
