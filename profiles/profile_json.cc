// The JSON form of a profile (docs/profiles.md): parse, format, and the merge that needs both.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "profiles/kernel_profile.h"

namespace tessera::profiles {
namespace {

using base::Code;
using nlohmann::json;

constexpr int kMaxDepth = 32;  // of nesting; printing is recursive
constexpr double kMost = 1e18, kMostTotalNs = 1e30;

constexpr Origin kOrigins[] = {Origin::kUnknown, Origin::kOnline, Origin::kCupti, Origin::kSoftwareGpu};
constexpr Class kClasses[] = {Class::kUnknown, Class::kCompute, Class::kMemory, Class::kLatency};
constexpr Cut kCuts[] = {Cut::kUnknown, Cut::kYes, Cut::kNo};

const std::set<std::string> kTopFields = {"tessera_profile_version", "kernels", "operations"};
const std::set<std::string> kOperationFields = {"name",  "shape", "type",  "calls",       "flop",
                                                "bytes", "class", "share", "at_least_ns", "gpu_ns"};
const std::set<std::string> kRecordFields = {"image_hash",
                                             "kernel",
                                             "block_threads",
                                             "grid_bucket",
                                             "dynamic_shared_bytes",
                                             "gpu",
                                             "driver",
                                             "origin",
                                             "duration",
                                             "registers_per_thread",
                                             "shared_bytes_per_block",
                                             "occupancy",
                                             "work",
                                             "slowdown",
                                             "class",
                                             "class_reason",
                                             "compute_utilisation",
                                             "memory_utilisation",
                                             "cut",
                                             "cut_reason"};

// Brackets outside of strings. Not a callback of the parser, which would look through all records before each
// record's end: quadratic.
bool nests_deeper_than(std::string_view text, int most) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i)
          if (text[i] == '\\') ++i;
        break;
      case '{':
      case '[':
        if (++depth > most) return true;
        break;
      case '}':
      case ']':
        --depth;
        break;
    }
  }
  return false;
}

// Reads fields of one object; the first problem is kept, with the place of the object.
class Fields {
 public:
  Fields(const json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object.is_object()) fail("is not an object");
  }
  const std::string& problem() const { return problem_; }
  void fail(const std::string& what) {
    if (problem_.empty()) problem_ = place_ + " " + what;
  }

  const json* find(const char* name, bool required) {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    if (required) fail(std::string("has no field '") + name + "'");
    return nullptr;
  }
  double real(const char* name, double most = kMost, bool required = false) {
    const json* value = find(name, required);
    if (!value) return 0;
    return number(*value, name, most);
  }
  double number(const json& value, const std::string& name, double most) {
    const double d = value.is_number() ? value.get<double>() : -1;
    if (d >= 0 && d <= most) return d;  // false for NaN
    fail("'" + name + "' must be a number from 0 to " + base::json_text(json(most)));
    return 0;
  }
  uint64_t whole(const char* name, uint64_t most, bool required = false) {
    const json* value = find(name, required);
    return value ? whole_value(*value, name, most) : 0;
  }
  uint64_t whole_value(const json& value, const std::string& name, uint64_t most) {
    if (value.is_number_unsigned() && value.get<uint64_t>() <= most) return value.get<uint64_t>();
    fail("'" + name + "' must be a whole number from 0 to " + std::to_string(most));
    return 0;
  }
  std::string text(const char* name, bool required = false) {
    const json* value = find(name, required);
    if (!value) return "";
    if (value->is_string()) return value->get<std::string>();
    fail(std::string("'") + name + "' must be a text");
    return "";
  }
  template <class Enum, size_t n>
  Enum one_of(const char* name, const Enum (&values)[n], const char* (*name_of)(Enum)) {
    const json* value = find(name, false);
    if (!value) return values[0];
    for (Enum e : values)
      if (value->is_string() && value->get_ref<const std::string&>() == name_of(e)) return e;
    std::string list;
    for (Enum e : values) list += std::string(list.empty() ? "" : ", ") + name_of(e);
    fail(std::string("'") + name + "' must be one of: " + list);
    return values[0];
  }
  std::string unknown(const std::set<std::string>& known) {
    json rest = json::object();
    if (object_.is_object())
      for (const auto& [name, value] : object_.items())
        if (!known.count(name)) rest[name] = value;
    return rest.empty() ? "" : base::json_text(rest);
  }

 private:
  const json& object_;
  std::string place_, problem_;
};

