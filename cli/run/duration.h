// Numbers and durations as people write them. A duration has its unit, as in 500us, 20ms, 1.5s or 2min: that of a
// bare number would be a guess.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace tessera::cli {

// The whole text is one finite number within the range, which the error names.
base::Result<double> parse_number(const std::string& text, double least, double most);

// Nanoseconds, at most an hour. Errors name the form.
base::Result<uint64_t> parse_duration_ns(const std::string& text);

}  // namespace tessera::cli
