// Requests to a language model as a service recorded them: when they came, how long they were. CSV with a header: `arrival_s`,
// `input_tokens` or `context_tokens`, `output_tokens` or `generated_tokens`; lines that begin with `#` before. May be compressed
// with gzip.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "simulator/workload.h"

namespace tessera::simulator::traces {

struct Requests {
  std::vector<RequestLength> lengths;
  std::vector<double> gaps_ns;  // before each but the first
};
// Errors name file and line.
base::Result<Requests> read_requests(const std::string& path);

}  // namespace tessera::simulator::traces
