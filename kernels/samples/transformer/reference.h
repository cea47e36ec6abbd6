// The decoder's forward pass once more, on the host, in double precision, by direct loops: what --verify compares with. Shares
// nothing with the device's code but where the parameters lie. Pure.
#pragma once

#include <cmath>
#include <vector>

#include "shape.h"

namespace samples::transformer {

using Values = std::vector<double>;

class Reference {
 public:
  Reference(const Shape& shape, Values parameters)
      : s_(shape), layout_(parameters_of(shape)), parameters(std::move(parameters)) {}

  // Logits of all tokens; row-major, vocabulary columns.
  Values logits(const std::vector<int>& token) const {
    const int n = s_.tokens();
    Values x(size_t(n * s_.width));
    for (int i = 0; i < n; ++i)
      for (int c = 0; c < s_.width; ++c)
        x[size_t(i * s_.width + c)] = at(layout_.token)[token[size_t(i)] * s_.width + c] +
                                      at(layout_.position)[i % s_.length * s_.width + c];
    for (const Layer& l : layout_.layers) {
      add(x, linear(attention(linear(norm(x, l.norm1_scale, l.norm1_shift), l.qkv, &l.qkv_bias, s_.width)),
                    l.merge, &l.merge_bias, s_.width));
      Values hidden = linear(norm(x, l.norm2_scale, l.norm2_shift), l.up, &l.up_bias, s_.width);
      for (double& v : hidden) v = 0.5 * v * (1 + std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)));
      add(x, linear(hidden, l.down, &l.down_bias, s_.hidden));
    }
    return linear(norm(x, layout_.norm_scale, layout_.norm_shift), layout_.head, nullptr, s_.width);
  }

  double loss(const std::vector<int>& token, const std::vector<int>& target) const {
    Values x = logits(token);
    double sum = 0;
    for (int i = 0; i < s_.tokens(); ++i) {
      double* row = &x[size_t(i * s_.vocabulary)];
      softmax(row, s_.vocabulary);
      sum -= std::log(row[target[size_t(i)]]);
    }
    return sum / s_.tokens();
  }

  static void softmax(double* x, int n) {
    double top = x[0], sum = 0;
    for (int i = 1; i < n; ++i) top = std::max(top, x[i]);
    for (int i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - top);
    for (int i = 0; i < n; ++i) x[i] /= sum;
  }

  const Parameters& layout() const { return layout_; }

 private:
  const double* at(const Tensor& t) const { return &parameters[t.offset]; }

  static void add(Values& to, const Values& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }

  Values norm(const Values& x, const Tensor& scale, const Tensor& shift) const {
    Values y(x.size());
    const int w = s_.width;
    for (size_t begin = 0; begin < x.size(); begin += size_t(w)) {
      double mean = 0, variance = 0;
      for (int c = 0; c < w; ++c) mean += x[begin + size_t(c)] / w;
      for (int c = 0; c < w; ++c)
        variance += (x[begin + size_t(c)] - mean) * (x[begin + size_t(c)] - mean) / w;
      for (int c = 0; c < w; ++c)
        y[begin + size_t(c)] =
            (x[begin + size_t(c)] - mean) / std::sqrt(variance + 1e-5) * at(scale)[c] + at(shift)[c];
    }
    return y;
  }

  Values linear(const Values& x, const Tensor& w, const Tensor* bias, int in) const {
    const int rows = int(x.size()) / in, out = int(w.count) / in;
    Values y(size_t(rows * out));
    for (int r = 0; r < rows; ++r)
      for (int o = 0; o < out; ++o) {
        double sum = bias ? at(*bias)[o] : 0;
        for (int i = 0; i < in; ++i) sum += x[size_t(r * in + i)] * at(w)[i * out + o];
        y[size_t(r * out + o)] = sum;
      }
    return y;
  }

  // From query, key and value of each token, side by side, to what its heads saw.
  Values attention(const Values& qkv) const {
    const int w = s_.width, hw = s_.head_width();
    Values y(size_t(s_.tokens() * w)), p(size_t(s_.length));
    for (int token = 0; token < s_.tokens(); ++token)
      for (int head = 0; head < s_.heads; ++head) {
        const int first = token - token % s_.length, seen = token - first + 1;
        const auto value = [&](int t, int part, int j) {
          return qkv[size_t((t * 3 + part) * w + head * hw + j)];
        };
        for (int t = 0; t < seen; ++t) {
          double dot = 0;
          for (int j = 0; j < hw; ++j) dot += value(token, 0, j) * value(first + t, 1, j);
          p[size_t(t)] = dot / std::sqrt(double(hw));
        }
        softmax(p.data(), seen);
        for (int j = 0; j < hw; ++j)
          for (int t = 0; t < seen; ++t)
            y[size_t(token * w + head * hw + j)] += p[size_t(t)] * value(first + t, 2, j);
      }
    return y;
  }

  Shape s_;
  Parameters layout_;

 public:
  Values parameters;  // may be changed between calls
};

}  // namespace samples::transformer
