// Histograms of requests, as the daemon tells them (docs/requests.md), read for `tessera ps --requests`, `tessera top` and
// the exporter. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/latency_buckets.h"

namespace tessera::cli {

struct RequestHistogram {  // of one kind of one client
  std::string kind;        // printable
  uint64_t count = 0, sum_ns = 0;
  uint64_t slo_ns = 0, within_slo = 0;  // slo_ns 0: none
  std::array<uint64_t, base::kLatencyBuckets> counts{};

  // `share` of the requests took less; a bucket is at most an eighth wider than its beginning.
  uint64_t below_ns(double share) const {
    return base::latency_bucket_end_ns(base::latency_quantile(counts, share));
  }
};
std::vector<RequestHistogram> requests_of(const nlohmann::json& client);

// A line for each client and kind; "" if nothing was measured. With `before`, an earlier answer: of what came since. At most
// `most` lines of 80 columns.
std::string request_table(const nlohmann::json& now, const nlohmann::json& before, size_t most);

}  // namespace tessera::cli
