#include <thread>

#include "support.h"

namespace softgpu_driver_test {
namespace {

class Streams : public Cuda {
 protected:
  CUstream stream(unsigned flags = CU_STREAM_DEFAULT) {
    CUstream s = nullptr;
    EXPECT_CU(cuStreamCreate(&s, flags));
    return s;
  }
  CUevent event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent e = nullptr;
    EXPECT_CU(cuEventCreate(&e, flags));
    return e;
  }
};

TEST_F(Streams, WorkInOneStreamIsOrdered) {
  CUdeviceptr p = alloc(4096);
  CUstream s = stream();
  Gate gate;
  ASSERT_CU(gate.hold(s));
  for (uint32_t i = 1; i <= 20; ++i) EXPECT_CU(cuMemsetD32Async(p, i, 1024, s));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_CU(cuStreamQuery(s));
  EXPECT_EQ(std::vector<uint32_t>(1024, 20), read(p, 1024));
}

TEST_F(Streams, LegacyStreamWaitsForBlockingStreams) {
  CUdeviceptr p = alloc(4);
  CUstream blocking = stream();
  Gate gate;
  ASSERT_CU(gate.hold(blocking));
  EXPECT_CU(cuMemsetD32Async(p, 1, 1, blocking));
  EXPECT_CU(cuMemsetD32Async(p, 2, 1, nullptr));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(nullptr));
  EXPECT_CU(cuStreamQuery(blocking));
  EXPECT_EQ(2u, read(p, 1)[0]);
}

TEST_F(Streams, BlockingStreamsWaitForTheLegacyStream) {
  CUdeviceptr p = alloc(4);
  CUstream blocking = stream(), other = stream(CU_STREAM_NON_BLOCKING);
  Gate gate;
  ASSERT_CU(gate.hold(CU_STREAM_LEGACY));
  EXPECT_CU(cuMemsetD32Async(p, 1, 1, nullptr));
  EXPECT_CU(cuMemsetD32Async(p, 2, 1, blocking));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
  // A non-blocking stream is not held up in either direction.
  CUdeviceptr q = alloc(4);
  EXPECT_CU(cuMemsetD32Async(q, 3, 1, other));
  EXPECT_CU(cuStreamSynchronize(other));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(blocking));
  EXPECT_EQ(2u, read(p, 1)[0]);
}

TEST_F(Streams, PerThreadStreamsAreBlockingAndApart) {
  Gate gate;
  ASSERT_CU(gate.hold(CU_STREAM_PER_THREAD));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
  std::thread([&] {
    ASSERT_CU(cuCtxSetCurrent(context));
    EXPECT_CU(cuStreamQuery(CU_STREAM_PER_THREAD));  // another stream: nothing in it
    unsigned long long id = 0;
    EXPECT_CU(cuStreamGetId(CU_STREAM_PER_THREAD, &id));
    EXPECT_NE(0u, id);
  }).join();
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(CU_STREAM_LEGACY));
}

TEST_F(Streams, EventsOrderStreams) {
  CUdeviceptr p = alloc(4);
  CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
  CUevent e = event(CU_EVENT_DISABLE_TIMING);
  EXPECT_CU(cuStreamWaitEvent(b, e, 0));  // never recorded: no effect
  Gate gate;
  ASSERT_CU(gate.hold(a));
  EXPECT_CU(cuMemsetD32Async(p, 1, 1, a));
  EXPECT_CU(cuEventRecord(e, a));
  EXPECT_CU(cuStreamWaitEvent(b, e, 0));
  EXPECT_CU(cuMemsetD32Async(p, 2, 1, b));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(e));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(b));
  EXPECT_CU(cuEventQuery(e));
  EXPECT_EQ(2u, read(p, 1)[0]);
}

TEST_F(Streams, ElapsedTimeIsModelledTime) {
  const size_t bytes = 1 << 20;
  CUdeviceptr p = alloc(bytes);
  CUstream s = stream();
  CUevent start = event(), middle = event(), end = event(), untimed = event(CU_EVENT_DISABLE_TIMING);
  float ms = -1;
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, end));  // not recorded
  EXPECT_CU(cuEventRecord(start, s));
  EXPECT_CU(cuMemsetD8Async(p, 1, bytes, s));
  EXPECT_CU(cuEventRecord(middle, s));
  EXPECT_CU(cuMemsetD8Async(p, 2, bytes, s));
  EXPECT_CU(cuMemsetD8Async(p, 3, bytes, s));
  EXPECT_CU(cuEventRecord(end, s));
  EXPECT_CU(cuEventRecord(untimed, s));
  EXPECT_CU(cuEventSynchronize(end));
  float first = 0, second = 0;
  EXPECT_CU(cuEventElapsedTime(&first, start, middle));
  EXPECT_CU(cuEventElapsedTime(&second, middle, end));
  // Never shorter than the description's memory allows (a fill moves half a MiB at 0.4 GB/s); longer when
  // this machine is late with the work itself.
  EXPECT_GT(first, 1.3f);
  EXPECT_GT(second, 2.6f);
  EXPECT_CU(cuEventElapsedTime(&ms, start, end));
  EXPECT_NEAR(first + second, ms, 1e-3f);
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, untimed));
}

