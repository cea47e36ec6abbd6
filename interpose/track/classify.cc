#include "interpose/track/classify.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

namespace tessera::track {
namespace {

constexpr double kUsualSlotsPerByte = 10;  // A100 12, H100 9
constexpr double kBorder = 1.5;            // between 1/1.5 and 1.5 of the GPU's own ratio: unknown
constexpr double kIterations = 16;         // assumed of a loop
constexpr int kMaxDepth = 3;

struct OpCost {
  ptx::Name opcode;
  double slots;
};
// Slots of one lane by opcode; what is not listed costs 1. Free: address arithmetic by name only,
// declarations of the parameter space. Several: pipes with fewer lanes than the issue slots. Tensor
// operations are below.
constexpr std::array<OpCost, 20> kCosts = {{
    {"mov", 0},  {"cvta", 0}, {"ret", 0}, {"exit", 0}, {"bra", 1},   {"sin", 8},  {"cos", 8},
    {"ex2", 8},  {"lg2", 8},  {"rcp", 8}, {"sqrt", 8}, {"rsqrt", 8}, {"tanh", 8}, {"div", 10},
    {"shfl", 4}, {"ldu", 4},  {"cvt", 2}, {"rem", 20}, {"bar", 2},   {"popc", 4},
}};
// One lane's share of a tensor instruction of a warp, in slots: 16x8x16 half precision is 64 multiply-adds a
// lane, of which the tensor units do about 16 per slot.
constexpr double kTensorSlots = 4;

bool is_tensor(ptx::Name opcode) {
  return opcode == "mma" || opcode == "wmma" || opcode == "wgmma" || opcode == "tcgen05";
}

bool is_memory(ptx::Name opcode) {
  return opcode == "ld" || opcode == "st" || opcode == "atom" || opcode == "red";
}

double vector_width(const ptx::Instruction& i) {
  for (ptx::Name m : i.modifiers) {
    if (m == "v2") return 2;
    if (m == "v4") return 4;
    if (m == "v8") return 8;
  }
  return 1;
}

bool is_other_space(const ptx::Instruction& i) {
  static constexpr ptx::Name kSpaces[] = {"param", "shared",      "local",
                                          "const", "shared::cta", "shared::cluster"};
  return std::any_of(std::begin(kSpaces), std::end(kSpaces), [&](ptx::Name s) { return i.has(s); });
}

void add(const ptx::Instruction& i, double weight, ThreadCost* out) {
  if (is_tensor(i.opcode)) {
    out->slots += weight * kTensorSlots;
    return;
  }
  if (is_memory(i.opcode)) {
    if (i.has("param")) return;
    out->slots += weight * 4;
    if (!is_other_space(i)) out->bytes += weight * vector_width(i) * double(ptx::type_bytes(i.type()));
    return;
  }
  if (i.opcode == "cp" && i.has("async")) {  // cp.async [shared], [global], bytes
    out->slots += weight * 4;
    if (i.operands.size() > 2 && i.operands[2].kind == ptx::Operand::Kind::kInteger)
      out->bytes += weight * double(std::min<uint64_t>(i.operands[2].bits, 16));
    return;
  }
  const auto* row =
      std::find_if(kCosts.begin(), kCosts.end(), [&](const OpCost& c) { return c.opcode == i.opcode; });
  const double f64 = i.type() == ptx::Type::kF64 ? 2 : 1;
  out->slots += weight * (row == kCosts.end() ? 1 : row->slots) * f64;
}

// Statements in source order, nested scopes flattened: labels and branches get positions.
struct Flat {
  std::vector<const ptx::Statement*> lines;
  std::unordered_map<ptx::Name, size_t> labels;
  void collect(const std::vector<ptx::Statement>& body) {
    for (const ptx::Statement& s : body) {
      if (s.kind == ptx::Statement::Kind::kScope) collect(s.scope);
      if (s.kind == ptx::Statement::Kind::kLabel) labels[s.label] = lines.size();
      if (s.kind == ptx::Statement::Kind::kInstruction || s.kind == ptx::Statement::Kind::kLabel)
        lines.push_back(&s);
    }
  }
  // Returns the place of the label if that is before `from`; else `from`.
  size_t back_to(ptx::Name label, size_t from) const {
    auto found = labels.find(label);
    return found == labels.end() || found->second > from ? from : found->second;
  }
};

}  // namespace

ThreadCost cost_of(const ptx::Function& kernel) {
  Flat flat;
  flat.collect(kernel.body);
  // A branch to a label above it closes a loop over all lines between: +1 at the label, -1 after the branch.
  std::vector<int> change(flat.lines.size() + 1, 0);
  for (size_t i = 0; i < flat.lines.size(); ++i) {
    const ptx::Statement& s = *flat.lines[i];
    if (s.kind != ptx::Statement::Kind::kInstruction || s.instruction.opcode != "bra") continue;
    if (s.instruction.operands.empty()) continue;
    const size_t start = flat.back_to(s.instruction.operands[0].name, i);
    if (start == i) continue;
    ++change[start];
    --change[i + 1];
  }
  ThreadCost cost;
  int depth = 0;
  for (size_t i = 0; i < flat.lines.size(); ++i) {
    depth += change[i];
    if (flat.lines[i]->kind != ptx::Statement::Kind::kInstruction) continue;
    double weight = 1;
    for (int d = 0; d < std::min(depth, kMaxDepth); ++d) weight *= kIterations;
    add(flat.lines[i]->instruction, weight, &cost);
  }
  return cost;
}

ipc::abi::ResourceClass classify(const ThreadCost& cost, double slots_per_byte) {
  if (cost.slots <= 0) return ipc::abi::kResourceUnknown;
  const double border = slots_per_byte > 0 ? slots_per_byte : kUsualSlotsPerByte;
  const double ratio = cost.bytes > 0 ? cost.slots / cost.bytes : border * 100;
  if (ratio >= border * kBorder) return ipc::abi::kResourceCompute;
  if (ratio * kBorder <= border) return ipc::abi::kResourceMemory;
  return ipc::abi::kResourceUnknown;
}

}  // namespace tessera::track
