// Memory and events shared between two processes: children of this one, which never initialises the driver.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>

#include "support.h"

namespace softgpu_driver_test {
namespace {

constexpr int kOk = 42;

#define CHILD_CU(call) \
  if (CUresult code_of_call = (call)) return int(code_of_call) & 0xff
#define CHILD_TRUE(condition) \
  if (!(condition)) return __LINE__ % 200 + 50

// The two ends of a conversation; messages are plain structs, descriptors go along.
class SocketPairEnd {
 public:
  explicit SocketPairEnd(int fd) : fd_(fd) {}
  template <class T>
  bool send(const T& value) const {
    return write(fd_, &value, sizeof value) == ssize_t(sizeof value);
  }
  template <class T>
  bool receive(T* value) const {
    return recv(fd_, value, sizeof *value, MSG_WAITALL) == ssize_t(sizeof *value);
  }
  bool send_fd(int fd) const {
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {};
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(fd_, &message, 0) == 1;
  }
  int receive_fd() const {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    int fd = -1;
    if (recvmsg(fd_, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
      std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
  }

 private:
  int fd_;
};

using Side = std::function<int(const SocketPairEnd&)>;

pid_t start(const Side& side, int mine, int other) {
  const pid_t pid = fork();
  if (pid) return pid;
  alarm(30);
  close(other);
  CUcontext context;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&context, nullptr, 0, 0) != CUDA_SUCCESS) _exit(1);
  exit(side(SocketPairEnd(mine)));
}

int status_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Exit statuses of both: 42 is success, -9 killed.
std::pair<int, int> run_pair(const Side& exporter, const Side& importer) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return {0, 0};
  const pid_t a = start(exporter, ends[0], ends[1]), b = start(importer, ends[1], ends[0]);
  close(ends[0]);
  close(ends[1]);
  return {status_of(a), status_of(b)};
}
const std::pair<int, int> kBothOk{kOk, kOk};

CUresult fill(CUdeviceptr p, uint32_t value, uint32_t n, CUstream stream = nullptr) {
  CUmodule module;
  CUfunction f;
  if (CUresult bad = cuModuleLoadData(&module, kPtx)) return bad;
  if (CUresult bad = cuModuleGetFunction(&f, module, "fill")) return bad;
  void* params[] = {&p, &value, &n};
  return cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, stream, params, nullptr);
}

