#include "softgpu/driver/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tessera::softgpu::driver {
namespace {

// Relaxed: the lock of the file orders who writes and who adds up.
uint64_t load(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_relaxed);
}
void store(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_relaxed);
}

struct flock range(short type, int64_t at) {
  struct flock wanted {};
  wanted.l_type = type;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = at;
  wanted.l_len = 1;
  return wanted;
}

constexpr int64_t kOrder = -1;  // stands for the byte behind the words

}  // namespace

DeviceMemory::DeviceMemory(uint64_t capacity, const std::string& file) : capacity_(capacity) {
  if (file.empty()) return;
  file_.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file_.valid() || ftruncate(file_.get(), sizeof(Page)) != 0) return;
  void* mapped = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) return;
  auto* page = static_cast<Page*>(mapped);
  for (slot_ = 0; slot_ < kSlots; ++slot_)
    if (struct flock own = range(F_WRLCK, int64_t(slot_ * sizeof(uint64_t)));
        fcntl(file_.get(), F_OFD_SETLK, &own) == 0) {
      page_ = page;
      store(page_->bytes[slot_], 0);
      return;
    }
  munmap(mapped, sizeof(Page));
}

bool DeviceMemory::lock(short type, int64_t at) const {
  struct flock wanted = range(type, at == kOrder ? int64_t(sizeof(Page)) : at);
  int done = 0;
  do done = fcntl(file_.get(), F_OFD_SETLKW, &wanted);
  while (done != 0 && errno == EINTR);
  return done == 0;
}

uint64_t DeviceMemory::others() const {
  uint64_t sum = 0;
  for (uint64_t i = 0; page_ && i < kSlots; ++i) {
    const uint64_t bytes = i == slot_ ? 0 : load(page_->bytes[i]);
    if (!bytes) continue;
    struct flock probe = range(F_WRLCK, int64_t(i * sizeof(uint64_t)));
    const bool dead = fcntl(file_.get(), F_OFD_GETLK, &probe) == 0 && probe.l_type == F_UNLCK;
    if (!dead) sum += bytes;
  }
  return sum;
}

bool DeviceMemory::fits(uint64_t bytes) const {
  const uint64_t used = mine_ + others();
  return bytes <= capacity_ && used <= capacity_ - bytes;
}

bool DeviceMemory::take(uint64_t bytes) {
  const bool ordered = page_ && lock(F_WRLCK, kOrder);
  const bool taken = fits(bytes);
  if (taken) mine_ += bytes;
  if (taken && page_) store(page_->bytes[slot_], mine_);
  if (ordered) lock(F_UNLCK, kOrder);
  return taken;
}

void DeviceMemory::give(uint64_t bytes) {
  mine_ -= bytes;
  if (page_) store(page_->bytes[slot_], mine_);
}

uint64_t DeviceMemory::used() const {
  return mine_ + others();
}

void DeviceMemory::give_all() {
  if (page_) store(page_->bytes[slot_], 0);
}

bool DeviceMemory::take_back() {
  const uint64_t wanted = mine_;
  mine_ = 0;
  if (take(wanted)) return true;
  mine_ = wanted;
  return false;
}

}  // namespace tessera::softgpu::driver
