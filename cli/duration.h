// Durations as people write them: 500us, 20ms, 1.5s, 2min; a bare number is refused, its unit would be a
// guess.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace tessera::cli {

// Nanoseconds. Errors name the form.
base::Result<uint64_t> parse_duration_ns(const std::string& text);

}  // namespace tessera::cli
