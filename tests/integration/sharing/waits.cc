// Programs that wait for best-effort work in ways that no call tells, or end and fork with work queued, through the plain
// driver API. They know nothing of Tessera.
//
//   waits poll FILE    launches a kernel that stores a number into memory of the host, and spins until the number is there
//   waits contexts FILE  launches in two contexts in turn, and synchronises each
//   waits checkpoint FILE  checkpoints itself with work queued
//   waits free FILE    frees memory with work queued, which is done when that returns
//   waits reset FILE   resets its context with work queued
//   waits destroy FILE  destroys a stream with work queued, and waits for its context
//   waits refused FILE  waits for a stream in which nothing was launched, because the driver refuses it
//   waits busy FILE    launches until FILE.go is there; its last work ends with SIGTERM
//   waits fork|exec|exit FILE  launches until FILE.go is there, queues more, and: has a child that exits, and synchronises;
//                      becomes `waits exit FILE`; ends
//   waits make FOLDER  launches once FOLDER/make is there, records an event of several processes, and waits for SIGTERM
//   waits take FOLDER  is busy from FOLDER/take on, when it makes FOLDER/taken, until the work before that event has ended, which it waits for
//
// poll, contexts, checkpoint, free, reset, destroy and refused run until SIGTERM and append a byte to FILE for each round.
#include <cuda.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/integration/sharing/driver_program.h"

namespace {

using tessera::test::g_stop;

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64

.visible .entry tell(.param .u64 to, .param .u32 number)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [to];
  ld.param.u32 %r1, [number];
  st.volatile.global.u32 [%rd1], %r1;
  ret;
}
)";

struct Lane {  // a context of its own, and where its kernel stores
  CUcontext context;
  CUfunction tell;
  CUstream stream;
  uint32_t* word;
  CUdeviceptr device_word;
};

Lane open_lane(CUcontext context) {
  Lane lane{.context = context};
  CUmodule module;
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, kPtx));
  CHECK(cuModuleGetFunction(&lane.tell, module, "tell"));
  CHECK(cuStreamCreate(&lane.stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuMemHostAlloc(reinterpret_cast<void**>(&lane.word), sizeof *lane.word, CU_MEMHOSTALLOC_DEVICEMAP));
  *lane.word = 0;
  CHECK(cuMemHostGetDevicePointer(&lane.device_word, lane.word, 0));
  return lane;
}

CUresult launch_block(const Lane& lane, uint32_t number, unsigned threads) {
  CUdeviceptr to = lane.device_word;
  void* arguments[] = {&to, &number};
  return cuLaunchKernel(lane.tell, 1, 1, 1, threads, 1, 1, 0, lane.stream, arguments, nullptr);
}
void launch(const Lane& lane, uint32_t number) {
  CHECK(launch_block(lane, number, 1));
}

void round_done(int progress) {
  if (write(progress, ".", 1) != 1) std::exit(1);
}

void poll(const Lane& lane, int progress) {
  for (uint32_t n = 1; !g_stop; ++n) {
    launch(lane, n);
    while (std::atomic_ref(*lane.word).load(std::memory_order_acquire) != n) usleep(100);
    round_done(progress);
  }
}

void alternate(const Lane (&lanes)[2], int progress) {
  for (uint32_t n = 1; !g_stop; ++n) {
    for (const Lane& lane : lanes) {
      CHECK(cuCtxSetCurrent(lane.context));
      launch(lane, n);
    }
    for (const Lane& lane : lanes) {
      CHECK(cuCtxSetCurrent(lane.context));
      CHECK(cuStreamSynchronize(lane.stream));
      if (*lane.word != n) {
        std::fprintf(stderr, "waits: %u instead of %u\n", *lane.word, n);
        std::exit(1);
      }
    }
    round_done(progress);
  }
}

