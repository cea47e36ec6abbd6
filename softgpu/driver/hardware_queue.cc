#include "softgpu/driver/hardware_queue.h"

#include <algorithm>
#include <cstdlib>

namespace tessera::softgpu::driver {

unsigned HardwareQueue::per_context() {
  constexpr int kUsual = 8, kMost = 32;
  const char* wanted = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return unsigned(std::clamp(wanted && *wanted ? std::atoi(wanted) : kUsual, 1, kMost));
}

std::shared_ptr<void> HardwareQueue::try_enter() {
  {
    std::lock_guard lock(mutex_);
    if (used_ == kEntries) return nullptr;
    ++used_;
  }
  return {this, [queue = shared_from_this()](void*) { queue->leave(); }};
}

void HardwareQueue::wait_for_room() {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [this] { return used_ < kEntries; });
}

void HardwareQueue::leave() {
  std::lock_guard lock(mutex_);
  if (used_-- == kEntries) room_.notify_all();
}

}  // namespace tessera::softgpu::driver
