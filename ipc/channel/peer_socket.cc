#include "ipc/channel/peer_socket.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>

#include <cerrno>
#include <new>

#ifndef SO_PASSRIGHTS  // Linux 6.16
#define SO_PASSRIGHTS 83
#endif

namespace tessera::ipc {
namespace {

constexpr int kMostUnread = 1000;  // packets; more than fit into the usual buffer

struct Handover {
  sem_t copied, closed;
};

// A copy of all descriptors, so that the daemon's close is not the last; the end of the thread is.
void* hold_until_closed(void* handover) {
  auto* h = static_cast<Handover*>(handover);
  (void)::unshare(CLONE_FILES);
  ::sem_post(&h->copied);
  while (::sem_wait(&h->closed) != 0 && errno == EINTR) {
  }
  delete h;
  return nullptr;
}

// Without memory or threads the socket is closed here, whatever that takes.
void close_by_a_thread(base::ScopedFd fd) {
  auto* h = new (std::nothrow) Handover;
  if (h == nullptr) return;
  ::sem_init(&h->copied, 0, 0);
  ::sem_init(&h->closed, 0, 0);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the daemon's thread's
  pthread_t thread;
  const bool started = ::pthread_create(&thread, nullptr, hold_until_closed, h) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) {
    delete h;
    return;
  }
  ::pthread_detach(thread);
  while (::sem_wait(&h->copied) != 0 && errno == EINTR) {
  }
  fd.reset();
  ::sem_post(&h->closed);
}

enum class Queue { kEmpty, kPacket, kDescriptors };

// Needs SO_PASSCRED: each packet, also an empty one, then has credentials; the end of the stream has none.
// There is no room for descriptors, so that none is taken.
Queue look_at_queue(int socket) {
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof(ucred))];
  msghdr m{};
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  ssize_t n;
  do n = ::recvmsg(socket, &m, MSG_PEEK | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0 || m.msg_controllen == 0) return Queue::kEmpty;
  return (m.msg_flags & MSG_CTRUNC) != 0 ? Queue::kDescriptors : Queue::kPacket;
}

}  // namespace

void refuse_descriptors(int listen_socket) {
  const int no = 0;
  (void)::setsockopt(listen_socket, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof no);
}

void PeerSocket::close() {
  if (!fd_.valid()) return;
  const int yes = 1;
  (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
  ::shutdown(fd_.get(), SHUT_RD);  // nothing more can come; what was sent can still be read over there
  for (int i = 0; i < kMostUnread; ++i) {
    char nothing;
    switch (look_at_queue(fd_.get())) {
      case Queue::kEmpty:
        return fd_.reset();
      case Queue::kPacket:
        (void)::recv(fd_.get(), &nothing, sizeof nothing, MSG_DONTWAIT);
        continue;
      case Queue::kDescriptors:
        return close_by_a_thread(std::move(fd_));
    }
  }
  close_by_a_thread(std::move(fd_));
}

}  // namespace tessera::ipc
