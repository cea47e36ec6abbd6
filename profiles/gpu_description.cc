#include "profiles/gpu_description.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include "base/hash.h"
#include "base/toml.h"
#include "base/user_file.h"
#include "profiles/gpu_attributes.h"

namespace tessera::profiles {
namespace {

using base::Code;

// One row per key of the file: where it goes, the unit it is written in, its bounds.
struct Row {
  const char *section, *key;
  double (*get)(const GpuDescription&);
  void (*set)(GpuDescription&, double);
  double scale;     // file unit -> unit of the field
  double min, max;  // in file units
  bool required;
};

#define ROW(section, key, field, scale, min, max, required)                                                \
  Row {                                                                                                    \
    section, key, [](const GpuDescription& g) { return double(g.field); },                                 \
        [](GpuDescription& g, double v) { g.field = static_cast<decltype(g.field)>(v); }, scale, min, max, \
        required                                                                                           \
  }

constexpr uint64_t kMostBytes = 1u << 20;  // of a description, which has a few KiB
constexpr double kTera = 1e12, kGiga = 1e9, kMega = 1e6, kUs = 1e3;

const Row kRows[] = {
    ROW("sm", "count", sm.count, 1, 1, 1024, true),
    ROW("sm", "clock_mhz", sm.clock_hz, kMega, 1e-3, 1e5, true),
    ROW("sm", "issue_per_clock", sm.issue_per_clock, 1, 1e-3, 64, false),
    ROW("sm", "warp_issue_per_clock", sm.warp_issue_per_clock, 1, 1e-3, 64, false),
    ROW("sm", "bytes_per_clock", sm.bytes_per_clock, 1, 1e-3, 1e6, false),
    ROW("sm", "max_threads", sm.max_threads, 1, 32, 65536, true),
    ROW("sm", "max_blocks", sm.max_blocks, 1, 1, 1024, true),
    ROW("sm", "registers", sm.registers, 1, 1024, 1 << 24, true),
    ROW("sm", "shared_bytes", sm.shared_bytes, 1, 1024, 1 << 30, true),
    ROW("block", "max_threads", block.max_threads, 1, 32, 65536, false),
    ROW("block", "max_registers", block.max_registers, 1, 1024, 1 << 24, false),
    ROW("block", "shared_bytes", block.shared_bytes, 1, 0, 1 << 30, false),
    ROW("block", "shared_optin_bytes", block.shared_optin_bytes, 1, 0, 1 << 30, true),
    ROW("block", "reserved_shared_bytes", block.reserved_shared_bytes, 1, 0, 1 << 20, false),
    ROW("memory", "bytes", memory.bytes, 1, 1 << 20, 1e15, true),
    ROW("memory", "gb_per_s", memory.bytes_per_s, kGiga, 1e-6, 1e6, true),
    ROW("memory", "clock_mhz", memory.clock_hz, kMega, 1e-3, 1e5, true),
    ROW("memory", "bus_bits", memory.bus_bits, 1, 8, 1 << 16, true),
    ROW("memory", "l2_bytes", memory.l2_bytes, 1, 0, 1e10, true),
    ROW("transfer", "h2d_gb_per_s", transfer.h2d_bytes_per_s, kGiga, 1e-6, 1e6, true),
    ROW("transfer", "d2h_gb_per_s", transfer.d2h_bytes_per_s, kGiga, 1e-6, 1e6, true),
    ROW("transfer", "overhead_us", transfer.overhead_ns, kUs, 0, 1e6, true),
    ROW("transfer", "engines", transfer.engines, 1, 1, 16, false),
    ROW("peak", "fp64_tflops", peak.fp64, kTera, 0, 1e6, false),
    ROW("peak", "fp32_tflops", peak.fp32, kTera, 0, 1e6, true),
    ROW("peak", "fp16_tflops", peak.fp16, kTera, 0, 1e6, false),
    ROW("peak", "tensor_fp64_tflops", peak.tensor_fp64, kTera, 0, 1e6, false),
    ROW("peak", "tensor_tf32_tflops", peak.tensor_tf32, kTera, 0, 1e6, false),
    ROW("peak", "tensor_fp16_tflops", peak.tensor_fp16, kTera, 1e-12, 1e6, true),
    ROW("peak", "tensor_fp8_tflops", peak.tensor_fp8, kTera, 0, 1e6, false),
    ROW("peak", "tensor_int8_tops", peak.tensor_int8, kTera, 0, 1e6, false),
    ROW("time", "launch_overhead_us", time.launch_overhead_ns, kUs, 0, 1e6, true),
    ROW("time", "slice_us", time.slice_ns, kUs, 0, 1e6, false),
    ROW("time", "block_overhead_ns", time.block_overhead_ns, 1, 0, 1e9, true),
    ROW("time", "timeslice_us", time.timeslice_ns, kUs, 1, 1e9, true),
    ROW("time", "switch_us", time.switch_ns, kUs, 0, 1e6, true),
    ROW("calls", "launch_us", calls.launch_ns, kUs, 0, 1e6, false),
    ROW("calls", "sync_us", calls.sync_ns, kUs, 0, 1e6, false),
    ROW("calls", "marker_us", calls.marker_ns, kUs, 0, 1e6, false),
    ROW("calls", "wait_call_us", calls.wait_call_ns, kUs, 0, 1e6, false),
    ROW("calls", "wait_us", calls.wait_ns, kUs, 0, 1e6, false),
    ROW("calls", "open_us", calls.open_ns, kUs, 0, 1e6, false),
    ROW("calls", "confine_us", calls.confine_ns, kUs, 0, 1e6, false),
    ROW("calls", "queue_launches", calls.queue_launches, 1, 4, 1e6, false),
    ROW("contention", "compute_beside_compute", contention.compute_compute, 1, 0, 20, false),
    ROW("contention", "compute_beside_memory", contention.compute_memory, 1, 0, 20, false),
    ROW("contention", "memory_beside_compute", contention.memory_compute, 1, 0, 20, false),
    ROW("contention", "memory_beside_memory", contention.memory_memory, 1, 0, 20, false),
    ROW("contention_disjoint", "compute_beside_compute", contention_disjoint.compute_compute, 1, 0, 20,
        false),
    ROW("contention_disjoint", "compute_beside_memory", contention_disjoint.compute_memory, 1, 0, 20, false),
    ROW("contention_disjoint", "memory_beside_compute", contention_disjoint.memory_compute, 1, 0, 20, false),
    ROW("contention_disjoint", "memory_beside_memory", contention_disjoint.memory_memory, 1, 0, 20, false),
};
#undef ROW

class Reader {
 public:
  Reader(const toml::table& root, const std::string& path) : root_(root), path_(path) { gpu_.path = path; }

