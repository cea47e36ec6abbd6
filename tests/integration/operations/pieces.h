// Have calls of a function gone out in pieces? Each whole one is one launch on the software GPU.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::test {

// Launches of a client, as the daemon tells it, below calls of this function, but for one of each call.
inline double further_launches(const nlohmann::json& client, const std::string& function) {
  for (const nlohmann::json& o : client.value("operations", nlohmann::json::array()))
    if (o.value("name", "") == function) return o.value("launches", 0.0) - o.value("calls", 0.0);
  return 0;
}

}  // namespace tessera::test
