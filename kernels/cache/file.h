// The bytes of a cache file: a header that names and checks what follows. Pure; unwrap() takes any bytes.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/cache/key.h"

namespace tessera::cache {

std::string wrap(const Key& key, std::string_view payload);
// The payload, within `bytes`. An error if the file is of another version or key, cut short, or changed.
base::Result<std::string_view> unwrap(const Key& key, std::string_view bytes);

}  // namespace tessera::cache
