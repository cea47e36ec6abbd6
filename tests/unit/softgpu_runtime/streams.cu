// Streams, events, callbacks, several threads, default-stream flavours.
#include <atomic>
#include <thread>
#include <vector>

#include "checks.h"

namespace checks {
namespace {

__global__ void add(int* p, int v) {
  *p += v;
}
__global__ void times(int* p, int v) {
  *p *= v;
}
__global__ void spin(int* p, int rounds) {
  int x = *p;
  for (int i = 0; i < rounds; ++i) x = x * 1664525 + 1013904223;
  if (x == 0x12345678) *p = x;  // keeps the loop
}

int read(int* device) {
  int value = -1;
  OK(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

int* zero() {
  int* p = nullptr;
  OK(cudaMalloc(&p, sizeof *p));
  OK(cudaMemset(p, 0, sizeof *p));
  OK(cudaDeviceSynchronize());
  return p;
}

void order_by_event() {
  int* p = zero();
  cudaStream_t first, second;
  cudaEvent_t event;
  OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (int round = 0; round < 20; ++round) {  // ((x + 3) * 2), each half in another stream
    spin<<<1, 32, 0, first>>>(p, 1000);
    add<<<1, 1, 0, first>>>(p, 3);
    OK(cudaEventRecord(event, first));
    OK(cudaStreamWaitEvent(second, event, 0));
    times<<<1, 1, 0, second>>>(p, 2);
    OK(cudaEventRecord(event, second));
    OK(cudaStreamWaitEvent(first, event, 0));
  }
  OK(cudaStreamSynchronize(first));
  OK(cudaStreamSynchronize(second));
  int expected = 0;
  for (int round = 0; round < 20; ++round) expected = int(unsigned(expected + 3) * 2u);
  EXPECT_EQ(read(p), expected);
  OK(cudaEventDestroy(event));
  OK(cudaStreamDestroy(first));
  OK(cudaStreamDestroy(second));
  OK(cudaFree(p));
}

void query_and_priority() {
  int* p = zero();
  cudaStream_t stream;
  int least = 0, greatest = 0, priority = 1;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT(greatest <= least);
  OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  OK(cudaStreamGetPriority(stream, &priority));
  EXPECT_EQ(priority, greatest);
  unsigned flags = 0;
  OK(cudaStreamGetFlags(stream, &flags));
  EXPECT_EQ(flags, unsigned(cudaStreamNonBlocking));
  unsigned long long id = 0;
  OK(cudaStreamGetId(stream, &id));
  int device = -1;
  OK(cudaStreamGetDevice(stream, &device));
  EXPECT_EQ(device, 0);
  spin<<<64, 128, 0, stream>>>(p, 3000);
  cudaError_t status = cudaStreamQuery(stream);
  EXPECT(status == cudaErrorNotReady || status == cudaSuccess);
  OK(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaSuccess, cudaStreamQuery(stream));
  (void)cudaGetLastError();
  OK(cudaStreamDestroy(stream));
  OK(cudaFree(p));
}

void event_times() {
  int* p = zero();
  cudaEvent_t start, end, untimed;
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  OK(cudaEventQuery(start));  // never recorded counts as done
  OK(cudaEventRecord(start));
  spin<<<64, 128>>>(p, 2000);
  OK(cudaEventRecord(end));
  OK(cudaEventSynchronize(end));
  float ms = -1;
  OK(cudaEventElapsedTime(&ms, start, end));
  EXPECT(ms > 0);
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, start, untimed));
  OK(cudaEventDestroy(start));
  OK(cudaEventDestroy(end));
  OK(cudaEventDestroy(untimed));
  OK(cudaFree(p));
}

void callbacks() {
  static std::atomic<int> order{0};
  static int host_func_saw = -1, callback_saw = -1;
  static cudaError_t callback_status = cudaErrorUnknown;
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  OK(cudaLaunchHostFunc(
      stream, [](void*) { host_func_saw = order++; }, nullptr));
  OK(cudaStreamAddCallback(
      stream,
      [](cudaStream_t, cudaError_t status, void*) {
        callback_status = status;
        callback_saw = order++;
      },
      nullptr, 0));
  OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(host_func_saw, 0);
  EXPECT_EQ(callback_saw, 1);
  EXPECT_EQ(int(callback_status), int(cudaSuccess));
  OK(cudaStreamDestroy(stream));
}

// The legacy default stream waits for blocking streams and they for it.
void legacy_stream() {
  int* p = zero();
  cudaStream_t blocking;
  OK(cudaStreamCreate(&blocking));
  for (int i = 0; i < 10; ++i) {
    spin<<<1, 32, 0, blocking>>>(p, 2000);
    add<<<1, 1, 0, blocking>>>(p, 3);
    times<<<1, 1, 0, cudaStreamLegacy>>>(p, 2);
  }
  OK(cudaDeviceSynchronize());
  int expected = 0;
  for (int i = 0; i < 10; ++i) expected = (expected + 3) * 2;
  EXPECT_EQ(read(p), expected);
  OK(cudaStreamDestroy(blocking));
  OK(cudaFree(p));
}

// Each thread on its own default stream if compiled so, else all on one; either way each sees its own work in
// order.
void threads() {
  constexpr int kThreads = 4, kRounds = 25;
  std::vector<int*> cells;
  for (int t = 0; t < kThreads; ++t) cells.push_back(zero());
  std::vector<int> results(kThreads, -1);
  std::vector<std::thread> running;
  for (int t = 0; t < kThreads; ++t) {
    running.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) add<<<1, 1>>>(cells[t], t + 1);
      cudaMemcpyAsync(&results[t], cells[t], sizeof(int), cudaMemcpyDeviceToHost, 0);
      cudaStreamSynchronize(0);
    });
  }
  for (std::thread& thread : running) thread.join();
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(results[t], kRounds * (t + 1));
}

}  // namespace

const Case kStreamCases[] = {{"order_by_event", order_by_event},
                             {"query_and_priority", query_and_priority},
                             {"event_times", event_times},
                             {"callbacks", callbacks},
                             {"legacy_stream", legacy_stream},
                             {"threads", threads},
                             {nullptr, nullptr}};

}  // namespace checks
