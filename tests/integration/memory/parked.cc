// A program with memory of its own that verifies it: adds one to words all over it, round by round, and reads them at the end.
// Exit status 0: every word is right. Through the plain driver API; it knows nothing of Tessera.
//
//   parked MIB ROUNDS FILE [managed|shared]
//
// A byte goes to FILE for each round. It makes no call of the driver while FILE.pause exists. Memory that is not there yet is
// asked for again.
#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/integration/sharing/driver_program.h"

namespace {

constexpr size_t kMiB = size_t(1) << 20, kBlockBytes = 4 * kMiB;
constexpr unsigned kWords = 256;  // at the beginning of each block

constexpr char kPtx[] = R"(
.version 8.0
.target sm_75
.address_size 64

.visible .entry add_one(.param .u64 to)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [to];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  ld.global.u32 %r2, [%rd3];
  add.u32 %r3, %r2, 1;
  st.global.u32 [%rd3], %r3;
  ret;
}
)";

CUdeviceptr allocate() {
  CUdeviceptr p = 0;
  CUresult made;
  while ((made = cuMemAlloc(&p, kBlockBytes)) == CUDA_ERROR_OUT_OF_MEMORY) usleep(5000);
  CHECK(made);
  return p;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const size_t n_blocks = size_t(std::atoi(argv[1])) * kMiB / kBlockBytes;
  const unsigned rounds = unsigned(std::atoi(argv[2]));
  const std::string file = argv[3], kind = argc > 4 ? argv[4] : "";
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction add_one;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, kPtx));
  CHECK(cuModuleGetFunction(&add_one, module, "add_one"));
  CUdeviceptr extra;
  CUipcMemHandle handle;
  if (kind == "managed") CHECK(cuMemAllocManaged(&extra, kMiB, CU_MEM_ATTACH_GLOBAL));
  if (kind == "shared") {
    CHECK(cuMemAlloc(&extra, kMiB));
    CHECK(cuIpcGetMemHandle(&handle, extra));
  }
  std::vector<CUdeviceptr> blocks;
  for (size_t i = 0; i < n_blocks; ++i) {
    blocks.push_back(allocate());
    CHECK(cuMemsetD32(blocks.back(), unsigned(i), kWords));
  }
  const int progress = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (progress < 0) return 2;
  for (unsigned round = 0; round < rounds; ++round) {
    for (CUdeviceptr block : blocks) {
      void* arguments[] = {&block};
      CHECK(cuLaunchKernel(add_one, 1, 1, 1, kWords, 1, 1, 0, nullptr, arguments, nullptr));
    }
    CHECK(cuCtxSynchronize());
    if (write(progress, ".", 1) != 1) return 2;
    while (access((file + ".pause").c_str(), F_OK) == 0) usleep(1000);
  }
  std::vector<unsigned> words(kWords);
  for (size_t i = 0; i < blocks.size(); ++i) {
    CHECK(cuMemcpyDtoH(words.data(), blocks[i], kWords * sizeof words[0]));
    for (unsigned word : words) {
      if (word == unsigned(i) + rounds) continue;
      std::fprintf(stderr, "parked: %u instead of %u in block %zu\n", word, unsigned(i) + rounds, i);
      return 1;
    }
  }
  return 0;
}
