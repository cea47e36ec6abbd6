#include "simulator/traces/pattern.h"

#include <algorithm>
#include <map>

namespace tessera::simulator::traces {
namespace {

constexpr size_t kLeastIterations = 3;  // two that are alike may be chance
constexpr size_t kMostAnchors = 64;     // shapes that are tried
constexpr double kMostUneven = 1.1;     // longest over shortest iteration, in launches
constexpr double kLeastAlike = 0.9;     // of the launches of two iterations, at the same place
constexpr double kLeastCovered = 0.6;   // of all launches

bool even(const std::vector<size_t>& at) {
  size_t least = SIZE_MAX, most = 0;
  for (size_t i = 1; i < at.size(); ++i) {
    least = std::min(least, at[i] - at[i - 1]);
    most = std::max(most, at[i] - at[i - 1]);
  }
  return double(most) <= kMostUneven * double(least);
}

bool alike(const std::vector<Launched>& launches, const std::vector<size_t>& at) {
  size_t same = 0, all = 0;
  for (size_t i = 2; i < at.size(); ++i) {
    const size_t length = std::min(at[i] - at[i - 1], at[i - 1] - at[i - 2]);
    for (size_t k = 0; k < length; ++k)
      same += launches[at[i - 1] + k].shape == launches[at[i - 2] + k].shape;
    all += length;
  }
  return double(same) >= kLeastAlike * double(all);
}

bool waits_in_each(const std::vector<Launched>& launches, const std::vector<size_t>& at) {
  for (size_t i = 1; i < at.size(); ++i)
    if (std::none_of(launches.begin() + long(at[i - 1]), launches.begin() + long(at[i]),
                     [](const Launched& l) { return l.behind_a_wait; }))
      return false;
  return true;
}

// How far behind the anchors iterations begin.
size_t longest_pause(const std::vector<Launched>& launches, const std::vector<size_t>& at) {
  size_t length = SIZE_MAX, best = 0;
  for (size_t i = 1; i < at.size(); ++i) length = std::min(length, at[i] - at[i - 1]);
  double longest_ns = -1;
  for (size_t k = 0; k < length; ++k) {
    double sum_ns = 0;
    for (size_t i = 0; i + 1 < at.size(); ++i)
      if (at[i] + k > 0) sum_ns += double(launches[at[i] + k].call_ns - launches[at[i] + k - 1].call_ns);
    if (sum_ns > longest_ns) longest_ns = sum_ns, best = k;
  }
  return best;
}

}  // namespace

std::vector<size_t> repeated_pattern(const std::vector<Launched>& launches) {
  std::map<uint64_t, std::vector<size_t>> places;
  for (size_t i = 0; i < launches.size(); ++i) places[launches[i].shape].push_back(i);
  std::vector<const std::vector<size_t>*> anchors;
  for (const auto& [shape, at] : places)
    if (at.size() >= kLeastIterations) anchors.push_back(&at);
  // The kernel that is launched least often is launched once in an iteration.
  std::sort(anchors.begin(), anchors.end(), [](const auto* x, const auto* y) {
    return x->size() != y->size() ? x->size() < y->size() : x->front() < y->front();
  });
  anchors.resize(std::min(anchors.size(), kMostAnchors));
  for (const std::vector<size_t>* anchor : anchors) {
    std::vector<size_t> at = *anchor;
    const size_t length = at[1] - at[0];
    const double covered = double(length) * double(at.size()) / double(launches.size());
    if (!even(at) || covered < kLeastCovered || !alike(launches, at) || !waits_in_each(launches, at))
      continue;
    const size_t shift = longest_pause(launches, at);
    for (size_t& begin : at) begin += shift;
    // The first may have begun before the first anchor, the last one is whole or left out.
    if (at.front() >= length) at.insert(at.begin(), at.front() - length);
    if (launches.size() - at.back() >= length) at.push_back(at.back() + length);
    if (at.size() > kLeastIterations) return at;
  }
  return {};
}

}  // namespace tessera::simulator::traces
