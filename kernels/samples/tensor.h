// One parameter of a network, in the array of all. Plain data.
#pragma once

#include <cstddef>
#include <string>

namespace samples {

struct Tensor {
  std::string name;
  size_t offset = 0, count = 0;  // elements of the parameter array
  int fan_in = 0;  // initial values are random, within an amplitude that it decides; 0: all `initial`
  float initial = 0;
};

}  // namespace samples
