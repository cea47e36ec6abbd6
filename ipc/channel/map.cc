#include "ipc/channel/map.h"

#include <sys/mman.h>

#include <atomic>
#include <boost/interprocess/mapped_region.hpp>
#include <exception>
#include <memory>
#include <string>

namespace tessera::ipc {
namespace {

namespace bip = boost::interprocess;

struct MappableFd {  // what mapped_region asks of a memory-mappable object
  int fd;
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

// One mapping: Boost's object, and a link for those that are kept for ever.
struct Region {
  bip::mapped_region pages;
  Region* next = nullptr;
};
// Leaked regions stay reachable, so that leak detectors know them for intended. Pushed by any thread, never
// popped.
constinit std::atomic<Region*> g_leaked{nullptr};

}  // namespace

base::Result<Mapping> map_shared(int fd, size_t bytes, Access access) {
  try {
    auto region = std::make_unique<Region>();
    region->pages = bip::mapped_region(
        MappableFd{fd}, access == Access::kReadOnly ? bip::read_only : bip::read_write, 0, bytes);
    // Best effort: without it a forked child merely inherits pages that it never touches.
    void* data = region->pages.get_address();
    (void)::madvise(data, region->pages.get_size(), MADV_DONTFORK);
    return Mapping(region.release(), data, bytes);
  } catch (const std::exception& e) {
    return base::error(base::Code::kInternal, std::string("cannot map shared memory: ") + e.what());
  } catch (...) {
    return base::error(base::Code::kInternal, "cannot map shared memory");
  }
}

void drop_memory(void* pages, size_t bytes) {
  // Made elsewhere first: mmap(MAP_FIXED) that fails may leave a hole.
  void* zeroes = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (zeroes == MAP_FAILED) return;
  if (::mremap(zeroes, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pages) == MAP_FAILED)
    ::munmap(zeroes, bytes);
}

void Mapping::reset() {
  delete static_cast<Region*>(std::exchange(region_, nullptr));  // its destructor does not throw
  data_ = nullptr;
  bytes_ = 0;
}

void* Mapping::leak() {
  if (auto* region = static_cast<Region*>(std::exchange(region_, nullptr)); region != nullptr) {
    region->next = g_leaked.load(std::memory_order_relaxed);
    // Relaxed: nobody reads through the list.
    while (!g_leaked.compare_exchange_weak(region->next, region, std::memory_order_relaxed)) {
    }
  }
  return std::exchange(data_, nullptr);
}

}  // namespace tessera::ipc
