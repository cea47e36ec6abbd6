#include "ipc/channel/map.h"

#include <sys/mman.h>

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

}  // namespace

base::Result<Mapping> map_shared(int fd, size_t bytes, Access access) {
  try {
    auto region = std::make_unique<bip::mapped_region>(
        MappableFd{fd}, access == Access::kReadOnly ? bip::read_only : bip::read_write, 0, bytes);
    // Best effort: without it a forked child merely inherits pages that it never touches.
    (void)::madvise(region->get_address(), region->get_size(), MADV_DONTFORK);
    void* data = region->get_address();
    return Mapping(region.release(), data, bytes);
  } catch (const std::exception& e) {
    return base::error(base::Code::kInternal, std::string("cannot map shared memory: ") + e.what());
  } catch (...) {
    return base::error(base::Code::kInternal, "cannot map shared memory");
  }
}

void Mapping::reset() {
  delete static_cast<bip::mapped_region*>(std::exchange(region_, nullptr));  // its destructor does not throw
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace tessera::ipc
