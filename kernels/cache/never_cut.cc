#include "kernels/cache/never_cut.h"

#include <algorithm>
#include <cstring>

namespace tessera::cache {
namespace {

Key list_key(int driver_version) {
  return key_of("the kernels that the watchdog released", driver_version);
}

}  // namespace

std::vector<uint64_t> never_cut(const Store& store, int driver_version) {
  std::vector<uint64_t> hashes;
  const auto bytes = store.load(list_key(driver_version));
  if (bytes && bytes->size() % sizeof(uint64_t) == 0 && bytes->size() <= kMostNeverCut * sizeof(uint64_t)) {
    hashes.resize(bytes->size() / sizeof(uint64_t));
    memcpy(hashes.data(), bytes->data(), bytes->size());
  }
  return hashes;
}

base::Status add_never_cut(const Store& store, int driver_version, uint64_t kernel_hash) {
  std::vector<uint64_t> hashes = never_cut(store, driver_version);
  std::erase(hashes, kernel_hash);
  hashes.push_back(kernel_hash);
  if (hashes.size() > kMostNeverCut) hashes.erase(hashes.begin());
  return store.save(list_key(driver_version),
                    {reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(uint64_t)});
}

}  // namespace tessera::cache
