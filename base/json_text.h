// JSON as text. Names of files, kernels and programs may be no UTF-8, for which nlohmann::json throws: such bytes become
// U+FFFD. Any thread.
#pragma once

#include <string>

namespace tessera::base {

// `indent`: spaces per level; -1: one line.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tessera::base