TEST(Ipc, MemoryIsSeenByBoth) {
  EXPECT_EQ(kBothOk, run_pair(
                         [](const SocketPairEnd& link) {
                           CUdeviceptr before, p;
                           CUipcMemHandle handle;
                           CHILD_CU(cuMemAlloc(&before, 700));  // so that it does not begin at a page
                           CHILD_CU(cuMemAlloc(&p, 256));
                           CHILD_CU(cuMemsetD32(p, 5, 64));
                           CHILD_CU(cuIpcGetMemHandle(&handle, p + 8));  // names the whole allocation
                           CUdeviceptr own;
                           CHILD_TRUE(cuIpcOpenMemHandle(&own, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);
                           CHILD_CU(cuCtxSynchronize());
                           CHILD_TRUE(link.send(handle));
                           int done = 0;
                           CHILD_TRUE(link.receive(&done));
                           uint32_t values[64];
                           CHILD_CU(cuMemcpyDtoH(values, p, sizeof values));
                           CHILD_TRUE(values[0] == 9 && values[63] == 9);
                           return kOk;
                         },
                         [](const SocketPairEnd& link) {
                           CUipcMemHandle handle;
                           CHILD_TRUE(link.receive(&handle));
                           CUdeviceptr p, again, base;
                           CHILD_TRUE(cuIpcOpenMemHandle(&p, handle, 0) == CUDA_ERROR_INVALID_VALUE);
                           CHILD_CU(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
                           CHILD_CU(cuIpcOpenMemHandle(&again, handle, 1));
                           CHILD_TRUE(p == again);
                           size_t bytes = 0;
                           CHILD_CU(cuMemGetAddressRange(&base, &bytes, p + 16));
                           CHILD_TRUE(base == p && bytes == 256);
                           uint32_t value = 0;
                           CHILD_CU(cuMemcpyDtoH(&value, p + 252, 4));
                           CHILD_TRUE(value == 5);
                           CHILD_TRUE(cuMemFree(p) == CUDA_ERROR_INVALID_VALUE);
                           CHILD_CU(fill(p, 9, 64));
                           CHILD_CU(cuCtxSynchronize());
                           CHILD_TRUE(link.send(int(1)));
                           CHILD_CU(cuIpcCloseMemHandle(p));
                           CHILD_CU(cuMemcpyDtoH(&value, p, 4));  // opened twice
                           CHILD_CU(cuIpcCloseMemHandle(p));
                           CHILD_TRUE(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
                           CHILD_CU(fill(p, 1, 64));  // no longer mapped
                           CHILD_TRUE(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
                           return kOk;
                         }));
}

TEST(Ipc, WhatCannotBeShared) {
  EXPECT_EQ(kBothOk,
            run_pair(
                [](const SocketPairEnd&) {
                  CUipcMemHandle handle;
                  CUipcEventHandle event_handle;
                  CUdeviceptr managed, pooled;
                  void* host;
                  CUevent event;
                  CHILD_CU(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
                  CHILD_CU(cuMemHostAlloc(&host, 64, 0));
                  CHILD_CU(cuMemAllocAsync(&pooled, 64, nullptr));
                  CHILD_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
                  CHILD_TRUE(cuIpcGetMemHandle(&handle, managed) == CUDA_ERROR_INVALID_VALUE);
                  CHILD_TRUE(cuIpcGetMemHandle(&handle, CUdeviceptr(host)) == CUDA_ERROR_INVALID_VALUE);
                  CHILD_TRUE(cuIpcGetMemHandle(&handle, pooled) == CUDA_ERROR_INVALID_VALUE);
                  CHILD_TRUE(cuIpcGetMemHandle(&handle, 4096) == CUDA_ERROR_INVALID_VALUE);
                  CHILD_TRUE(cuIpcGetEventHandle(&event_handle, event) == CUDA_ERROR_INVALID_HANDLE);
                  CHILD_TRUE(cuEventCreate(&event, CU_EVENT_INTERPROCESS) == CUDA_ERROR_INVALID_VALUE);
                  return kOk;
                },
                [](const SocketPairEnd&) {
                  CUipcMemHandle memory;
                  CUipcEventHandle event;
                  std::memset(&memory, 0x5a, sizeof memory);
                  std::memset(&event, 0x5a, sizeof event);
                  CUdeviceptr p;
                  CUevent e;
                  CHILD_TRUE(cuIpcOpenMemHandle(&p, memory, 1) == CUDA_ERROR_INVALID_HANDLE);
                  CHILD_TRUE(cuIpcOpenEventHandle(&e, event) == CUDA_ERROR_INVALID_HANDLE);
                  return kOk;
                }));
}

// The pages live as long as they are mapped; a ticket of a dead process opens nothing.
TEST(Ipc, MemoryOutlivesAnExporterThatIsKilled) {
  const auto [exporter, importer] = run_pair(
      [](const SocketPairEnd& link) {
        CUdeviceptr p, q;
        CUipcMemHandle handles[2];
        CHILD_CU(cuMemAlloc(&p, 256));
        CHILD_CU(cuMemAlloc(&q, 256));
        CHILD_CU(cuMemsetD32(p, 7, 64));
        CHILD_CU(cuCtxSynchronize());
        CHILD_CU(cuIpcGetMemHandle(&handles[0], p));
        CHILD_CU(cuIpcGetMemHandle(&handles[1], q));
        CHILD_TRUE(link.send(handles));
        int opened = 0;
        CHILD_TRUE(link.receive(&opened));
        raise(SIGKILL);
        return 1;
      },
      [](const SocketPairEnd& link) {
        CUipcMemHandle handles[2];
        CHILD_TRUE(link.receive(&handles));
        CUdeviceptr p, q;
        CHILD_CU(cuIpcOpenMemHandle(&p, handles[0], 1));
        CHILD_TRUE(link.send(int(1)));
        int nothing;
        CHILD_TRUE(!link.receive(&nothing));  // its end is closed: it is dead
        uint32_t value = 0;
        CHILD_CU(cuMemcpyDtoH(&value, p, 4));
        CHILD_TRUE(value == 7);
        CHILD_TRUE(cuIpcOpenMemHandle(&q, handles[1], 1) == CUDA_ERROR_MAP_FAILED);
        CHILD_CU(cuIpcCloseMemHandle(p));
        return kOk;
      });
  EXPECT_EQ(exporter, -SIGKILL);
  EXPECT_EQ(importer, kOk);
}

TEST(Ipc, EventsOrderWorkOfTwoProcesses) {
  EXPECT_EQ(kBothOk, run_pair(
                         [](const SocketPairEnd& link) {
                           CUdeviceptr p;
                           CUipcMemHandle memory;
                           CUipcEventHandle handle;
                           CUevent event;
                           CUstream stream;
                           Gate gate;
                           CHILD_CU(cuMemAlloc(&p, 256));
                           CHILD_CU(cuMemsetD32(p, 0, 64));
                           CHILD_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
                           CHILD_CU(cuCtxSynchronize());
                           CHILD_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
                           CHILD_CU(cuIpcGetMemHandle(&memory, p));
                           CHILD_CU(cuIpcGetEventHandle(&handle, event));
                           CHILD_CU(gate.hold(stream));
                           CHILD_CU(cuMemsetD32Async(p, 5, 64, stream));  // loading a kernel would wait
                           CHILD_CU(cuEventRecord(event, stream));
                           CHILD_TRUE(link.send(memory) && link.send(handle));
                           int waiting = 0;
                           CHILD_TRUE(link.receive(&waiting));
                           CHILD_TRUE(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
                           gate.open();
                           CHILD_TRUE(link.receive(&waiting));  // the other one has recorded it now
                           CHILD_CU(cuEventSynchronize(event));
                           uint32_t value = 0;
                           CHILD_CU(cuMemcpyDtoH(&value, p, 4));
                           CHILD_TRUE(value == 6);
                           return kOk;
                         },
                         [](const SocketPairEnd& link) {
                           CUipcMemHandle memory;
                           CUipcEventHandle handle;
                           CHILD_TRUE(link.receive(&memory) && link.receive(&handle));
                           CUdeviceptr p;
                           CUevent event;
                           CUstream stream;
                           CUmodule module;
                           CUfunction add;
                           CHILD_CU(cuIpcOpenMemHandle(&p, memory, 1));
                           CHILD_CU(cuIpcOpenEventHandle(&event, handle));
                           CHILD_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
                           CHILD_CU(cuModuleLoadData(&module, kPtx));
                           CHILD_CU(cuModuleGetFunction(&add, module, "add"));
                           CHILD_TRUE(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
                           CHILD_CU(cuStreamWaitEvent(stream, event, 0));
                           uint32_t one = 1, n = 64;
                           void* params[] = {&p, &one, &n};
                           CHILD_CU(cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, stream, params, nullptr));
                           CHILD_CU(cuEventRecord(event, stream));
                           CHILD_TRUE(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
                           CHILD_TRUE(link.send(int(1)) && link.send(int(2)));
                           CHILD_CU(cuStreamSynchronize(stream));
                           CHILD_CU(cuEventSynchronize(event));
                           uint32_t value = 0;
                           CHILD_CU(cuMemcpyDtoH(&value, p, 4));
                           CHILD_TRUE(value == 6);
                           return kOk;
                         }));
}

// A record whose process is gone holds nobody up.
TEST(Ipc, EventOfAKilledProcessIsOver) {
  const auto [exporter, importer] = run_pair(
      [](const SocketPairEnd& link) {
        CUipcEventHandle handle;
        CUevent event;
        Gate gate;
        CUstream stream;
        CHILD_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        CHILD_CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
        CHILD_CU(gate.hold(stream));
        CHILD_CU(cuEventRecord(event, stream));
        CHILD_CU(cuIpcGetEventHandle(&handle, event));
        CHILD_TRUE(link.send(handle));
        int waiting = 0;
        CHILD_TRUE(link.receive(&waiting));
        raise(SIGKILL);
        return 1;
      },
      [](const SocketPairEnd& link) {
        CUipcEventHandle handle;
        CUevent event;
        CHILD_TRUE(link.receive(&handle));
        CHILD_CU(cuIpcOpenEventHandle(&event, handle));
        CHILD_TRUE(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        CHILD_CU(cuStreamWaitEvent(nullptr, event, 0));
        CHILD_TRUE(link.send(int(1)));
        CHILD_CU(cuEventSynchronize(event));
        CHILD_CU(cuCtxSynchronize());
        CHILD_CU(cuEventQuery(event));
        return kOk;
      });
  EXPECT_EQ(exporter, -SIGKILL);
  EXPECT_EQ(importer, kOk);
}

CUmemAllocationProp shareable() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

CUresult map_somewhere(CUmemGenericAllocationHandle handle, size_t bytes, CUdeviceptr* p) {
  const CUmemAccessDesc all = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (CUresult bad = cuMemAddressReserve(p, bytes, 0, 0, 0)) return bad;
  if (CUresult bad = cuMemMap(*p, bytes, 0, handle, 0)) return bad;
  return cuMemSetAccess(*p, bytes, &all, 1);
}

// Physical memory by descriptor.
TEST(Ipc, ShareableHandles) {
  constexpr size_t kBytes = size_t(2) << 20;
  EXPECT_EQ(
      kBothOk,
      run_pair(
          [](const SocketPairEnd& link) {
            const CUmemAllocationProp prop = shareable();
            CUmemGenericAllocationHandle handle;
            CUdeviceptr p;
            int fd = -1, done = 0;
            CHILD_CU(cuMemCreate(&handle, kBytes, &prop, 0));
            CHILD_CU(map_somewhere(handle, kBytes, &p));
            CHILD_CU(cuMemsetD32(p, 4, 64));
            CHILD_CU(cuCtxSynchronize());
            CHILD_CU(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
            CHILD_TRUE(link.send_fd(fd) && link.receive(&done));
            uint32_t value = 0;
            CHILD_CU(cuMemcpyDtoH(&value, p, 4));
            CHILD_TRUE(value == 9);
            return kOk;
          },
          [](const SocketPairEnd& link) {
            const int fd = link.receive_fd();
            CUmemGenericAllocationHandle handle;
            CUdeviceptr p;
            CUmemAllocationProp prop;
            CHILD_CU(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t(fd)),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
            close(fd);
            CHILD_CU(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
            CHILD_TRUE(prop.location.id == 0 && prop.type == CU_MEM_ALLOCATION_TYPE_PINNED);
            CHILD_CU(map_somewhere(handle, kBytes, &p));
            uint32_t value = 0;
            CHILD_CU(cuMemcpyDtoH(&value, p, 4));
            CHILD_TRUE(value == 4);
            CHILD_CU(fill(p, 9, 64));
            CHILD_CU(cuCtxSynchronize());
            CHILD_TRUE(link.send(int(1)));
            return kOk;
          }));
}

TEST(Ipc, PoolsAndTheirPointers) {
  EXPECT_EQ(kBothOk,
            run_pair(
                [](const SocketPairEnd& link) {
                  CUmemPoolProps props = {};
                  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
                  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
                  CUmemoryPool pool;
                  CUdeviceptr p;
                  CUmemPoolPtrExportData data;
                  int fd = -1, done = 0;
                  CHILD_CU(cuMemPoolCreate(&pool, &props));
                  CHILD_CU(cuMemAllocFromPoolAsync(&p, 256, pool, nullptr));
                  CHILD_CU(cuMemsetD32(p, 3, 64));
                  CHILD_CU(cuCtxSynchronize());
                  CHILD_CU(cuMemPoolExportToShareableHandle(&fd, pool,
                                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
                  CHILD_CU(cuMemPoolExportPointer(&data, p));
                  CHILD_TRUE(link.send_fd(fd) && link.send(data) && link.receive(&done));
                  return kOk;
                },
                [](const SocketPairEnd& link) {
                  const int fd = link.receive_fd();
                  CUmemPoolPtrExportData data;
                  CHILD_TRUE(fd >= 0 && link.receive(&data));
                  CUmemoryPool pool;
                  CUdeviceptr p, none;
                  CHILD_CU(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(intptr_t(fd)),
                                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
                  CHILD_TRUE(cuMemAllocFromPoolAsync(&none, 64, pool, nullptr) == CUDA_ERROR_INVALID_VALUE);
                  CHILD_CU(cuMemPoolImportPointer(&p, pool, &data));
                  uint32_t value = 0;
                  CHILD_CU(cuMemcpyDtoH(&value, p, 4));
                  CHILD_TRUE(value == 3);
                  CHILD_CU(cuMemFreeAsync(p, nullptr));
                  CHILD_CU(cuCtxSynchronize());
                  CHILD_TRUE(cuMemFree(p) == CUDA_ERROR_INVALID_VALUE);
                  CHILD_TRUE(link.send(int(1)));
                  return kOk;
                }));
}

}  // namespace
}  // namespace softgpu_driver_test
