// Runs a Model in real time for client processes: reads their messages, gives each its place in modelled
// time, tells them what ended. Used by the softgpu_arbiter program and, with one socket pair, by
// Engine::local. One thread; owns its descriptors. Modelled time follows CLOCK_MONOTONIC, `stretch` times
// more slowly; stamps are exact however late the thread wakes up. Clients and messages know CLOCK_MONOTONIC
// only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/scoped_fd.h"
#include "profiles/gpu_description.h"
#include "softgpu/timing/model.h"
#include "softgpu/timing/stretch.h"

namespace tessera::softgpu::timing {

class Arbiter {
 public:
  struct Options {
    int linger_ms = 5000;  // how long it outlives its last client
    int spin_us = 20;      // keeps looking after activity before it sleeps
    double stretch = 1;    // softgpu/timing/stretch.h
  };
  Arbiter(const profiles::GpuDescription& gpu, Mode mode, const Options& options);
  ~Arbiter();

  bool ok() const { return epoll_.valid() && timer_.valid(); }
  void listen_on(base::ScopedFd socket);   // accepts clients of the same user
  void add_client(base::ScopedFd socket);  // already connected
  void run();                              // until no client is left and linger_ms have passed

 private:
  struct Peer;
  struct Message;

  void accept_all();
  void wait_for_events();
  void read_peer(Peer& peer);
  void parse(Peer& peer);
  bool check_submit(const Peer& peer, const Message& message) const;
  void apply_messages();
  bool apply(const Message& message);
  void send_ended();
  void flush(Peer& peer);
  void arm(uint64_t at_ns);
  void remove_dead();
  uint64_t modelled_now_ns() const;

  const profiles::GpuDescription gpu_;
  const Mode mode_;
  const Options options_;
  const StretchedClock clock_;
  Model model_;
  base::ScopedFd epoll_, timer_, listener_;
  std::map<ClientId, std::unique_ptr<Peer>> peers_;
  std::vector<Message> inbox_;
  ClientId next_client_ = 1;
  uint64_t armed_ns_ = 0;
  uint64_t active_until_ns_ = 0;  // spin until then
  bool listener_ready_ = false;
};

}  // namespace tessera::softgpu::timing
