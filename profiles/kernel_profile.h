// Costs of kernels, learnt from runs: records by key, as kept in profile files (docs/profiles.md). Plain data and pure
// functions; files are profile_file.h. Used by cli, tests, and callers that plan with profiles; no lock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "profiles/classify.h"
#include "profiles/duration_histogram.h"
#include "profiles/operation_profile.h"

namespace tessera::profiles {

// The source of a record's figures. Names in the file: origin_name().
enum class Origin : uint8_t { kUnknown, kOnline, kCupti, kSoftwareGpu };
const char* origin_name(Origin origin);

enum class Cut : uint8_t { kUnknown, kYes, kNo };  // may the grid be cut into slices
const char* cut_name(Cut cut);

// Identifies a record: its kernel and the place where it was taken. Records that agree in all of it are merged.
struct KernelKey {
  uint64_t image_hash = 0;  // of the program text the kernel came from; 0 = not known
  std::string kernel;       // name in the image
  std::array<uint32_t, 3> block{1, 1, 1};
  uint32_t grid_bucket = 0;  // grid_bucket() of the number of blocks
  uint32_t dynamic_shared_bytes = 0;
  std::string gpu, driver;  // names as the driver reports them
  Origin origin = Origin::kUnknown;

  auto operator<=>(const KernelKey&) const = default;
};

// Grids share a bucket if they are within a factor of two: bit length, as in the preload library's records.
uint32_t grid_bucket(uint64_t n_blocks);

// The 64-bit keys by which the preload library and the daemon know this kernel and this launch shape
// (base/kernel_key.h): the GPU, driver and origin are not in them.
uint64_t kernel_hash(const KernelKey& key);
uint64_t launch_key(const KernelKey& key);

struct KernelProfile {
  DurationHistogram duration;  // ns, of one launch alone or shared as it happened
  uint32_t registers_per_thread = 0;
  uint32_t shared_bytes_per_block = 0;  // static and dynamic
  double occupancy = 0;                 // resident threads over an SM's most, 0..1; 0 = not known

  uint64_t work_samples = 0;                 // launches that the four below are means of; 0 = not counted
  double n_blocks = 0;                       // per launch
  double memory_bytes = 0;                   // device memory, per launch
  double warp_instructions = 0;              // per launch
  std::map<std::string, double> operations;  // per launch, by pipe: fp64 fp32 fp16 tensor tensor_tf32 ...

  // Median duration beside a neighbour over the one alone; 0 = not measured.
  double slowdown_beside_memory = 0, slowdown_beside_compute = 0;

  Class bound = Class::kUnknown;
  std::string bound_reason;  // why, one line
  double compute_utilisation = 0, memory_utilisation = 0;
  Cut cut = Cut::kUnknown;
  std::string cut_reason;

  std::string unknown_fields;  // JSON object of fields this version does not know; "" if none
};

struct Profile {
  std::map<KernelKey, KernelProfile> kernels;
  Operations operations;
  std::string unknown_fields;  // of the file's top level, as above
};

// The share of operations in the GPU time of all kernels, by the kernels launched below them. If none of it was
// measured, it is their share in all operations' time by the roofline.
class OperationShares {
 public:
  explicit OperationShares(const Profile& profile);
  double of(const OperationProfile& operation) const;  // 0 = not known

 private:
  double kernels_ns_ = 0, at_least_ns_ = 0;
  bool measured_ = false;
};

// The work of one more launch: means of what was counted move on by one sample.
void add_work(KernelProfile& record, double n_blocks, double memory_bytes, double warp_instructions,
              const std::map<std::string, double>& operations);

void forget_work(KernelProfile& record);  // as if nothing had been counted; its class goes with it

// Adds `from` to `into`: samples add up, means are weighted by their samples, what only one side knows stays.
// Facts that differ (registers, class, verdict, unknown fields): the side of `from` wins if it knows them.
void merge(Profile& into, const Profile& from);
void merge(KernelProfile& into, const KernelProfile& from);

// Classes every record that was counted on `gpu`, starting from the class that it has (hysteresis).
void classify_all(Profile& profile, const GpuDescription& gpu);
// Those that were never counted, but measured beside both neighbours.
void classify_uncounted(Profile& profile);

enum class Neighbour : uint8_t { kMemory, kCompute };  // what it is bound by
// How much longer `beside` took than `alone`, by key, into `alone`. Records with too few samples are left
// out.
void note_slowdowns(Profile& alone, const Profile& beside, Neighbour neighbour);

inline constexpr int kProfileVersion = 1;
// Errors name `path` and the field. An unknown version is refused with the remedy.
base::Result<Profile> parse_profile(const std::string& text, const std::string& path);
std::string format_profile(const Profile& profile);

}  // namespace tessera::profiles
