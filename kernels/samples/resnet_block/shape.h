// Sizes of the network, and where each of its parameters lies in one array: model and reference agree by this file alone. Plain data.
#pragma once

#include <cstddef>
#include <vector>

#include "../tensor.h"

namespace samples::resnet {

struct Shape {
  int batch = 0, channels = 0, size = 0, classes = 0;  // images of channels x size x size
  int graph = 0;  // training: not 0: both passes of this number of steps are launches of one CUDA graph

  size_t image() const { return size_t(channels) * size_t(size) * size_t(size); }
  size_t images() const { return size_t(batch) * image(); }
  size_t scores() const { return size_t(batch) * size_t(classes); }
};

constexpr int kWindow = 3;  // of both convolutions of the block

struct Parameters {
  Tensor filter1, scale1, shift1, filter2, scale2, shift2, head, head_bias;
  std::vector<Tensor> all;  // in the order of the array
  size_t count = 0;
};

inline Parameters parameters_of(const Shape& s) {
  Parameters p{};
  const auto add = [&](Tensor& tensor, const char* name, size_t count, int fan_in, float initial = 0) {
    tensor = {name, p.count, count, fan_in, initial};
    p.all.push_back(tensor);
    p.count += count;
  };
  const size_t c = size_t(s.channels), filter = c * c * kWindow * kWindow;
  const int fan_in = s.channels * kWindow * kWindow;
  add(p.filter1, "filter1", filter, fan_in);
  add(p.scale1, "scale1", c, 0, 1), add(p.shift1, "shift1", c, 0);
  add(p.filter2, "filter2", filter, fan_in);
  add(p.scale2, "scale2", c, 0, 1), add(p.shift2, "shift2", c, 0);
  add(p.head, "head", c * size_t(s.classes), s.channels);
  add(p.head_bias, "head_bias", size_t(s.classes), 0);
  return p;
}

}  // namespace samples::resnet
