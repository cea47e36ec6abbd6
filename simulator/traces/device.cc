#include "simulator/traces/device.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <vector>

namespace tessera::simulator::traces {
namespace {

struct Row {
  std::string key, part;
  Device device;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = [] {
    std::vector<Row> rows;
    const auto add = [&](const char* key, const char* part, uint32_t sms, uint32_t threads, uint32_t blocks,
                         uint32_t registers, uint32_t shared, uint32_t reserved, double fp32, double tensor,
                         double gb_per_s) {
      Device d;
      d.path = key;
      d.name = part;
      d.sm.count = sms;
      d.sm.max_threads = threads;
      d.sm.max_blocks = blocks;
      d.sm.registers = registers;
      d.sm.shared_bytes = shared;
      d.block.reserved_shared_bytes = reserved;
      d.peak.fp32 = fp32 * 1e12;
      d.peak.tensor_fp16 = tensor * 1e12;
      d.memory.bytes_per_s = gb_per_s * 1e9;
      rows.push_back({key, part, std::move(d)});
    };
#define TS_DEVICE(key, part, sms, threads, blocks, registers, shared, reserved, fp32, tensor, gb_per_s) \
  add(#key, part, sms, threads, blocks, registers, shared, reserved, fp32, tensor, gb_per_s);
#include "simulator/traces/devices.def"
    return rows;
  }();
  return kRows;
}

// The first row whose part occurs in the name says what it does. Libraries' own names come before what frameworks add.
struct NamePart {
  const char* part;  // in lower case
  Work work;
};
constexpr NamePart kNameParts[] = {
    {"nccl", Work::kCollective},
    {"rccl", Work::kCollective},
    {"all_reduce", Work::kCollective},
    {"allreduce", Work::kCollective},
    {"all_gather", Work::kCollective},
    {"reduce_scatter", Work::kCollective},
    {"computeoffsets", Work::kMemory},
    {"splitkreduce", Work::kMemory},
    {"gemv", Work::kMemory},
    {"flash", Work::kTensor},
    {"fmha", Work::kTensor},
    {"attn_fwd", Work::kTensor},
    {"attention", Work::kTensor},
    {"tensorop", Work::kTensor},
    {"bf16gemm", Work::kTensor},
    {"nvjet", Work::kTensor},
    {"hgemm", Work::kTensor},
    {"s16816", Work::kTensor},
    {"s1688", Work::kTensor},
    {"h1688", Work::kTensor},
    {"h884", Work::kTensor},
    {"s884", Work::kTensor},
    {"cijk", Work::kTensor},
    {"matmul", Work::kTensor},
    {"bmm_", Work::kTensor},
    {"cutlass", Work::kTensor},
    {"xmma", Work::kTensor},
    {"gemm", Work::kCompute},
    {"scudnn", Work::kCompute},
    {"winograd", Work::kCompute},
    {"dgrad", Work::kCompute},
    {"wgrad", Work::kCompute},
    {"convolve", Work::kCompute},
    {"implicit", Work::kCompute},
    {"fft", Work::kCompute},
    {"elementwise", Work::kMemory},
    {"reduce", Work::kMemory},
    {"softmax", Work::kMemory},
    {"norm", Work::kMemory},
    {"bn_", Work::kMemory},
    {"multi_tensor", Work::kMemory},
    {"copy", Work::kMemory},
    {"cat", Work::kMemory},
    {"index", Work::kMemory},
    {"embedding", Work::kMemory},
    {"gather", Work::kMemory},
    {"scatter", Work::kMemory},
    {"pool", Work::kMemory},
    {"transpose", Work::kMemory},
    {"nchwtonhwc", Work::kMemory},
    {"nhwctonchw", Work::kMemory},
    {"upsample", Work::kMemory},
    {"select", Work::kMemory},
    {"rotary", Work::kMemory},
    {"silu", Work::kMemory},
    {"gelu", Work::kMemory},
    {"quant", Work::kMemory},
    {"sort", Work::kMemory},
    {"scan", Work::kMemory},
    {"fill", Work::kMemory},
    {"cache", Work::kMemory},
    {"triton_", Work::kMemory},
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return out;
}

}  // namespace

const Device* device_of_key(std::string_view key) {
  for (const Row& row : rows())
    if (row.key == key) return &row.device;
  return nullptr;
}

const Device* device_of_name(std::string_view name) {
  for (const Row& row : rows())
    if (name.find(row.part) != std::string_view::npos) return &row.device;
  return nullptr;
}

std::string device_keys() {
  std::string all;
  for (const Row& row : rows())
    if (all.find(row.key + ",") == std::string::npos) all += row.key + ", ";
  return all.substr(0, all.size() - 2);
}

Work work_of(std::string_view kernel) {
  const std::string name = lower(kernel);
  for (const NamePart& row : kNameParts)
    if (name.find(row.part) != std::string::npos) return row.work;
  return Work::kUnknown;
}

bool is_of_triton(std::string_view kernel) {
  // Inductor's names; hand-written kernels of Triton have plain function names without arguments or templates.
  return kernel.starts_with("triton_");
}

bool is_attention(std::string_view kernel) {
  const std::string name = lower(kernel);
  constexpr std::string_view kParts[] = {"attn", "attention", "fmha", "flash", "mla_"};
  return std::any_of(std::begin(kParts), std::end(kParts),
                     [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

double length_factor(Work work, const Device& from, const Device& to) {
  if (&from == &to) return 1;
  const double fp32 = from.peak.fp32 / to.peak.fp32;
  const double tensor = from.peak.tensor_fp16 / to.peak.tensor_fp16;
  const double memory = from.memory.bytes_per_s / to.memory.bytes_per_s;
  switch (work) {
    case Work::kCompute:
      return fp32;
    case Work::kTensor:
      return tensor;
    case Work::kMemory:
      return memory;
    case Work::kCollective:
      return 1;  // mostly waiting for other GPUs
    case Work::kUnknown:
      break;
  }
  // Nearest to 1 of those on the same side; 1 if they disagree.
  if (tensor > 1 && memory > 1) return std::min(tensor, memory);
  if (tensor < 1 && memory < 1) return std::max(tensor, memory);
  return 1;
}

}  // namespace tessera::simulator::traces
