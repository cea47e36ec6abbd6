// The network's forward pass once more, on the host, in double precision, by direct loops: what `verify` compares with. Shares nothing
// with the device's code but where the parameters lie. Pure.
#pragma once

#include <cmath>
#include <vector>

#include "shape.h"

namespace samples::resnet {

using Values = std::vector<double>;

class Reference {
 public:
  Reference(const Shape& shape, Values values)
      : s_(shape), layout_(parameters_of(shape)), parameters(std::move(values)) {}

  // Logarithms of the classes' probabilities. Training: normalised by the batch; otherwise by mean 0 and variance 1.
  Values logarithms(const Values& x, bool training) const {
    Values y = normalised(convolved(x, layout_.filter1), layout_.scale1, layout_.shift1, training);
    rectify(y);
    y = normalised(convolved(y, layout_.filter2), layout_.scale2, layout_.shift2, training);
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
    rectify(y);
    return classified(y);
  }
  double loss(const Values& x, const std::vector<int>& target) const {
    const Values l = logarithms(x, true);
    double sum = 0;
    for (int b = 0; b < s_.batch; ++b) sum -= l[size_t(b * s_.classes + target[size_t(b)])];
    return sum / s_.batch;
  }

 private:
  const double* at(const Tensor& t) const { return &parameters[t.offset]; }
  size_t place(int b, int c, int i, int j) const {
    return ((size_t(b) * size_t(s_.channels) + size_t(c)) * size_t(s_.size) + size_t(i)) * size_t(s_.size) +
           size_t(j);
  }
  static void rectify(Values& x) {
    for (double& v : x) v = std::fmax(v, 0);
  }

  Values convolved(const Values& x, const Tensor& filter) const {
    Values y(x.size());
    const double* w = at(filter);
    for (int b = 0; b < s_.batch; ++b)
      for (int k = 0; k < s_.channels; ++k)
        for (int i = 0; i < s_.size; ++i)
          for (int j = 0; j < s_.size; ++j)
            for (int c = 0; c < s_.channels; ++c)
              for (int p = 0; p < kWindow; ++p)
                for (int q = 0; q < kWindow; ++q) {
                  const int from_i = i + p - kWindow / 2, from_j = j + q - kWindow / 2;
                  if (from_i < 0 || from_j < 0 || from_i >= s_.size || from_j >= s_.size) continue;
                  y[place(b, k, i, j)] +=
                      x[place(b, c, from_i, from_j)] * w[((k * s_.channels + c) * kWindow + p) * kWindow + q];
                }
    return y;
  }

  Values normalised(Values x, const Tensor& scale, const Tensor& shift, bool training) const {
    const int area = s_.size * s_.size;
    for (int c = 0; c < s_.channels; ++c) {
      double mean = 0, variance = training ? 0 : 1;
      const auto each = [&](const auto& use) {
        for (int b = 0; b < s_.batch; ++b)
          for (int i = 0; i < area; ++i) use(x[place(b, c, 0, 0) + size_t(i)]);
      };
      if (training) {
        each([&](double v) { mean += v / (s_.batch * area); });
        each([&](double v) { variance += (v - mean) * (v - mean) / (s_.batch * area); });
      }
      each([&](double& v) { v = (v - mean) / std::sqrt(variance + 1e-5) * at(scale)[c] + at(shift)[c]; });
    }
    return x;
  }

  Values classified(const Values& x) const {
    Values out(s_.scores());
    const int area = s_.size * s_.size;
    for (int b = 0; b < s_.batch; ++b) {
      double sum = 0;
      for (int k = 0; k < s_.classes; ++k) {
        double& score = out[size_t(b * s_.classes + k)];
        score = at(layout_.head_bias)[k];
        for (int c = 0; c < s_.channels; ++c)
          for (int i = 0; i < area; ++i)
            score += x[place(b, c, 0, 0) + size_t(i)] / area * at(layout_.head)[k * s_.channels + c];
        sum += std::exp(score);
      }
      for (int k = 0; k < s_.classes; ++k) out[size_t(b * s_.classes + k)] -= std::log(sum);
    }
    return out;
  }

  Shape s_;
  Parameters layout_;

 public:
  Values parameters;  // may be changed between calls
};

}  // namespace samples::resnet
