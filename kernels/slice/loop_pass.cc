#include "kernels/slice/loop_pass.h"

#include <algorithm>

namespace tessera::slice {

LoopPass::LoopPass(const Flow& flow, const Loop& loop) : flow_(flow), loop_(loop) {
  const auto n = static_cast<uint32_t>(loop.blocks.size());
  ways_.resize(n + 1);
  Graph back(n + 1);
  for (uint32_t p = 0; p < n; ++p) {
    const Block& block = flow.blocks[loop.blocks[p]];
    bool ends = block.leaves;
    for (uint32_t s : block.successors) {
      const uint32_t to = s == loop.header ? kNone : position(s);
      if (to == kNone) {
        ends = true;
      } else {
        ways_[p].push_back(to);
        back[to].push_back(p);
      }
    }
    if (ends) {
      ways_[p].push_back(n);
      back[n].push_back(p);
    }
  }
  const uint32_t root = position(loop.header);
  number_tree(dominators(ways_, root), root);
  behind_ = dominators(back, n);
  // Blocks that never come to the end of a pass: as if each could. No branch of theirs is lost by that.
  bool endless = false;
  for (uint32_t p = 0; p < n; ++p) {
    if (behind_[p] == kNone) {
      back[n].push_back(p);
      endless = true;
    }
  }
  if (endless) behind_ = dominators(back, n);
}

uint32_t LoopPass::position(uint32_t block) const {
  auto it = std::lower_bound(loop_.blocks.begin(), loop_.blocks.end(), block);
  return it != loop_.blocks.end() && *it == block ? static_cast<uint32_t>(it - loop_.blocks.begin()) : kNone;
}

bool LoopPass::contains(uint32_t block) const {
  return position(block) != kNone;
}

bool LoopPass::leaves(uint32_t block) const {
  const Block& b = flow_.blocks[block];
  return b.leaves ||
         std::any_of(b.successors.begin(), b.successors.end(), [&](uint32_t s) { return !contains(s); });
}

// Immediate dominators from `root`; kNone for what it does not reach. The root is its own.
std::vector<uint32_t> LoopPass::dominators(const Graph& to, uint32_t root) {
  const size_t n = to.size();
  std::vector<uint32_t> order, rank(n, kNone), idom(n, kNone);  // in post-order
  std::vector<uint8_t> seen(n, 0);
  std::vector<std::pair<uint32_t, size_t>> open{{root, 0}};
  seen[root] = 1;
  while (!open.empty()) {
    auto& [at, edge] = open.back();
    if (edge < to[at].size()) {
      const uint32_t next = to[at][edge++];
      if (!seen[next]) {
        seen[next] = 1;
        open.push_back({next, 0});
      }
      continue;
    }
    rank[at] = static_cast<uint32_t>(order.size());
    order.push_back(at);
    open.pop_back();
  }
  Graph from(n);
  for (uint32_t at : order)
    for (uint32_t next : to[at]) from[next].push_back(at);
  idom[root] = root;
  for (bool changed = true; changed;) {
    changed = false;
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      if (*it == root) continue;
      uint32_t common = kNone;
      for (uint32_t other : from[*it]) {
        if (idom[other] == kNone) continue;
        while (common != kNone && common != other) {
          uint32_t& lower = rank[common] < rank[other] ? common : other;
          lower = idom[lower];
        }
        common = other;
      }
      changed |= idom[*it] != common;
      idom[*it] = common;
    }
  }
  return idom;
}

// Numbers the tree so that what a block dominates is one run of numbers.
void LoopPass::number_tree(const std::vector<uint32_t>& idom, uint32_t root) {
  Graph children(idom.size());
  for (uint32_t p = 0; p < idom.size(); ++p)
    if (idom[p] != kNone && p != root) children[idom[p]].push_back(p);
  first_.assign(idom.size(), kNone);
  last_.assign(idom.size(), 0);
  uint32_t next = 0;
  std::vector<std::pair<uint32_t, size_t>> open{{root, 0}};
  first_[root] = next++;
  while (!open.empty()) {
    auto& [at, child] = open.back();
    if (child < children[at].size()) {
      const uint32_t down = children[at][child++];
      first_[down] = next++;
      open.push_back({down, 0});
    } else {
      last_[at] = next;
      open.pop_back();
    }
  }
}

bool LoopPass::before(const Node& earlier, const Node& later) const {
  const uint32_t a = position(flow_.block_of(earlier)), b = position(flow_.block_of(later));
  if (a == b) return &earlier < &later;
  return first_[a] <= first_[b] && first_[b] < last_[a];
}

bool LoopPass::comes_back_only_through(uint32_t from, const std::vector<uint8_t>& by) const {
  std::vector<uint8_t> seen(ways_.size(), 0);
  std::vector<uint32_t> open;
  auto returns = [&](uint32_t p) {
    const auto& s = flow_.blocks[loop_.blocks[p]].successors;
    return std::find(s.begin(), s.end(), loop_.header) != s.end();
  };
  // False if the header follows directly.
  auto go_on = [&](uint32_t p) {
    for (uint32_t to : ways_[p]) {
      if (to + 1 < ways_.size() && !seen[to] && !by[loop_.blocks[to]]) {
        seen[to] = 1;
        open.push_back(to);
      }
    }
    return !returns(p);
  };
  if (from == kStart) {
    if (by[loop_.header]) return true;
    open.push_back(position(loop_.header));
  } else if (!go_on(position(from))) {
    return false;
  }
  while (!open.empty()) {
    const uint32_t p = open.back();
    open.pop_back();
    if (!go_on(p)) return false;
  }
  return true;
}

void LoopPass::decides_about(uint32_t block, std::vector<uint32_t>* out) const {
  const uint32_t at = position(block);
  for (uint32_t way : ways_[at])
    for (uint32_t p = way; p != behind_[at] && p + 1 < ways_.size(); p = behind_[p])
      out->push_back(loop_.blocks[p]);
}

}  // namespace tessera::slice
