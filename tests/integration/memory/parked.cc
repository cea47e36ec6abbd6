// A program with memory of its own that verifies it: adds one to words all over it, round by round, and reads them at the end.
// Exit status 0: every word is right. Through the plain driver API; it knows nothing of Tessera.
//
//   parked MIB ROUNDS FILE [KIND]
//     managed, shared   has such memory besides
//     event             has an event that another process may open
//     variable          its code has a managed variable
//     huge              has more memory than the host, and touches none of it
//     captures          captures a graph while FILE.pause exists
//     second            has memory on its second GPU, too
//     collectives       has loaded code from a file with a name of NCCL's
//     endless           a stream of it waits while FILE.pause exists
//     once              ends with status 2 where memory is refused; others ask again
//     allocator:FILE    like `once`, but that the first refusal is expected: loads this library before
//     more              like `once`, and asks for as much again after its rounds
//     capture           like `once`, and first asks in a capture for more than there is
//     sleeps            is an engine: keeps its memory on the host while FILE.sleep exists, and says so by FILE.asleep
//
// A byte goes to FILE for each round, and one to FILE.refused for each refusal. It makes no call of the driver while
// FILE.pause exists.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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

int append_to(const std::string& file) {
  return open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

// Ends the program if memory is refused more often.
CUdeviceptr allocate(size_t bytes, const std::string& file, unsigned refusals_left) {
  CUdeviceptr p = 0;
  for (;;) {
    const CUresult made = cuMemAlloc(&p, bytes);
    if (made == CUDA_SUCCESS) return p;
    if (made != CUDA_ERROR_OUT_OF_MEMORY) CHECK(made);
    if (refusals_left-- == 0) std::exit(2);
    const int told = append_to(file + ".refused");
    if (told < 0 || write(told, ".", 1) != 1) std::exit(2);
    close(told);
    usleep(5000);
  }
}

void ask_in_a_capture() {
  CUstream stream;
  CUgraph graph;
  CUdeviceptr p;
  size_t free_bytes, total_bytes;
  CHECK(cuMemGetInfo(&free_bytes, &total_bytes));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  if (cuMemAlloc(&p, free_bytes + kBlockBytes) != CUDA_ERROR_OUT_OF_MEMORY) std::exit(3);
  CHECK(cuStreamEndCapture(stream, &graph));
}

// One step of an engine: gives its memory back, or takes it again, somewhere else.
void sleep_or_wake(const std::string& file, std::vector<CUdeviceptr>* blocks, std::vector<unsigned>* kept,
                   CUdeviceptr* all) {
  const bool sleeps = access((file + ".sleep").c_str(), F_OK) == 0;
  if (sleeps != kept->empty()) return;
  const size_t bytes = blocks->size() * kBlockBytes;
  kept->resize(blocks->size() * kWords);
  if (!sleeps) CHECK(cuMemAlloc(all, bytes));
  for (size_t i = 0; i < blocks->size(); ++i) {
    unsigned* words = kept->data() + i * kWords;
    if (!sleeps) (*blocks)[i] = *all + i * kBlockBytes;
    CHECK(sleeps ? cuMemcpyDtoH(words, (*blocks)[i], kWords * sizeof *words)
                 : cuMemcpyHtoD((*blocks)[i], words, kWords * sizeof *words));
  }
  if (sleeps) {
    CHECK(cuMemFree(*all));
    close(append_to(file + ".asleep"));
  } else {
    kept->clear();
    unlink((file + ".asleep").c_str());
  }
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
  std::string code = kPtx;
  if (kind == "variable") code += ".visible .global .attribute(.managed) .align 4 .u32 managed;\n";
  CHECK(cuModuleLoadData(&module, code.c_str()));
  CHECK(cuModuleGetFunction(&add_one, module, "add_one"));
  CUdeviceptr extra;
  CUipcMemHandle handle;
  if (kind == "managed") CHECK(cuMemAllocManaged(&extra, kMiB, CU_MEM_ATTACH_GLOBAL));
  if (kind == "shared") {
    CHECK(cuMemAlloc(&extra, kMiB));
    CHECK(cuIpcGetMemHandle(&handle, extra));
  }
  if (kind == "event") {
    CUevent event;
    CUipcEventHandle exported;
    CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CHECK(cuIpcGetEventHandle(&exported, event));
  }
  if (kind == "second") {
    CUcontext there;
    CHECK(cuDevicePrimaryCtxRetain(&there, 1));
    CHECK(cuCtxSetCurrent(there));
    CHECK(cuMemAlloc(&extra, kMiB));
    CHECK(cuCtxSetCurrent(context));
  }
  if (kind == "collectives") {
    const std::string library = file + ".libnccl/libnccl.so.2";
    std::filesystem::create_directory(file + ".libnccl");
    std::ofstream(library) << kPtx;
    CHECK(cuModuleLoad(&module, library.c_str()));
  }
  if (kind == "huge") {
    struct sysinfo host = {};
    if (sysinfo(&host) != 0) return 2;
    CHECK(cuMemAlloc(&extra, 2 * size_t(host.totalram) * host.mem_unit));
  }
  CUstream captures = nullptr;
  CUgraph graph = nullptr;
  if (kind == "captures") CHECK(cuStreamCreate(&captures, CU_STREAM_NON_BLOCKING));
  CUstream waits = nullptr;
  unsigned* gate = nullptr;
  if (kind == "endless") {
    CHECK(cuStreamCreate(&waits, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocHost(reinterpret_cast<void**>(&gate), sizeof *gate));
    *gate = 0;
  }
  const unsigned refusals_left = kind == "once" || kind == "more" || kind == "capture" ? 0
                                 : kind.starts_with("allocator:")                      ? 1
                                                                                       : ~0u;
  if (kind.starts_with("allocator:") && !dlopen(kind.c_str() + sizeof "allocator:" - 1, RTLD_NOW)) return 2;
  if (kind == "capture") ask_in_a_capture();
  // At once: programs that wait for each other with half of theirs would wait for ever.
  CUdeviceptr all = allocate(n_blocks * kBlockBytes, file, refusals_left);
  std::vector<CUdeviceptr> blocks;
  for (size_t i = 0; i < n_blocks; ++i) {
    blocks.push_back(all + i * kBlockBytes);
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
    const bool endless = waits && round == 0;
    if (endless)
      CHECK(cuStreamWaitValue32(waits, reinterpret_cast<CUdeviceptr>(gate), 1, CU_STREAM_WAIT_VALUE_EQ));
    const bool capturing = captures && round == 0;
    if (capturing) CHECK(cuStreamBeginCapture(captures, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (write(progress, ".", 1) != 1) return 2;
    std::vector<unsigned> kept;
    while (access((file + ".pause").c_str(), F_OK) == 0) {
      if (kind == "sleeps") sleep_or_wake(file, &blocks, &kept, &all);
      usleep(1000);
    }
    if (endless) std::atomic_ref(*gate).store(1);
    if (capturing) CHECK(cuStreamEndCapture(captures, &graph));
  }
  if (kind == "more" && cuMemAlloc(&extra, n_blocks * kBlockBytes) != CUDA_SUCCESS) return 2;
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
