// Keeps which kernels the watchdog released, in this start and in earlier ones. Touches the disk.
// One of the files of the preload library that call code which can throw; nothing leaves it.
#include <algorithm>
#include <exception>

#include "base/raw_log.h"
#include "driver_api/ask.h"
#include "interpose/state/config.h"
#include "interpose/track/track.h"
#include "kernels/cache/never_cut.h"

namespace tessera::track {
namespace {

bool keeps() {
  const state::Config& config = state::config();
  return config.cache_dir[0] && config.cache_max_bytes;
}

cache::Store store() {
  return {state::config().cache_dir, state::config().cache_max_bytes};
}

}  // namespace

std::vector<uint64_t> never_cut() noexcept try {
  return keeps() ? cache::never_cut(store(), driver_api::version_or_zero()) : std::vector<uint64_t>();
} catch (const std::exception&) {
  return {};
}

void never_cut_again(uint64_t kernel_hash) noexcept try {
  if (!keeps()) return;
  if (base::Status added = cache::add_never_cut(store(), driver_api::version_or_zero(), kernel_hash); !added)
    base::raw_log(base::LogLevel::kInfo, "not remembered for the next start: %s", added.error().text.c_str());
} catch (const std::exception& e) {
  base::raw_log(base::LogLevel::kInfo, "not remembered for the next start: %s", e.what());
}

}  // namespace tessera::track
