// A rank of a job that reduces over several GPUs, through the plain driver API. Each step is a kernel that computes and one
// that stands in for a ring all-reduce: ranks pass numbers on by stores of system scope into their neighbour's memory, and
// each spins until its own has come. It knows nothing of Tessera.
//
//   rank RANK|all SIZE STEPS FOLDER [BLOCKS ITERATIONS]
//
// It runs on device RANK; `all`: as each of the ranks, whose launches one thread makes in turn. STEPS 0: until SIGTERM. A step computes in 16 blocks, how long is random, or as it is told. It waits for FOLDER/go, loads the ring as if it were NCCL's, and appends a
// byte to FOLDER/rankRANK.steps for each step. Once FOLDER/stop is there its rings wait for nobody. Exit
// status 0: every sum was right, or some ring waited for nobody.
#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "tests/integration/sharing/driver_program.h"

namespace {

using tessera::test::g_stop;

constexpr char kCompute[] = R"(
.version 8.0
.target sm_80
.address_size 64

.visible .entry compute(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .f32 %f<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mul.lo.u32 %r2, %r2, %r3;
  mov.u32 %r3, %tid.x;
  add.u32 %r2, %r2, %r3;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  mov.f32 %f1, 0f3F000000;
$L1:
  ld.global.f32 %f2, [%rd3];
  fma.rn.f32 %f1, %f1, %f2, %f1;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $L1;
  st.global.f32 [%rd3], %f1;
  ret;
}
)";

// A word that is passed on: the step in its upper half, the number in its lower. Two steps have places of their own, because
// a rank may be one step ahead of its neighbour. `out`: the sum of this step is added to it.
constexpr char kRing[] = R"(
.version 8.0
.target sm_80
.address_size 64

.visible .entry ncclRing(.param .u64 mine, .param .u64 next, .param .u64 stop, .param .u64 out, .param .u32 size,
                         .param .u32 step, .param .u32 number)
{
  .reg .pred %p<4>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<10>;
  ld.param.u64 %rd1, [mine];
  ld.param.u64 %rd2, [next];
  ld.param.u64 %rd3, [stop];
  ld.param.u64 %rd4, [out];
  ld.param.u32 %r1, [size];
  ld.param.u32 %r2, [step];
  ld.param.u32 %r3, [number];
  mov.u32 %r4, 1;
  mov.u32 %r5, %r3;
  and.b32 %r6, %r2, 1;
  mul.lo.u32 %r6, %r6, %r1;
$NEXT:
  setp.ge.u32 %p1, %r4, %r1;
  @%p1 bra $DONE;
  add.u32 %r8, %r6, %r4;
  mul.wide.u32 %rd5, %r8, 8;
  add.u64 %rd6, %rd2, %rd5;
  add.u64 %rd7, %rd1, %rd5;
  mov.b64 %rd8, {%r3, %r2};
  atom.exch.release.sys.global.b64 %rd9, [%rd6], %rd8;
$SPIN:
  ld.acquire.sys.global.u64 %rd9, [%rd7];
  mov.b64 {%r9, %r10}, %rd9;
  setp.eq.u32 %p2, %r10, %r2;
  @%p2 bra $CAME;
  ld.acquire.sys.global.u32 %r11, [%rd3];
  setp.ne.u32 %p3, %r11, 0;
  @%p3 bra $DONE;
  nanosleep.u32 100000;
  bra $SPIN;
$CAME:
  mov.u32 %r3, %r9;
  add.u32 %r5, %r5, %r3;
  add.u32 %r4, %r4, 1;
  bra $NEXT;
$DONE:
  ld.global.u32 %r9, [%rd4];
  add.u32 %r9, %r9, %r5;
  st.global.u32 [%rd4], %r9;
  ret;
}
)";

constexpr size_t kInboxBytes = 4096;
constexpr unsigned kThreads = 32;  // of a block that computes

void wait_for(const std::string& file) {
  while (!std::filesystem::exists(file)) usleep(1000);
}