uint64_t hash_of(Fields& in) {
  const std::string text = in.text("image_hash");
  if (text.empty()) return 0;
  char* end = nullptr;
  const uint64_t hash = strtoull(text.c_str(), &end, 16);
  const bool digits = text.size() == 18 && text.find_first_not_of("0123456789abcdef", 2) == std::string::npos;
  if (!digits || text.compare(0, 2, "0x") != 0) in.fail("'image_hash' must be 0x and 16 hexadecimal digits");
  return hash;
}

void read_duration(Fields& record, const std::string& place, DurationHistogram& out) {
  const json* value = record.find("duration", false);
  if (!value) return;
  Fields in(*value, place + ".duration");
  out.samples = in.whole("samples", kMaxSamples, true);
  out.total_ns = in.real("total_ns", kMostTotalNs, true);
  out.min_ns = in.whole("min_ns", UINT64_MAX, true);
  out.max_ns = in.whole("max_ns", UINT64_MAX, true);
  uint64_t sum = 0;
  const json* buckets = in.find("buckets", true);
  if (buckets && !buckets->is_array()) in.fail("'buckets' must be an array of [bucket, count]");
  if (buckets && buckets->is_array())
    for (const json& pair : *buckets) {
      if (!pair.is_array() || pair.size() != 2) {
        in.fail("'buckets' must be an array of [bucket, count]");
        break;
      }
      const uint64_t bucket = in.whole_value(pair[0], "bucket", kMaxDurationBucket);
      const uint64_t count = in.whole_value(pair[1], "count of a bucket", kMaxSamples - sum);
      out.buckets[uint32_t(bucket)] += count;
      sum += count;
    }
  if (in.problem().empty() && (sum != out.samples || out.min_ns > out.max_ns))
    in.fail("contradicts itself: counts do not sum up to samples, or min_ns exceeds max_ns");
  if (!in.problem().empty()) record.fail("is wrong: " + in.problem());
}

void read_work(Fields& record, const std::string& place, KernelProfile& out) {
  const json* value = record.find("work", false);
  if (!value) return;
  Fields in(*value, place + ".work");
  out.work_samples = in.whole("samples", kMaxSamples, true);
  out.n_blocks = in.real("blocks_per_launch");
  out.memory_bytes = in.real("memory_bytes_per_launch");
  out.warp_instructions = in.real("warp_instructions_per_launch");
  if (const json* operations = in.find("operations_per_launch", false)) {
    if (!operations->is_object()) {
      in.fail("'operations_per_launch' must be an object");
    } else {
      for (const auto& [pipe, n] : operations->items()) out.operations[pipe] = in.number(n, pipe, kMost);
    }
  }
  if (!in.problem().empty()) record.fail("is wrong: " + in.problem());
}

void read_slowdown(Fields& record, const std::string& place, KernelProfile& out) {
  const json* value = record.find("slowdown", false);
  if (!value) return;
  Fields in(*value, place + ".slowdown");
  out.slowdown_beside_memory = in.real("beside_memory");
  out.slowdown_beside_compute = in.real("beside_compute");
  if (!in.problem().empty()) record.fail("is wrong: " + in.problem());
}

std::string read_record(const json& value, size_t index, Profile& out) {
  const std::string place = "kernels[" + std::to_string(index) + "]";
  Fields in(value, place);
  KernelKey key;
  KernelProfile record;
  key.image_hash = hash_of(in);
  key.kernel = in.text("kernel", true);
  if (const json* block = in.find("block_threads", true)) {
    if (!block->is_array() || block->size() != 3)
      in.fail("'block_threads' must be [x, y, z]");
    else
      for (size_t i = 0; i < 3; ++i)
        key.block[i] = uint32_t(in.whole_value((*block)[i], "block_threads", 65536));
  }
  key.grid_bucket = uint32_t(in.whole("grid_bucket", 64, true));
  key.dynamic_shared_bytes = uint32_t(in.whole("dynamic_shared_bytes", UINT32_MAX));
  key.gpu = in.text("gpu");
  key.driver = in.text("driver");
  key.origin = in.one_of("origin", kOrigins, origin_name);
  read_duration(in, place, record.duration);
  record.registers_per_thread = uint32_t(in.whole("registers_per_thread", 65536));
  record.shared_bytes_per_block = uint32_t(in.whole("shared_bytes_per_block", UINT32_MAX));
  record.occupancy = in.real("occupancy", 1);
  read_work(in, place, record);
  read_slowdown(in, place, record);
  record.bound = in.one_of("class", kClasses, class_name);
  record.bound_reason = in.text("class_reason");
  record.compute_utilisation = in.real("compute_utilisation");
  record.memory_utilisation = in.real("memory_utilisation");
  record.cut = in.one_of("cut", kCuts, cut_name);
  record.cut_reason = in.text("cut_reason");
  record.unknown_fields = in.unknown(kRecordFields);
  if (!in.problem().empty()) return in.problem();
  auto [at, added] = out.kernels.try_emplace(std::move(key), record);
  if (!added) {  // a file joined by hand
    Profile one;
    one.kernels.emplace(at->first, std::move(record));
    merge(out, one);
  }
  return "";
}

