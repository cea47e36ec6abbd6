#include "softgpu/driver/ipc.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <tuple>

#include "base/hash.h"
#include "base/scoped_fd.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {
namespace {

constexpr uint32_t kMemoryMagic = 0x4d475354, kEventMagic = 0x45475354;  // "TSGM", "TSGE"

// A descriptor of another process, if it still is the file that it was.
base::ScopedFd open_foreign(int pid, int fd, uint64_t inode) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  base::ScopedFd mine(open(path, O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (mine.valid() && (fstat(mine.get(), &status) != 0 || status.st_ino != inode)) mine.reset();
  return mine;
}

uint64_t inode_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

bool gone(int pid) {
  const base::ScopedFd process(int(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return errno == ESRCH;
  pollfd ended{process.get(), POLLIN, 0};  // a zombie counts as ended
  return poll(&ended, 1, 0) > 0;
}

// Tickets that this process has open, so that a second opening gives the same address.
using Key = std::tuple<const Context*, int32_t, uint64_t, uint64_t>;  // context, pid, inode, offset
struct Opened {
  uint64_t address;
  unsigned count;
};
std::mutex g_mutex;  // guards g_opened
std::map<Key, Opened>& opened() {
  static auto* map = new std::map<Key, Opened>;  // never destroyed
  return *map;
}

}  // namespace

uint64_t device_hash(const Context& context) {
  const auto& uuid = device_of(context).gpu.uuid;
  return base::fnv1a(uuid.data(), uuid.size());
}

CUresult make_ticket(const Context& context, uint64_t begin, uint64_t pool, MemoryTicket* ticket) {
  int fd = -1;
  uint64_t offset = 0;
  Allocation found;
  if (!Memory::get().find(begin, &found) || !Memory::get().backing(found.begin, &fd, &offset))
    return CUDA_ERROR_INVALID_VALUE;
  *ticket = {kMemoryMagic, getpid(), fd, 0, inode_of(fd), offset, found.bytes, device_hash(context), pool};
  return CUDA_SUCCESS;
}

CUresult open_ticket(const std::shared_ptr<Context>& context, const MemoryTicket& ticket, const void* pool,
                     uint64_t* address) {
  if (ticket.magic != kMemoryMagic || !ticket.bytes || ticket.device != device_hash(*context))
    return CUDA_ERROR_INVALID_HANDLE;
  if (ticket.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(g_mutex);
  const Key key{context.get(), ticket.pid, ticket.inode, ticket.offset};
  if (const auto it = opened().find(key); it != opened().end()) {
    Allocation still;
    if (Memory::get().find(it->second.address, &still) && still.context == context.get()) {
      ++it->second.count;
      *address = it->second.address;
      return CUDA_SUCCESS;
    }
    opened().erase(it);  // went with its context
  }
  const base::ScopedFd file = open_foreign(ticket.pid, ticket.fd, ticket.inode);
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) return CUDA_ERROR_MAP_FAILED;
  if (ticket.offset > uint64_t(status.st_size) || ticket.bytes > uint64_t(status.st_size) - ticket.offset)
    return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t before = ticket.offset % page_bytes(), bytes = before + ticket.bytes;
  void* mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), off_t(ticket.offset - before));
  if (mapped == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
  Allocation made;
  made.begin = reinterpret_cast<uint64_t>(mapped) + before;
  made.bytes = ticket.bytes;
  made.kind = MemoryKind::kImported;
  made.context = context.get();
  made.device = context->device;
  made.pool = pool;
  made.pages = std::shared_ptr<void>(mapped, [bytes](void* pages) { munmap(pages, bytes); });
  *address = made.begin;
  Memory::get().adopt(std::move(made));
  opened()[key] = {*address, 1};
  return CUDA_SUCCESS;
}

bool close_ticket(uint64_t address) {
  std::lock_guard lock(g_mutex);
  for (auto it = opened().begin(); it != opened().end(); ++it) {
    if (it->second.address != address) continue;
    if (--it->second.count == 0) {
      opened().erase(it);
      Memory::get().release(address);
    }
    return true;
  }
  return false;
}

// ---- events

std::shared_ptr<SharedEvent> SharedEvent::map(int fd) {
  void* page = mmap(nullptr, sizeof(EventPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED)
    return std::shared_ptr<SharedEvent>(new SharedEvent(fd, static_cast<EventPage*>(page)));
  close(fd);
  return nullptr;
}

std::shared_ptr<SharedEvent> SharedEvent::create() {
  const int fd = memfd_create("softgpu-event", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  if (ftruncate(fd, sizeof(EventPage)) != 0) {
    close(fd);
    return nullptr;
  }
  std::shared_ptr<SharedEvent> made = map(fd);
  if (made) made->page_->magic = kEventMagic;
  return made;
}

namespace {
struct EventTicket {
  uint32_t magic;
  int32_t pid, fd;
  uint32_t zero;
  uint64_t inode;
};
}  // namespace

std::shared_ptr<SharedEvent> SharedEvent::open(const CUipcEventHandle& handle) {
  EventTicket ticket;
  std::memcpy(&ticket, handle.reserved, sizeof ticket);
  if (ticket.magic != kEventMagic) return nullptr;
  base::ScopedFd file = open_foreign(ticket.pid, ticket.fd, ticket.inode);
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0 || status.st_size != sizeof(EventPage)) return nullptr;
  std::shared_ptr<SharedEvent> made = map(file.release());
  return made && made->page_->magic == kEventMagic ? made : nullptr;
}

SharedEvent::~SharedEvent() {
  munmap(page_, sizeof(EventPage));
  close(fd_);
}

void SharedEvent::describe(CUipcEventHandle* handle) const {
  const EventTicket ticket{kEventMagic, getpid(), fd_, 0, inode_of(fd_)};
  *handle = {};
  std::memcpy(handle->reserved, &ticket, sizeof ticket);
}

uint64_t SharedEvent::record() {
  const uint64_t number = page_->recorded.load(std::memory_order_relaxed) + 1;
  // Owner before number: whoever sees the record sees whose it is. Two processes that record at once would
  // be ordered by the device; here the later store wins, and both completions are seen.
  page_->owner[number % EventPage::kSlots].store(getpid(), std::memory_order_relaxed);
  const uint64_t before = page_->recorded.fetch_add(1, std::memory_order_acq_rel);  // pairs with last()
  if (before + 1 != number)
    page_->owner[(before + 1) % EventPage::kSlots].store(getpid(), std::memory_order_release);
  return before + 1;
}

void SharedEvent::complete(uint64_t number) {
  std::atomic<uint64_t>& slot = page_->done[number % EventPage::kSlots];
  uint64_t now = slot.load(std::memory_order_relaxed);
  while (now < number && !slot.compare_exchange_weak(now, number, std::memory_order_release)) {
  }
  page_->changes.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &page_->changes, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

bool SharedEvent::over(uint64_t number) const {
  const uint64_t slot = number % EventPage::kSlots;
  if (number == 0 || page_->done[slot].load(std::memory_order_acquire) >= number) return true;
  const int owner = page_->owner[slot].load(std::memory_order_acquire);
  return owner > 0 && owner != getpid() && gone(owner);
}

bool SharedEvent::wait_some(uint64_t number) const {
  const uint32_t seen = page_->changes.load(std::memory_order_acquire);
  if (over(number)) return true;
  const timespec patience{0, 20'000'000};
  syscall(SYS_futex, &page_->changes, FUTEX_WAIT, seen, &patience, nullptr, 0);
  return over(number);
}

}  // namespace tessera::softgpu::driver