// Work is queued while it locks itself, and all of it has been done when that returns.
void checkpoint(const Lane& lane, int progress) {
  CUcheckpointLockArgs limit{};
  limit.timeoutMs = 60'000;
  for (uint32_t n = 1; !g_stop; ++n) {
    for (uint32_t i = 0; i < 3; ++i) launch(lane, n);
    CHECK(cuCheckpointProcessLock(getpid(), &limit));
    if (*lane.word != n) {
      std::fprintf(stderr, "waits: locked at %u instead of %u\n", *lane.word, n);
      std::exit(1);
    }
    CHECK(cuCheckpointProcessCheckpoint(getpid(), nullptr));
    CHECK(cuCheckpointProcessRestore(getpid(), nullptr));
    CHECK(cuCheckpointProcessUnlock(getpid(), nullptr));
    round_done(progress);
    usleep(2000);  // locked all the time, nobody could manage it
  }
}

// The driver waits for what runs before it frees.
void free_memory(const Lane& lane, int progress) {
  for (uint32_t n = 1; !g_stop; ++n) {
    CUdeviceptr memory;
    CHECK(cuMemAlloc(&memory, 4096));
    for (uint32_t i = 0; i < 3; ++i) launch(lane, n);
    CHECK(cuMemFree(memory));
    if (*lane.word != n) {
      std::fprintf(stderr, "waits: freed at %u instead of %u\n", *lane.word, n);
      std::exit(1);
    }
    round_done(progress);
  }
}

void reset(CUdevice device, int progress) {
  while (!g_stop) {
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    const Lane lane = open_lane(context);
    for (uint32_t i = 0; i < 3; ++i) launch(lane, 1);
    CHECK(cuDevicePrimaryCtxReset(device));
    round_done(progress);
    usleep(2000);  // without a context nobody could manage it
  }
}

void destroy(Lane lane, int progress) {
  for (uint32_t n = 1; !g_stop; ++n) {
    launch(lane, n);
    CHECK(cuStreamDestroy(lane.stream));
    CHECK(cuCtxSynchronize());
    if (*lane.word != n) {
      std::fprintf(stderr, "waits: %u instead of %u\n", *lane.word, n);
      std::exit(1);
    }
    CHECK(cuStreamCreate(&lane.stream, CU_STREAM_NON_BLOCKING));
    round_done(progress);
  }
}

void be_refused(const Lane& lane, int progress) {
  constexpr unsigned kTooMany = 4096;  // threads of a block
  while (!g_stop) {
    if (launch_block(lane, 1, kTooMany) == CUDA_SUCCESS) std::exit(1);
    CHECK(cuStreamSynchronize(lane.stream));
    round_done(progress);
  }
}

// A launch before the attachment counts for nobody, so that the work that lasts comes when PLACE.go is there.
void be_busy(const Lane& lane, const std::string& place, int progress) {
  for (uint32_t n = 1; !g_stop && access((place + ".go").c_str(), F_OK) != 0; ++n) {
    launch(lane, n);
    CHECK(cuStreamSynchronize(lane.stream));
    usleep(500);
  }
  launch(lane, 1);
  CHECK(cuLaunchHostFunc(
      lane.stream,
      [](void*) {
        while (!g_stop) usleep(500);
      },
      nullptr));
  round_done(progress);
  CHECK(cuStreamSynchronize(lane.stream));
}

// Launches one after the other until PLACE.go is there, then some more. The number of the last one.
uint32_t queue_work(const Lane& lane, const std::string& place) {
  const std::string go = place + ".go";
  uint32_t n = 0;
  for (; !g_stop && access(go.c_str(), F_OK) != 0; usleep(500))
    if (cuStreamQuery(lane.stream) == CUDA_SUCCESS) launch(lane, ++n);
  unlink(go.c_str());
  for (uint32_t i = 0; i < 3; ++i) launch(lane, ++n);
  return n;
}