std::string read_operation(const json& value, size_t index, Operations& out) {
  Fields in(value, "operations[" + std::to_string(index) + "]");
  const OperationKey key{in.text("name", true), in.text("shape", true), in.text("type", true)};
  OperationProfile record;
  record.calls = in.whole("calls", UINT64_MAX, true);
  record.flop = in.whole("flop", UINT64_MAX, true);
  record.bytes = in.whole("bytes", UINT64_MAX, true);
  record.bound = in.one_of("class", kClasses, class_name);
  record.at_least_ns = in.real("at_least_ns", kMostTotalNs);
  record.gpu_ns = in.real("gpu_ns", kMostTotalNs);
  record.unknown_fields = in.unknown(kOperationFields);
  if (!in.problem().empty()) return in.problem();
  auto [at, added] = out.try_emplace(key, record);
  if (!added) merge(at->second, record);
  return "";
}

// Limits a value to what this version reads back: a division by next to nothing must not make a file that nobody can load.
double bounded(double value, double most = kMost) {
  return value >= 0 ? std::min(value, most) : 0;  // NaN is 0
}

json record_json(const KernelKey& key, const KernelProfile& record) {
  json out =
      record.unknown_fields.empty() ? json::object() : json::parse(record.unknown_fields, nullptr, false);
  if (!out.is_object()) out = json::object();
  char hash[32];
  std::snprintf(hash, sizeof hash, "0x%016llx", (unsigned long long)key.image_hash);
  out["image_hash"] = hash;
  out["kernel"] = key.kernel;
  out["block_threads"] = key.block;
  out["grid_bucket"] = key.grid_bucket;
  out["dynamic_shared_bytes"] = key.dynamic_shared_bytes;
  out["gpu"] = key.gpu;
  out["driver"] = key.driver;
  out["origin"] = origin_name(key.origin);
  const DurationHistogram& d = record.duration;
  json operations = json::object();
  for (const auto& [pipe, n] : record.operations) operations[pipe] = bounded(n);
  json buckets = json::array();
  for (auto [bucket, count] : d.buckets) buckets.push_back({bucket, count});
  out["duration"] = {{"samples", d.samples},         {"total_ns", bounded(d.total_ns, kMostTotalNs)},
                     {"min_ns", d.min_ns},           {"p50_ns", d.quantile_ns(0.5)},
                     {"p90_ns", d.quantile_ns(0.9)}, {"p99_ns", d.quantile_ns(0.99)},
                     {"max_ns", d.max_ns},           {"buckets", buckets}};
  out["registers_per_thread"] = record.registers_per_thread;
  out["shared_bytes_per_block"] = record.shared_bytes_per_block;
  out["occupancy"] = bounded(record.occupancy, 1);
  if (record.work_samples)
    out["work"] = {{"samples", record.work_samples},
                   {"blocks_per_launch", bounded(record.n_blocks)},
                   {"memory_bytes_per_launch", bounded(record.memory_bytes)},
                   {"warp_instructions_per_launch", bounded(record.warp_instructions)},
                   {"operations_per_launch", operations}};
  if (record.slowdown_beside_memory > 0 || record.slowdown_beside_compute > 0)
    out["slowdown"] = {{"beside_memory", bounded(record.slowdown_beside_memory)},
                       {"beside_compute", bounded(record.slowdown_beside_compute)}};
  out["class"] = class_name(record.bound);
  out["class_reason"] = record.bound_reason;
  out["compute_utilisation"] = bounded(record.compute_utilisation);
  out["memory_utilisation"] = bounded(record.memory_utilisation);
  out["cut"] = cut_name(record.cut);
  out["cut_reason"] = record.cut_reason;
  return out;
}

