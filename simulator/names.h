// Words that scenario files and answers of the lab use for values of the model.
#pragma once

#include <string>

namespace tessera::simulator {

struct Name {  // of a choice
  const char* text;
  int value;
};

inline constexpr Name kClassNames[] = {  // policy::ResourceClass
    {"unknown", 0},
    {"compute", 1},
    {"memory", 2},
    {"latency", 3}};

inline std::string class_list() {
  std::string all;
  for (const Name& name : kClassNames) all += (all.empty() ? "" : ", ") + std::string(name.text);
  return all;
}

}  // namespace tessera::simulator
