// Is what a device computed the gradient of what the host computes? Used by samples that verify their training. Host only.
#pragma once

#include <cmath>
#include <vector>

namespace samples {

// How much the gradient of parameters [first, first + count) is off, as a share of its length: loss() is evaluated with them moved
// along it, there and back. The slope is the length of the gradient if, and only if, that is the gradient.
template <class Loss>
double slope_error(std::vector<double>& parameters, size_t first, size_t count, const float* gradient,
                   const Loss& loss) {
  constexpr double kStep = 1e-4;
  double length = 0;
  for (size_t i = 0; i < count; ++i) length += double(gradient[i]) * gradient[i];
  length = std::sqrt(length);
  if (!(length > 0)) return 1;
  const std::vector<double> kept = parameters;
  const auto loss_at = [&](double distance) {
    for (size_t i = 0; i < count; ++i)
      parameters[first + i] = kept[first + i] + distance * gradient[i] / length;
    return loss();
  };
  const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
  parameters = kept;
  return std::abs(slope / length - 1);
}

}  // namespace samples
