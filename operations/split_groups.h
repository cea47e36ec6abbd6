// How a call of several groups of products is cut: into runs of whole groups, and parts of one group where that alone is
// too much. Pure; the arrays are the program's, as the call has them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::operations {

template <class Int>
struct Groups {
  const Int *m, *n, *k, *size;  // of each group; `size`: products
  int64_t count;
};

struct GroupPiece {
  int64_t group, groups;  // which ones
  int64_t product;        // first one of `group`, and how many of it; all of them if `groups` > 1
  int64_t products;
};

// In multiply-adds. Sizes are those of a call whose FLOP fit into 64 bits.
template <class Int>
uint64_t work_of_product(const Groups<Int>& g, int64_t group) {
  return uint64_t(g.m[group]) * uint64_t(g.n[group]) * uint64_t(g.k[group]);
}
template <class Int>
uint64_t work_of(const Groups<Int>& g, const GroupPiece& piece) {
  uint64_t sum = work_of_product(g, piece.group) * uint64_t(piece.products);
  for (int64_t i = piece.group + 1; i < piece.group + piece.groups; i++)
    sum += work_of_product(g, i) * uint64_t(g.size[i]);
  return sum;
}
template <class Int>
uint64_t work_of(const Groups<Int>& g) {
  return g.count == 0 ? 0 : work_of(g, {0, g.count, 0, int64_t(g.size[0])});
}

// The piece that begins there: at most `most` multiply-adds, but at least one product.
template <class Int>
GroupPiece piece_from(const Groups<Int>& g, int64_t group, int64_t product, uint64_t most) {
  const uint64_t one = work_of_product(g, group);
  const int64_t left = int64_t(g.size[group]) - product;
  const int64_t fit = one == 0 ? left : int64_t(std::min(most / one, uint64_t(left)));
  if (product != 0 || fit < left)
    return {group, 1, product, std::max<int64_t>(std::min<int64_t>(1, left), fit)};
  GroupPiece piece{group, 1, 0, left};
  uint64_t used = one * uint64_t(left);
  for (int64_t next = group + 1; next < g.count; next++, piece.groups++) {
    const uint64_t more = work_of_product(g, next) * uint64_t(g.size[next]);
    if (more > most - used) break;
    used += more;
  }
  return piece;
}

// Calls visit(piece) for each, in order, until it returns false. False: it did.
template <class Int, class Visit>
bool for_pieces(const Groups<Int>& g, uint64_t most, Visit&& visit) {
  int64_t group = 0, product = 0;
  while (group < g.count) {
    const GroupPiece piece = piece_from(g, group, product, most);
    if (!visit(piece)) return false;
    product += piece.products;
    if (piece.groups > 1 || product >= int64_t(g.size[group])) {
      group += piece.groups;
      product = 0;
    }
  }
  return true;
}

}  // namespace tessera::operations
