// One pass through a loop: from its header to the next time there, or out. Says what a pass surely goes
// through and which branches decide about what in it. Used by the rules on waiting. Private to kernels/slice;
// views into the Flow.
//
// Dominators as in Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm (2001); control dependence as
// in Ferrante, Ottenstein, Warren: The Program Dependence Graph and Its Use in Optimization (1987), with
// leaving the loop and coming back to the header as the one end of a pass.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/slice/flow.h"

namespace tessera::slice {

class LoopPass {
 public:
  LoopPass(const Flow& flow, const Loop& loop);

  bool contains(uint32_t block) const;
  bool leaves(uint32_t block) const;  // there is a way out of the loop from its end
  // Whoever comes to `later` in a pass has been at `earlier` in the same pass.
  bool before(const Node& earlier, const Node& later) const;
  // Every way from the end of `from` (or, with from = kStart, from the header's beginning) back to the header
  // goes through a block for which `by` is true.
  static constexpr uint32_t kStart = UINT32_MAX;
  bool comes_back_only_through(uint32_t from, const std::vector<uint8_t>& by) const;
  // Blocks for which the branch at the end of `block` decides whether, or how often, a pass comes to them.
  // Appended to `out`.
  void decides_about(uint32_t block, std::vector<uint32_t>* out) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  using Graph = std::vector<std::vector<uint32_t>>;  // by position in the loop

  uint32_t position(uint32_t block) const;
  static std::vector<uint32_t> dominators(const Graph& to, uint32_t root);
  void number_tree(const std::vector<uint32_t>& idom, uint32_t root);

  const Flow& flow_;
  const Loop& loop_;
  Graph ways_;                          // within a pass; the last row is its end
  std::vector<uint32_t> first_, last_;  // by position: the run of numbers of what it dominates
  std::vector<uint32_t> behind_;        // immediate post-dominator, by position
};

}  // namespace tessera::slice
