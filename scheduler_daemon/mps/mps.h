// NVIDIA's Multi-Process Service as the operator asks for it (decision D14): off, adopted where it runs, or
// started, watched and ended with tesserad, in folders of its own. What is so is in state(), with the reason
// where it is not as asked: programs then run without MPS. One thread; the server's loop watches watch_fd().
//
// Facts: nvidia-cuda-mps-control(1). `-f` keeps the control daemon in the foreground; CUDA_MPS_PIPE_DIRECTORY
// and CUDA_MPS_LOG_DIRECTORY say where; it leaves `control` and `nvidia-cuda-mps-control.pid` in the pipe
// directory; commands come on the standard input of a second call ("quit", "terminate_client").
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/scoped_fd.h"
#include "scheduler_daemon/stats/stats.h"

namespace tessera::mps {

struct Options {
  std::string mode = "off";  // off | adopt | manage
  std::string program = "nvidia-cuda-mps-control";
  std::string pipe_directory, log_directory;  // manage: created, private; adopt: where it runs
};

class Mps {
 public:
  explicit Mps(Options options);
  ~Mps();  // stop()
  Mps(const Mps&) = delete;

  void start();  // at most about two seconds
  void stop();   // ends what start() started; at most about five seconds

  int watch_fd() const { return process_.get(); }  // readable: call ended(); -1: nothing to watch
  void ended();  // starts it again, a few times; watch_fd() may be another one afterwards
  // While one that was started again gets ready: call check() at this time (CLOCK_MONOTONIC); 0: never.
  uint64_t next_check_ns() const { return ready_by_ns_ == 0 ? 0 : next_check_ns_; }
  bool check(uint64_t now_ns);  // true: state() changed
  const stats::Mps& state() const { return state_; }

 private:
  bool find();  // one that runs in pipe_directory already
  void adopt();
  void launch();
  bool settled(uint64_t now_ns);  // it is ready, has ended or takes too long
  void kill();
  pid_t spawn(const std::vector<std::string>& arguments, int standard_input) const;
  void inactive(const std::string& reason);

  Options options_;
  stats::Mps state_;
  bool ours_ = false;                             // in our folders: ended by stop()
  pid_t child_ = -1;                              // if this process started it; reaped here
  base::ScopedFd process_;                        // pidfd of the control daemon
  uint64_t ready_by_ns_ = 0, next_check_ns_ = 0;  // of one that is not ready yet; 0: there is none
};

}  // namespace tessera::mps