TEST_F(Streams, WorkOfAThreadThatEndedGoesOn) {
  CUdeviceptr p = alloc(4);
  Gate gate;
  std::thread([&] {
    ASSERT_CU(cuCtxSetCurrent(context));
    ASSERT_CU(gate.hold(CU_STREAM_PER_THREAD));
    EXPECT_CU(cuMemsetD32Async(p, 6, 1, CU_STREAM_PER_THREAD));
  }).join();
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
  gate.open();
  EXPECT_EQ(6u, read(p, 1)[0]);
}

struct HostCall {
  std::vector<int>* log;
  int value;
  CUresult inside = CUDA_SUCCESS;
};
void CUDA_CB append(void* data) {
  auto* call = static_cast<HostCall*>(data);
  call->log->push_back(call->value);
  call->inside = cuCtxSynchronize();
}
void CUDA_CB append_callback(CUstream, CUresult, void* data) {
  append(data);
}

TEST_F(Streams, HostFunctionsRunInOrderAndMayNotCallCuda) {
  std::vector<int> log;
  HostCall first{&log, 1}, second{&log, 2}, third{&log, 3};
  CUstream s = stream();
  Gate gate;
  ASSERT_CU(gate.hold(s));
  EXPECT_CU(cuLaunchHostFunc(s, append, &first));
  EXPECT_CU(cuStreamAddCallback(s, append_callback, &second, 0));
  EXPECT_CU(cuLaunchHostFunc(s, append, &third));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_EQ((std::vector<int>{1, 2, 3}), log);
  EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED, first.inside);
}

TEST_F(Streams, MemoryOperations) {
  void* memory;
  ASSERT_CU(cuMemHostAlloc(&memory, 64, 0));
  auto* words = static_cast<volatile uint64_t*>(memory);
  for (int i = 0; i < 3; ++i) words[i] = 0;
  const CUdeviceptr p = reinterpret_cast<CUdeviceptr>(memory);
  CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
  EXPECT_CU(cuStreamWaitValue64(a, p, 5, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_CU(cuStreamWriteValue32(a, p + 8, 77, 0));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
  EXPECT_CU(cuStreamWriteValue64(b, p, 6, 0));
  EXPECT_CU(cuStreamSynchronize(a));
  EXPECT_EQ(77u, words[1]);
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  ops[0].waitValue.address = p;
  ops[0].waitValue.value = 2;
  ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
  ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  ops[1].writeValue.address = p + 16;
  ops[1].writeValue.value64 = 1ull << 40;
  EXPECT_CU(cuStreamBatchMemOp(a, 2, ops, 0));
  EXPECT_CU(cuStreamSynchronize(a));
  EXPECT_EQ(1ull << 40, words[2]);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, p + 2, 0, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(a, 64, 0, 0));
}

// Writes into host memory do not hold up the device, but whoever may see the memory comes after them.
TEST_F(Streams, MarkersAreOrderedWithWhatSeesThem) {
  void* memory;
  ASSERT_CU(cuMemHostAlloc(&memory, 64, 0));
  const CUdeviceptr mark = reinterpret_cast<CUdeviceptr>(memory), p = alloc(64);
  auto* words = static_cast<volatile uint32_t*>(memory);
  words[0] = 0;
  CUstream s = stream();
  CUfunction add = function("add");
  for (uint32_t i = 1; i <= 20; ++i) {
    EXPECT_CU(cuMemsetD32Async(p, i, 16, s));
    EXPECT_CU(cuStreamWriteValue32(s, mark, i, 0));
    EXPECT_CU(launch(add, 1, 32, s, p, 1u, 16u));       // sees only p
    EXPECT_CU(launch(add, 1, 32, s, mark, 1000u, 1u));  // adds to the mark just written
    EXPECT_CU(cuMemcpyDtoDAsync(p + 32, mark, 4, s));
  }
  Gate gate;
  ASSERT_CU(gate.hold(s));
  EXPECT_CU(cuStreamWriteValue32(s, mark, 7, 0));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  gate.open();
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_EQ(7u, words[0]);
  const std::vector<uint32_t> got = read(p, 16);
  EXPECT_EQ(21u, got[0]);
  EXPECT_EQ(1020u, got[8]);
}

TEST_F(Streams, DestroyedStreamFinishesItsWork) {
  CUdeviceptr p = alloc(4);
  CUstream s = stream();
  Gate gate;
  ASSERT_CU(gate.hold(s));
  EXPECT_CU(cuMemsetD32Async(p, 4, 1, s));
  EXPECT_CU(cuStreamDestroy(s));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(s));
  gate.open();
  EXPECT_CU(cuCtxSynchronize());
  EXPECT_EQ(4u, read(p, 1)[0]);
}