void fork_behind_gate(const Lane& lane, const std::string& place, int progress) {
  const uint32_t n = queue_work(lane, place);
  const pid_t child = fork();
  if (child == 0) {
    (void)cuStreamQuery(lane.stream);  // a driver refuses it in a child
    std::exit(0);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    std::fprintf(stderr, "waits: the child ended with %d\n", status);
    std::exit(1);
  }
  if (cuStreamQuery(lane.stream) != CUDA_ERROR_NOT_READY) {
    std::fprintf(stderr, "waits: the child opened the gate\n");
    std::exit(1);
  }
  round_done(progress);
  CHECK(cuStreamSynchronize(lane.stream));
  if (*lane.word == n) return;
  std::fprintf(stderr, "waits: %u instead of %u\n", *lane.word, n);
  std::exit(1);
}

void wait_for_file(const std::string& path) {
  while (!g_stop && access(path.c_str(), F_OK) != 0) usleep(500);
}

// Whole, or not there.
void write_file(const std::string& path, const void* bytes, size_t size) {
  const std::string half = path + ".half";
  const int file = open(half.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || write(file, bytes, size) != ssize_t(size) || close(file) != 0 ||
      rename(half.c_str(), path.c_str()) != 0)
    std::exit(1);
}

void make(const Lane& lane, const std::string& folder) {
  CUevent event;
  CUipcEventHandle handle;
  CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  CHECK(cuIpcGetEventHandle(&handle, event));
  wait_for_file(folder + "/make");
  launch(lane, 1);
  CHECK(cuEventRecord(event, lane.stream));
  write_file(folder + "/recorded", &handle, sizeof handle);
  while (!g_stop) usleep(500);
}

void take(const Lane& lane, const std::string& folder) {
  static std::atomic<bool> over{false};
  CUstream other;
  CUevent event;
  CUipcEventHandle handle;
  CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  while (!g_stop && access((folder + "/take").c_str(), F_OK) != 0) {  // until it is seen to work
    launch(lane, 1);
    CHECK(cuStreamSynchronize(lane.stream));
    usleep(500);
  }
  launch(lane, 1);
  CHECK(cuLaunchHostFunc(
      lane.stream,
      [](void*) {
        while (!over && !g_stop) usleep(500);
      },
      nullptr));
  write_file(folder + "/taken", "", 0);
  wait_for_file(folder + "/recorded");
  const int file = open((folder + "/recorded").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 || read(file, &handle, sizeof handle) != ssize_t(sizeof handle)) std::exit(1);
  close(file);
  CHECK(cuIpcOpenEventHandle(&event, handle));
  CHECK(cuStreamWaitEvent(other, event, 0));
  CHECK(cuStreamSynchronize(other));
  over = true;
  CHECK(cuStreamSynchronize(lane.stream));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(
        stderr,
        "usage: waits poll|contexts|checkpoint|free|reset|destroy|refused|busy|fork|exec|exit FILE | "
        "waits make|take FOLDER\n");
    return 2;
  }
  const std::string mode = argv[1], place = argv[2];
  tessera::test::stop_on_sigterm();
  CUdevice device;
  CUcontext context;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  const Lane lane = open_lane(context);
  if (mode == "make") return make(lane, place), 0;
  if (mode == "take") return take(lane, place), 0;
  const int progress = open(place.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (progress < 0) return 1;
  if (mode == "poll") return poll(lane, progress), 0;
  if (mode == "checkpoint") return checkpoint(lane, progress), 0;
  if (mode == "free") return free_memory(lane, progress), 0;
  if (mode == "reset") return reset(device, progress), 0;
  if (mode == "destroy") return destroy(lane, progress), 0;
  if (mode == "refused") return be_refused(lane, progress), 0;
  if (mode == "busy") return be_busy(lane, place, progress), 0;
  if (mode == "fork") return fork_behind_gate(lane, place, progress), 0;
  if (mode == "exit") return queue_work(lane, place), 0;
  if (mode == "exec") {
    queue_work(lane, place);
    execl("/proc/self/exe", argv[0], "exit", place.c_str(), nullptr);
    return 1;
  }
  CUcontext second;
#if CUDA_VERSION >= 13000
  CHECK(cuCtxCreate(&second, nullptr, 0, device));
#else
  CHECK(cuCtxCreate(&second, 0, device));
#endif
  const Lane lanes[] = {lane, open_lane(second)};
  alternate(lanes, progress);
  return 0;
}
