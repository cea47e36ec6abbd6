// The queues through which the work of a context reaches its device: rings of a fixed number of entries, which its
// streams share in turn. Hardware has CUDA_DEVICE_MAX_CONNECTIONS of them (8, at most 32) and does two things that
// programs notice behind a closed wait: a call blocks while the ring is full, and work of another stream that shares the
// queue waits, too. Any thread; owned by Context and Stream.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "softgpu/timing/engine.h"

namespace tessera::softgpu::driver {

class HardwareQueue : public std::enable_shared_from_this<HardwareQueue> {
 public:
  // Behind a wait for a value an H200 took 1,020 launches; the next one blocked (27 November 2026).
  static constexpr unsigned kEntries = 1 + 1020;

  static unsigned per_context();

  // A place in the ring for one operation, which gives it back when it is destroyed. Null: the ring is full.
  std::shared_ptr<void> try_enter();
  void wait_for_room();

  timing::OpRef wait;  // the last wait for a value in the queue, if any; guarded by Context::mutex

 private:
  void leave();

  std::mutex mutex_;  // guards the two below; innermost
  std::condition_variable room_;
  unsigned used_ = 0;
};

}  // namespace tessera::softgpu::driver