  base::Result<GpuDescription> read() {
    for (auto&& [key, node] : root_) check_known(std::string(key.str()), key.source(), node);
    read_top();
    for (const Row& row : kRows) read_row(row);
    read_attributes();
    if (!problem_.empty()) return base::error(Code::kInvalid, problem_);
    return gpu_;
  }

 private:
  void fail(const toml::source_region& at, const std::string& what) {
    if (!problem_.empty()) return;  // the first one counts
    std::ostringstream text;
    text << path_ << ":" << at.begin.line << ":" << at.begin.column << ": " << what;
    problem_ = text.str();
  }

  void check_known(const std::string& section, const toml::source_region& at, const toml::node& node) {
    if (section == "name" || section == "uuid_seed" || section == "compute_capability") return;
    if (section == "attributes") return;
    bool section_known = false;
    for (const Row& row : kRows) section_known |= section == row.section;
    const toml::table* table = node.as_table();
    if (!section_known || !table) return fail(at, "unknown section or key '" + section + "'");
    for (auto&& [key, value] : *table) {
      bool known = false;
      for (const Row& row : kRows) known |= section == row.section && key.str() == row.key;
      if (!known) fail(key.source(), "unknown key '" + section + "." + std::string(key.str()) + "'");
    }
  }

  void read_top() {
    auto name = root_["name"].value<std::string>();
    auto seed = root_["uuid_seed"].value<std::string>();
    if (!name || name->empty()) fail(root_.source(), "missing key 'name' (a string)");
    if (!seed || seed->empty()) fail(root_.source(), "missing key 'uuid_seed' (a string)");
    const toml::array* cc = root_["compute_capability"].as_array();
    if (!cc || cc->size() != 2 || !cc->get(0)->is_integer() || !cc->get(1)->is_integer())
      return fail(root_.source(), "missing key 'compute_capability' (as [9, 0])");
    gpu_.name = name.value_or("");
    gpu_.cc_major = uint32_t(cc->get(0)->value_or(0));
    gpu_.cc_minor = uint32_t(cc->get(1)->value_or(0));
    hash_uuid(seed.value_or(""));
  }

