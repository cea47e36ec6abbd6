// The daemon's end of one connection. What lies unread in a socket is released with it, also descriptors that
// the peer sent, and the last close of a file may take as long as its owner likes: a TCP socket that lingers,
// a file on a server that is gone. So nothing that carries descriptors is ever taken out of the queue, and a
// socket with something of the kind in its queue is closed by a thread that ends: the end of a thread does
// not linger. Linux 6.16 and later do not deliver descriptors at all (refuse_descriptors); then all of this
// finds nothing. One thread.
#pragma once

#include "base/scoped_fd.h"

namespace tessera::ipc {

// Nobody who connects to this listening socket can send descriptors. Older kernels know no such option.
void refuse_descriptors(int listen_socket);

class PeerSocket {  // owns the connection
 public:
  PeerSocket() = default;
  explicit PeerSocket(base::ScopedFd fd) : fd_(std::move(fd)) {}
  PeerSocket(PeerSocket&&) noexcept = default;
  PeerSocket& operator=(PeerSocket&& other) noexcept {
    close();
    fd_ = std::move(other.fd_);
    return *this;
  }
  ~PeerSocket() { close(); }
  int get() const { return fd_.get(); }

 private:
  void close();
  base::ScopedFd fd_;
};

}  // namespace tessera::ipc