json operation_json(const OperationKey& key, const OperationProfile& record, double share) {
  json out =
      record.unknown_fields.empty() ? json::object() : json::parse(record.unknown_fields, nullptr, false);
  if (!out.is_object()) out = json::object();
  out["name"] = key.name;
  out["shape"] = key.shape;
  out["type"] = key.type;
  out["calls"] = record.calls;
  out["flop"] = record.flop;
  out["bytes"] = record.bytes;
  out["class"] = class_name(record.bound);
  out["share"] = bounded(share, 1);
  out["at_least_ns"] = bounded(record.at_least_ns, kMostTotalNs);
  out["gpu_ns"] = bounded(record.gpu_ns, kMostTotalNs);
  return out;
}

// Union; where both have a field, `from` wins.
void merge_unknown(std::string& into, const std::string& from) {
  if (from.empty() || into == from) return;
  json merged = into.empty() ? json::object() : json::parse(into, nullptr, false);
  const json more = json::parse(from, nullptr, false);
  if (!merged.is_object()) merged = json::object();
  if (more.is_object()) merged.update(more);
  into = base::json_text(merged);
}

}  // namespace

void merge(Profile& into, const Profile& from) {
  merge_unknown(into.unknown_fields, from.unknown_fields);
  for (const auto& [key, record] : from.kernels) {
    auto [at, added] = into.kernels.try_emplace(key, record);
    if (added) continue;
    merge(at->second, record);
    merge_unknown(at->second.unknown_fields, record.unknown_fields);
  }
  for (const auto& [key, record] : from.operations) {
    auto [at, added] = into.operations.try_emplace(key, record);
    if (added) continue;
    merge(at->second, record);
    merge_unknown(at->second.unknown_fields, record.unknown_fields);
  }
}

base::Result<Profile> parse_profile(const std::string& text, const std::string& path) {
  const auto refuse = [&](Code code, const std::string& what) {
    return base::error(code, path + ": " + what);
  };
  if (nests_deeper_than(text, kMaxDepth))
    return refuse(Code::kInvalid, "nests deeper than " + std::to_string(kMaxDepth) + " levels");
  const json root = json::parse(text, nullptr, false);
  if (root.is_discarded()) return refuse(Code::kInvalid, "is not JSON (cut off or edited?)");
  if (!root.is_object()) return refuse(Code::kInvalid, "is not a profile: its top level is no object");
  const auto version = root.find("tessera_profile_version");
  if (version == root.end() || !version->is_number_integer())
    return refuse(Code::kInvalid, "is not a profile: it has no tessera_profile_version");
  if (*version != kProfileVersion)
    return refuse(Code::kVersion, "has version " + base::json_text(*version) +
                                      ", this program reads version " + std::to_string(kProfileVersion) +
                                      ": use the release that wrote it, or write the profile anew");
  const auto kernels = root.find("kernels");
  if (kernels == root.end() || !kernels->is_array()) return refuse(Code::kInvalid, "has no array 'kernels'");
  Profile out;
  size_t index = 0;
  for (const json& value : *kernels) {
    const std::string problem = read_record(value, index++, out);
    if (!problem.empty()) return refuse(Code::kInvalid, problem);
  }
  if (const auto operations = root.find("operations"); operations != root.end()) {
    if (!operations->is_array()) return refuse(Code::kInvalid, "'operations' must be an array");
    index = 0;
    for (const json& value : *operations) {
      const std::string problem = read_operation(value, index++, out.operations);
      if (!problem.empty()) return refuse(Code::kInvalid, problem);
    }
  }
  out.unknown_fields = Fields(root, "").unknown(kTopFields);
  return out;
}

std::string format_profile(const Profile& profile) {
  json out =
      profile.unknown_fields.empty() ? json::object() : json::parse(profile.unknown_fields, nullptr, false);
  if (!out.is_object()) out = json::object();
  out["tessera_profile_version"] = kProfileVersion;
  json kernels = json::array();
  for (const auto& [key, record] : profile.kernels) kernels.push_back(record_json(key, record));
  out["kernels"] = std::move(kernels);
  const OperationShares shares(profile);
  for (const auto& [key, record] : profile.operations)
    out["operations"].push_back(operation_json(key, record, shares.of(record)));
  return base::json_text(out, 1) + "\n";
}

}  // namespace tessera::profiles
