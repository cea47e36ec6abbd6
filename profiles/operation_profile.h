// The library calls of a program by shape: the part `operations` of a profile file (docs/profiles.md), and the file in
// which libtessera_ops.so counts (operations/table.h). Plain data; blocking file operations; any thread, no lock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "profiles/classify.h"

namespace tessera::profiles {

// Calls that agree in all of it are one record.
struct OperationKey {
  std::string name;   // function, as exported for 32-bit integers
  std::string shape;  // "64x32x16": m, n, k; "64x32x16 * 8": a batch; "3 groups"
  std::string type;   // of A, B and C: "f32", or "f16,f16,f32"

  auto operator<=>(const OperationKey&) const = default;
};

struct OperationProfile {
  uint64_t calls = 0, flop = 0, bytes = 0;  // sums; the most that fits, and that beyond
  Class bound = Class::kUnknown;            // by the roofline of the GPU that was profiled
  double at_least_ns = 0;                   // of all calls, by that roofline; 0 = not known
  double gpu_ns = 0;                        // GPU time of the kernels launched below them; 0 = not measured
  std::string unknown_fields;               // JSON object of fields this version does not know; "" if none
};
using Operations = std::map<OperationKey, OperationProfile>;

// "f32", of a cudaDataType; "?" for a number that is none.
std::string element_type_name(int32_t type);

// Sums add up; class and unknown fields: the side of `from` wins if it knows them.
void merge(OperationProfile& into, const OperationProfile& from);

// An empty file to count in.
base::Status make_operation_table(const std::string& path);

struct OperationCounts {
  Operations operations;
  uint64_t further_calls = 0;  // of shapes that found no room
};
// The kernels that ran below counted calls, by their tag (operations/table.h).
struct LaunchesBelow {
  double gpu_ns = 0;
  uint64_t calls = 0;  // that were captured: one for each launch of their graph
};
using Launches = std::map<uint64_t, LaunchesBelow>;
void add_launch(Launches& launches, uint64_t tag, double gpu_ns);
// Reads the counts; classed by `gpu` if it is given. Errors name `path`.
base::Result<OperationCounts> parse_operation_table(std::string_view bytes, const std::string& path,
                                                    const GpuDescription* gpu, const Launches& launches = {});
base::Result<OperationCounts> read_operation_table(const std::string& path, const GpuDescription* gpu,
                                                   const Launches& launches = {});

}  // namespace tessera::profiles
