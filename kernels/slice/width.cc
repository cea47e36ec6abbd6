#include "kernels/slice/width.h"

#include <algorithm>

#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

constexpr uint32_t kWarp = 32;

struct Row {
  unsigned sm;
  uint32_t warps, blocks, shared_kib, per_block_kib, reserved;
};
constexpr Row kRows[] = {
    {75, 32, 16, 64, 64, 0},       {80, 64, 32, 164, 163, 1024},  {86, 48, 16, 100, 99, 1024},
    {87, 48, 16, 164, 163, 1024},  {89, 48, 24, 100, 99, 1024},   {90, 64, 32, 228, 227, 1024},
    {100, 64, 32, 228, 227, 1024}, {103, 64, 32, 228, 227, 1024}, {120, 48, 24, 100, 99, 1024},
};

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

uint64_t shared_of(const SmLimits& l, uint64_t bytes) {
  return round_up(bytes + l.shared_reserved_bytes, l.shared_unit);
}

bool sees_shared_size(const ptx::Operand& o) {
  if (o.kind == ptx::Operand::Kind::kSpecial &&
      (o.name == "%dynamic_smem_size" || o.name == "%total_smem_size" || o.name == "%aggr_smem_size"))
    return true;
  return std::any_of(o.children.begin(), o.children.end(), sees_shared_size);
}

}  // namespace

SmLimits sm_limits(unsigned sm) {
  const Row* found = &kRows[0];
  for (const Row& row : kRows)
    if (row.sm <= sm) found = &row;
  SmLimits l;
  l.warps = found->warps;
  l.blocks = found->blocks;
  l.shared_bytes = found->shared_kib * 1024;
  l.shared_per_block = found->per_block_kib * 1024;
  l.shared_reserved_bytes = found->reserved;
  if (found->sm == 75) l.shared_unit = 256;
  return l;
}

uint32_t blocks_per_sm(const SmLimits& l, const BlockNeeds& n) {
  const uint32_t warps = (std::max(n.threads, 1u) + kWarp - 1) / kWarp;
  uint64_t most = std::min<uint64_t>(l.blocks, l.warps / warps);
  if (n.registers != 0) {
    const uint64_t per_warp = round_up(uint64_t(n.registers) * kWarp, l.register_unit);
    most = std::min(most, l.registers / per_warp / warps);
  }
  if (n.shared_bytes > l.shared_per_block) return 0;
  const uint64_t shared = shared_of(l, n.shared_bytes);
  if (shared != 0) most = std::min(most, l.shared_bytes / shared);
  return uint32_t(most);
}

std::vector<WidthStep> width_steps(const SmLimits& l, const BlockNeeds& n) {
  std::vector<WidthStep> steps;
  const uint32_t as_it_is = blocks_per_sm(l, n);
  if (as_it_is == 0) return steps;
  steps.push_back({0, as_it_is});
  for (uint32_t blocks = as_it_is - 1; blocks >= 1; --blocks) {
    // The least allocation that lets only `blocks` of them in.
    const uint64_t unit = l.shared_bytes / (blocks + 1) / l.shared_unit * l.shared_unit + l.shared_unit;
    const uint64_t wanted =
        std::max<uint64_t>(unit - l.shared_reserved_bytes - l.shared_unit + 1, n.shared_bytes);
    BlockNeeds more = n;
    more.shared_bytes = wanted;
    if (wanted > l.shared_per_block || blocks_per_sm(l, more) != blocks) continue;
    steps.push_back({wanted - n.shared_bytes, blocks});
  }
  return steps;
}

std::string width_obstacle(const ptx::Module& module, ptx::Name kernel) {
  Closure closure(module);
  const FunctionFacts* root = closure.facts(kernel);
  if (!root) return "not defined in this module";
  for (const FunctionFacts* f : reached(*root)) {
    // The function that is called there could ask for the size.
    if (f->own.refusal == Refusal::kIndirectCall) return f->own.detail;
    for (const Node& node : f->flow.nodes)
      for (const ptx::Operand& o : node.instruction->operands)
        if (sees_shared_size(o)) return at(*node.instruction);
  }
  return "";
}

}  // namespace tessera::slice
