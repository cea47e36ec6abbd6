#include "softgpu/timing/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "softgpu/timing/place.h"

namespace tessera::softgpu::timing {

constexpr uint64_t kSlots = 1024;
struct DeviceMemoryPage {
  uint64_t bytes[kSlots];
};

namespace {

using Page = DeviceMemoryPage;

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

// `file` is locked by nobody for the words of processes that are gone.
uint64_t sum_of_living(int file, const Page& page, uint64_t except) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < kSlots; ++i) {
    const uint64_t bytes = i == except ? 0 : load(page.bytes[i]);
    if (!bytes) continue;
    struct flock probe = range(F_WRLCK, int64_t(i * sizeof(uint64_t)));
    const bool dead = fcntl(file, F_OFD_GETLK, &probe) == 0 && probe.l_type == F_UNLCK;
    if (!dead) sum += bytes;
  }
  return sum;
}

// All of the page: a hole for which the disk has no room is a signal to whoever touches it, as is a file over the
// limit of the process.
bool make_room(int file) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof(Page)) return false;
  return posix_fallocate(file, 0, sizeof(Page)) == 0;
}

}  // namespace

std::string memory_count_of(unsigned device) {
  if (std::getenv("TESSERA_SOFTGPU_LOCAL")) return "";
  const auto folder = runtime_directory(device);
  return folder.ok() ? folder.value() + "/memory" : "";
}

uint64_t counted_in(const std::string& file) {
  const base::ScopedFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.valid() || lseek(opened.get(), 0, SEEK_END) < off_t(sizeof(Page))) return 0;
  void* mapped = mmap(nullptr, sizeof(Page), PROT_READ, MAP_SHARED, opened.get(), 0);
  if (mapped == MAP_FAILED) return 0;
  const uint64_t sum = sum_of_living(opened.get(), *static_cast<const Page*>(mapped), kSlots);
  munmap(mapped, sizeof(Page));
  return sum;
}

DeviceMemory::DeviceMemory(uint64_t capacity, const std::string& file) : capacity_(capacity) {
  open(file);
}

void DeviceMemory::move_to(uint64_t capacity, const std::string& file) {
  capacity_ = capacity;
  if (page_) munmap(page_, sizeof(Page));
  page_ = nullptr;
  file_.reset();
  open(file);
}

void DeviceMemory::open(const std::string& file) {
  if (file.empty()) return;
  file_.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file_.valid() || !make_room(file_.get())) return;
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
  return page_ ? sum_of_living(file_.get(), *page_, slot_) : 0;
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

}  // namespace tessera::softgpu::timing
