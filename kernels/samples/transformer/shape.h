// Sizes of the decoder, and where each of its parameters lies in one array: model, reference and optimiser agree by this file alone.
// Plain data.
#pragma once

#include <cstddef>
#include <vector>

#include "../tensor.h"

namespace samples::transformer {

struct Shape {
  int batch = 0;   // sequences computed together
  int length = 0;  // tokens of a sequence
  int width = 0;   // of a token's vector
  int heads = 0;   // attention heads; width is a multiple of it
  int hidden = 0;  // width between the two products of the feed-forward part
  int layers = 0;
  int vocabulary = 0;
  int graph = 0;  // training: not 0: both passes of this number of steps are launches of one CUDA graph

  int tokens() const { return batch * length; }
  int head_width() const { return width / heads; }
};

// Matrices are row-major: inputs by outputs.
struct Layer {
  Tensor norm1_scale, norm1_shift, qkv, qkv_bias, merge, merge_bias;
  Tensor norm2_scale, norm2_shift, up, up_bias, down, down_bias;
};

struct Parameters {
  Tensor token, position;  // embeddings
  std::vector<Layer> layers;
  Tensor norm_scale, norm_shift, head;
  std::vector<Tensor> all;  // in the order of the array
  size_t count = 0;
};

inline Parameters parameters_of(const Shape& s) {
  Parameters p;
  const auto add = [&](const char* name, size_t count, int fan_in, float initial = 0) {
    p.all.push_back({name, p.count, count, fan_in, initial});
    p.count += count;
    return p.all.back();
  };
  const size_t width = size_t(s.width), hidden = size_t(s.hidden);
  p.token = add("token", size_t(s.vocabulary) * width, 1);
  p.position = add("position", size_t(s.length) * width, 1);
  for (int i = 0; i < s.layers; ++i) {
    Layer l;
    l.norm1_scale = add("norm1_scale", width, 0, 1);
    l.norm1_shift = add("norm1_shift", width, 0);
    l.qkv = add("qkv", width * 3 * width, s.width);
    l.qkv_bias = add("qkv_bias", 3 * width, s.width);
    l.merge = add("merge", width * width, s.width);
    l.merge_bias = add("merge_bias", width, s.width);
    l.norm2_scale = add("norm2_scale", width, 0, 1);
    l.norm2_shift = add("norm2_shift", width, 0);
    l.up = add("up", width * hidden, s.width);
    l.up_bias = add("up_bias", hidden, s.width);
    l.down = add("down", hidden * width, s.hidden);
    l.down_bias = add("down_bias", width, s.hidden);
    p.layers.push_back(l);
  }
  p.norm_scale = add("norm_scale", width, 0, 1);
  p.norm_shift = add("norm_shift", width, 0);
  p.head = add("head", width * size_t(s.vocabulary), s.width);
  return p;
}

}  // namespace samples::transformer