  // FNV-1a, twice with different offsets: stable across machines and versions, which is all that is asked of
  // it.
  void hash_uuid(const std::string& seed) {
    for (int half = 0; half < 2; ++half) {
      const uint64_t basis = base::kFnvBasis + uint64_t(half) * base::kGoldenRatio;
      const uint64_t h = base::fnv1a(seed.data(), seed.size(), basis);
      for (int i = 0; i < 8; ++i) gpu_.uuid[size_t(half * 8 + i)] = uint8_t(h >> (8 * i));
    }
    gpu_.uuid[6] = uint8_t((gpu_.uuid[6] & 0x0f) | 0x40);  // looks like a version 4 UUID
    gpu_.uuid[8] = uint8_t((gpu_.uuid[8] & 0x3f) | 0x80);
  }

  void read_row(const Row& row) {
    const toml::node* node = root_[row.section][row.key].node();
    std::string name = std::string(row.section) + "." + row.key;
    if (!node) {
      if (row.required) fail(root_.source(), "missing key '" + name + "'");
      return;
    }
    if (!node->is_number()) return fail(node->source(), "'" + name + "' must be a number");
    double value = node->value_or(0.0);
    if (!(value >= row.min && value <= row.max)) {
      std::ostringstream text;
      text << "'" << name << "' is " << value << ", must be between " << row.min << " and " << row.max;
      return fail(node->source(), text.str());
    }
    row.set(gpu_, value * row.scale);
  }

  void read_attributes() {
    const toml::table* table = root_["attributes"].as_table();
    if (!table) return;
    for (auto&& [key, node] : *table) {
      int number = attribute_number(std::string(key.str()));
      if (number < 0) {
        fail(key.source(), "unknown device attribute '" + std::string(key.str()) +
                               "' (CU_DEVICE_ATTRIBUTE_ name in lower case)");
      } else if (!node.is_integer()) {
        fail(node.source(), "attribute '" + std::string(key.str()) + "' must be an integer");
      } else {
        gpu_.attributes[number] = int(node.value_or(int64_t(0)));
      }
    }
  }

  const toml::table& root_;
  std::string path_;
  GpuDescription gpu_;
  std::string problem_;
};

}  // namespace

base::Result<GpuDescription> parse_gpu_description(const std::string& text, const std::string& path) {
  if (const auto odd = base::first_outside_ascii(text)) {
    std::ostringstream message;
    message << path << ":" << odd->line << ":" << odd->column
            << ": only ASCII characters may be used, also in comments";
    return base::error(Code::kInvalid, message.str());
  }
  toml::parse_result parsed = toml::parse(std::string_view(text), std::string_view(path));
  if (!parsed) {
    const toml::parse_error& e = parsed.error();
    std::ostringstream message;
    message << path << ":" << e.source().begin.line << ":" << e.source().begin.column << ": "
            << e.description();
    return base::error(Code::kInvalid, message.str());
  }
  return Reader(parsed.table(), path).read();
}

base::Result<GpuDescription> load_gpu_description(const std::string& path) {
  const auto text = base::read_user_file(path, kMostBytes);
  if (!text)
    return base::error(
        text.error().code,
        text.error().text + " (TESSERA_SOFTGPU_GPU names a GPU description; see profiles/gpus)");
  return parse_gpu_description(*text, path);
}

uint32_t registers_per_block(uint32_t threads_per_block, uint32_t registers_per_thread) {
  // Registers are handed out per warp in units of 256 (8 per thread), on all architectures since Kepler.
  uint32_t warps = (threads_per_block + 31) / 32;
  return warps * ((registers_per_thread * 32 + 255) / 256 * 256);
}

uint32_t shared_per_block(const GpuDescription& gpu, uint32_t shared_bytes_per_block) {
  return (shared_bytes_per_block + gpu.block.reserved_shared_bytes + 127) / 128 * 128;
}

uint32_t blocks_per_sm(const GpuDescription& gpu, uint32_t threads_per_block, uint32_t registers_per_thread,
                       uint32_t shared_bytes_per_block) {
  uint32_t threads = std::max(1u, (threads_per_block + 31) / 32 * 32);
  uint32_t n = std::min(gpu.sm.max_blocks, gpu.sm.max_threads / threads);
  n = std::min(n, gpu.sm.registers / std::max(1u, registers_per_block(threads, registers_per_thread)));
  return std::min(n, gpu.sm.shared_bytes / std::max(1u, shared_per_block(gpu, shared_bytes_per_block)));
}

bool gpu_attribute(const GpuDescription& gpu, int number, int* value) {
  if (auto override_value = gpu.attributes.find(number); override_value != gpu.attributes.end()) {
    *value = override_value->second;
    return true;
  }
  return attribute_default(gpu, number, value);
}

}  // namespace tessera::profiles
