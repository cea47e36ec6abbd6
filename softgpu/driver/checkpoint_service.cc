#include "softgpu/driver/checkpoint_service.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/scoped_fd.h"
#include "softgpu/timing/engine.h"

namespace tessera::softgpu::driver::checkpoint {
namespace {

struct Answer {
  CUresult result = CUDA_ERROR_NOT_PERMITTED;
  CUprocessState state = CU_PROCESS_STATE_FAILED;
};

base::ScopedFd& listening() {
  static auto* socket = new base::ScopedFd;  // never destroyed: its thread runs until the process is gone
  return *socket;
}

struct Address {
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t bytes;
  explicit Address(int pid)
      : bytes(socklen_t(offsetof(sockaddr_un, sun_path) + 1 +
                        size_t(std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1,
                                             "tessera-softgpu-checkpoint-%d", pid)))) {}
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

base::ScopedFd new_socket() {
  return base::ScopedFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

bool may_ask(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
         (who.uid == 0 || who.uid == ::geteuid());
}

CUresult carry_out_here(const Request& request) {
  switch (request.step) {
    case Step::kState:
      return CUDA_SUCCESS;
    case Step::kLock:
      return lock(std::chrono::milliseconds(request.limit_ms));
    case Step::kSave:
      return save();
    case Step::kRestore:
      return restore({request.pairs, request.n_pairs});
    case Step::kUnlock:
      return unlock();
  }
  return CUDA_ERROR_INVALID_VALUE;
}

void answer_one(int socket) {
  Request request;
  Answer answer;
  if (::recv(socket, &request, sizeof request, 0) != ssize_t(sizeof request) ||
      request.n_pairs > uint32_t(kMaxDevices))
    return;
  if (may_ask(socket)) answer = {carry_out_here(request), state()};
  (void)!::send(socket, &answer, sizeof answer, MSG_NOSIGNAL);
}

}  // namespace

void serve() {
  base::ScopedFd socket = new_socket();
  const Address own(::getpid());
  constexpr int kMostWaiting = 16;
  if (!socket.valid() || ::bind(socket.get(), own.get(), own.bytes) != 0 ||
      ::listen(socket.get(), kMostWaiting) != 0)
    return;
  listening() = std::move(socket);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the program's
  std::thread([] {
    const timing::OwnThread counted;
    while (listening().intact()) {  // a program may close what it did not open
      const base::ScopedFd one(::accept4(listening().get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (one.valid()) answer_one(one.get());
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void leave_to_the_parent() {
  listening().reset();
}

CUresult carry_out(int pid, const Request& request, CUprocessState* state_afterwards) {
  if (pid == ::getpid()) {
    const CUresult result = carry_out_here(request);
    if (state_afterwards) *state_afterwards = state();
    return result;
  }
  const base::ScopedFd socket = new_socket();
  const Address other(pid);
  if (pid <= 0 || ::connect(socket.get(), other.get(), other.bytes) != 0) {
    const bool lives = pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
    return lives ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  Answer answer;
  if (::send(socket.get(), &request, sizeof request, MSG_NOSIGNAL) != ssize_t(sizeof request) ||
      ::recv(socket.get(), &answer, sizeof answer, 0) != ssize_t(sizeof answer))
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (state_afterwards && answer.result == CUDA_SUCCESS) *state_afterwards = answer.state;
  return answer.result;
}

}  // namespace tessera::softgpu::driver::checkpoint
