#include "kernels/cache/key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

#include "kernels/cache/rewriter_id.inc"  // kRewriterId, made by the build from the sources

namespace tessera::cache {

Key key_of(std::string_view text, int driver_version, bool allow_order_dependent) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, kRewriterId, sizeof kRewriterId);
  XXH3_128bits_update(&state, &driver_version, sizeof driver_version);
  XXH3_128bits_update(&state, &allow_order_dependent, sizeof allow_order_dependent);
  XXH3_128bits_update(&state, text.data(), text.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.low64, hash.high64};
}

std::string file_name(const Key& key) {
  char name[40];
  snprintf(name, sizeof name, "%016llx%016llx.tsr", static_cast<unsigned long long>(key.high),
           static_cast<unsigned long long>(key.low));
  return name;
}

}  // namespace tessera::cache
