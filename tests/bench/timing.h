// Small statistics for the bench programs: batches, medians, one flat JSON object on standard output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace tessera::bench {

inline double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, size_t(q * double(values.size())))];
}

// Nanoseconds per call of `f`, one value per batch. Batches shorter than a scheduler slice: the median over
// them does not see other processes.
template <class F>
std::vector<double> per_call_ns(size_t batches, size_t calls, F&& f) {
  std::vector<double> out;
  out.reserve(batches);
  for (size_t b = 0; b < batches; b++) {
    const uint64_t start = base::now_ns();
    for (size_t i = 0; i < calls; i++) f();
    out.push_back(double(base::now_ns() - start) / double(calls));
  }
  return out;
}

class Report {
 public:
  void add(const std::string& name, double value) { values_.emplace_back(name, value); }
  void print() const {
    printf("{");
    for (size_t i = 0; i < values_.size(); i++)
      printf("%s\n  \"%s\": %.4g", i ? "," : "", values_[i].first.c_str(), values_[i].second);
    printf("\n}\n");
  }

 private:
  std::vector<std::pair<std::string, double>> values_;
};

}  // namespace tessera::bench