// Memory of another rank on its device, which the current context may then reach.
CUdeviceptr neighbours_inbox(const std::string& folder, unsigned rank) {
  const std::string file = folder + "/inbox" + std::to_string(rank);
  wait_for(file);
  CUipcMemHandle handle;
  std::ifstream(file).read(reinterpret_cast<char*>(&handle), sizeof handle);
  CUdevice device;
  CUcontext own, there;
  CUdeviceptr inbox;
  CHECK(cuDeviceGet(&device, int(rank)));
  CHECK(cuCtxGetCurrent(&own));
  CHECK(cuDevicePrimaryCtxRetain(&there, device));
  CHECK(cuCtxEnablePeerAccess(there, 0));
  CHECK(cuCtxSetCurrent(there));
  CHECK(cuIpcOpenMemHandle(&inbox, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CHECK(cuCtxSetCurrent(own));
  return inbox;
}

void tell_inbox(CUdeviceptr inbox, const std::string& folder, unsigned rank) {
  CUipcMemHandle handle;
  CHECK(cuIpcGetMemHandle(&handle, inbox));
  const std::string file = folder + "/inbox" + std::to_string(rank);
  std::ofstream(file + ".new").write(reinterpret_cast<const char*>(&handle), sizeof handle);
  std::filesystem::rename(file + ".new", file);
}

struct Options {
  unsigned size, steps, blocks, iterations;
  std::string folder;
  bool alone;  // it is all ranks, and knows their memory
};

class Rank {
 public:
  Rank(const Options& options, unsigned rank) : o_(options), rank_(rank), random_(rank) {
    CUdevice device;
    CUmodule module;
    CHECK(cuDeviceGet(&device, int(rank)));
    CHECK(cuDevicePrimaryCtxRetain(&context_, device));
    CHECK(cuCtxSetCurrent(context_));
    CHECK(cuModuleLoadData(&module, kCompute));
    CHECK(cuModuleGetFunction(&compute_, module, "compute"));
  }
  void load_ring() {
    CHECK(cuCtxSetCurrent(context_));
    const std::string library = o_.folder + "/" + name() + ".nccl/libnccl.so.2";
    std::filesystem::create_directories(std::filesystem::path(library).parent_path());
    std::ofstream(library) << kRing;
    CUmodule module;
    CHECK(cuModuleLoad(&module, library.c_str()));
    CHECK(cuModuleGetFunction(&ring_, module, "ncclRing"));
    CHECK(cuMemAlloc(&mine_, kInboxBytes));
    CHECK(cuMemAlloc(&out_, sizeof(uint32_t)));
    CHECK(cuMemAlloc(&results_, o_.blocks * kThreads * sizeof(float)));
    CHECK(cuMemsetD8(mine_, 0, kInboxBytes));
    CHECK(cuMemsetD32(out_, 0, 1));
    CHECK(cuCtxSynchronize());
    if (!o_.alone) tell_inbox(mine_, o_.folder, rank_);
    progress_ =
        open((o_.folder + "/" + name() + ".steps").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  }
  void meet(const Rank& next) {
    CHECK(cuCtxSetCurrent(context_));
    if (next.context_ != context_) CHECK(cuCtxEnablePeerAccess(next.context_, 0));
    next_ = next.mine_;
  }
  void meet(unsigned next) {
    CHECK(cuCtxSetCurrent(context_));
    next_ = next == rank_ ? mine_ : neighbours_inbox(o_.folder, next);
  }
  // False: nobody can be told of it.
  bool launch(unsigned step, CUdeviceptr stop) {
    CHECK(cuCtxSetCurrent(context_));
    unsigned n = o_.iterations ? o_.iterations : 1 + random_() % 2000, number = rank_ + step, size = o_.size;
    void* compute_arguments[] = {&results_, &n};
    CHECK(cuLaunchKernel(compute_, o_.blocks, 1, 1, kThreads, 1, 1, 0, nullptr, compute_arguments, nullptr));
    void* ring_arguments[] = {&mine_, &next_, &stop, &out_, &size, &step, &number};
    CHECK(cuLaunchKernel(ring_, 1, 1, 1, 1, 1, 1, 0, nullptr, ring_arguments, nullptr));
    return write(progress_, ".", 1) == 1;
  }
  // How far it runs ahead of its GPU is random.
  void wait_at_random() {
    CHECK(cuCtxSetCurrent(context_));
    if (random_() % 4 == 0) CHECK(cuCtxSynchronize());
  }
  uint32_t sum() const {
    uint32_t sum = 0;
    CHECK(cuCtxSetCurrent(context_));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&sum, out_, sizeof sum));
    return sum;
  }

 private:
  std::string name() const { return "rank" + std::to_string(rank_); }

  const Options& o_;
  const unsigned rank_;
  std::mt19937 random_;
  CUcontext context_ = nullptr;
  CUfunction compute_ = nullptr, ring_ = nullptr;
  CUdeviceptr mine_ = 0, next_ = 0, out_ = 0, results_ = 0;
  int progress_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 7) return 2;
  const auto number = [&](int at) { return unsigned(std::atoi(argv[at])); };
  const Options options{.size = number(2),
                        .steps = number(3),
                        .blocks = argc == 7 ? number(5) : 16,
                        .iterations = argc == 7 ? number(6) : 0,
                        .folder = argv[4],
                        .alone = std::string(argv[1]) == "all"};
  tessera::test::stop_on_sigterm();
  CHECK(cuInit(0));
  const unsigned first = options.alone ? 0 : number(1);
  std::deque<Rank> ranks;
  for (unsigned rank = first; rank < (options.alone ? options.size : first + 1); ++rank)
    ranks.emplace_back(options, rank);
  wait_for(options.folder + "/go");
  for (Rank& rank : ranks) rank.load_ring();
  for (size_t i = 0; i < ranks.size(); ++i)
    options.alone ? ranks[i].meet(ranks[(i + 1) % ranks.size()]) : ranks[i].meet((first + 1) % options.size);

  CUdeviceptr stop_address;
  uint32_t* stop;
  CHECK(cuMemHostAlloc(reinterpret_cast<void**>(&stop), sizeof *stop,
                       CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
  CHECK(cuMemHostGetDevicePointer(&stop_address, stop, 0));
  *stop = 0;
  std::atomic<bool> ended{false};
  std::thread watch([&] {
    for (; !ended; usleep(1000))
      if (std::filesystem::exists(options.folder + "/stop")) std::atomic_ref(*stop).store(1);
  });
  uint32_t expected = 0;
  unsigned step = 0;
  while (!g_stop && (options.steps == 0 || step < options.steps)) {
    ++step;
    for (Rank& rank : ranks)
      if (!rank.launch(step, stop_address)) return 1;
    for (Rank& rank : ranks) rank.wait_at_random();
    for (unsigned other = 0; other < options.size; ++other) expected += other + step;
  }
  bool right = true;
  for (const Rank& rank : ranks) {
    const uint32_t sum = rank.sum();
    std::printf("steps=%u sum=%u expected=%u\n", step, sum, expected);
    right &= sum == expected;
  }
  ended = true;
  watch.join();
  return right || std::atomic_ref(*stop).load() != 0 ? 0 : 3;
}