TEST_F(Streams, ContextWithPendingWorkCanBeDestroyed) {
  CUstream s = stream();
  CUdeviceptr p = alloc(64);
  ASSERT_CU(cuMemsetD32(p, 0, 16));
  ASSERT_CU(cuStreamWaitValue32(s, p, 1, CU_STREAM_WAIT_VALUE_EQ));  // for ever
  EXPECT_CU(cuMemsetD32Async(p, 4, 1, s));
  EXPECT_CU(cuCtxDestroy(context));
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
  context = nullptr;
}

TEST_F(Streams, PropertiesAndWrongHandles) {
  CUstream s;
  int priority = 0, least = 1, greatest = 1;
  ASSERT_CU(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(0, least);
  EXPECT_LT(greatest, 0);
  ASSERT_CU(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -100));
  EXPECT_CU(cuStreamGetPriority(s, &priority));
  EXPECT_EQ(greatest, priority);
  unsigned flags = 0;
  EXPECT_CU(cuStreamGetFlags(s, &flags));
  EXPECT_EQ(unsigned(CU_STREAM_NON_BLOCKING), flags);
  CUcontext owner = nullptr;
  EXPECT_CU(cuStreamGetCtx(s, &owner));
  EXPECT_EQ(context, owner);
  auto* wild = reinterpret_cast<CUstream>(0x1234560);
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(wild));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(wild));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(reinterpret_cast<CUevent>(s), s));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(reinterpret_cast<CUevent>(wild)));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&s, 0x80));
  CUcontext other;
  ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
  EXPECT_CU(cuStreamSynchronize(s));  // works in its own context
  EXPECT_CU(cuCtxDestroy(other));
}

// Streams and events carry their context: threads with another one, or none, record, wait and ask.
TEST_F(Streams, AndEventsWorkWithoutTheirContextCurrent) {
  CUdeviceptr p = alloc(64);
  CUstream s = stream(), t = stream();
  CUevent e = event(), f = event();
  CUcontext other;
  ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 0));
  CUevent foreign = event();
  ASSERT_CU(cuCtxPopCurrent(&other));
  for (CUcontext now : {other, static_cast<CUcontext>(nullptr)}) {
    Gate gate;
    ASSERT_CU(gate.hold(s));
    ASSERT_CU(cuMemsetD32Async(p, 5, 16, s));
    std::thread([&] {
      if (now) {
        ASSERT_CU(cuCtxSetCurrent(now));
      }
      EXPECT_CU(cuEventRecord(e, s));
      EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(foreign, s));
      EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(e));
      EXPECT_CU(cuStreamWaitEvent(t, e, 0));
      EXPECT_CU(cuEventRecord(f, t));
      EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(t));
      gate.open();
      EXPECT_CU(cuEventSynchronize(f));
      EXPECT_CU(cuStreamSynchronize(s));
      EXPECT_CU(cuStreamQuery(t));
      float ms = -1;
      EXPECT_CU(cuEventElapsedTime(&ms, e, f));
      EXPECT_GE(ms, 0);
      EXPECT_EQ(now ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT, cuStreamQuery(nullptr));
    }).join();
    EXPECT_EQ(5u, read(p, 1)[0]);
  }
  ASSERT_CU(cuCtxDestroy(other));
}

TEST_F(Streams, ManyThreadsShareAContext) {
  constexpr int kThreads = 6, kRounds = 40;
  CUdeviceptr p = alloc(kThreads * 4);
  CUstream shared = stream();
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      auto check = [&](CUresult r) { failed += r != CUDA_SUCCESS; };
      check(cuCtxSetCurrent(context));
      for (int i = 0; i < kRounds; ++i) {
        CUstream own;
        CUevent e;
        CUdeviceptr q;
        check(cuStreamCreate(&own, i % 2 ? CU_STREAM_NON_BLOCKING : 0));
        check(cuEventCreate(&e, 0));
        check(cuMemAlloc(&q, 64));
        check(cuMemsetD32Async(q, uint32_t(i), 16, own));
        check(cuMemcpyDtoDAsync(p + uint32_t(t) * 4, q, 4, own));
        check(cuEventRecord(e, own));
        check(cuStreamWaitEvent(shared, e, 0));
        check(cuMemsetD32Async(q, 0, 16, shared));
        if (i % 8 == 0) check(cuStreamSynchronize(shared));
        check(cuEventSynchronize(e));
        check(cuMemFree(q));
        check(cuEventDestroy(e));
        check(cuStreamDestroy(own));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(0, failed);
  EXPECT_EQ(std::vector<uint32_t>(kThreads, kRounds - 1), read(p, kThreads));
}

}  // namespace
}  // namespace softgpu_driver_test
