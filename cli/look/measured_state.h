#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace tessera::cli {

// The daemon's state as question 3 asks it. Errors name a remedy.
base::Result<nlohmann::json> measured_state(const std::string& socket);

}  // namespace tessera::cli
