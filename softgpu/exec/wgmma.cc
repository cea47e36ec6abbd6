// Matrix instructions of warpgroups (four warps in a row). The product is made when the last of the four
// warps arrives, which is a legal time for it; the others wait until then, so that a warp that never comes is
// a deadlock with a report. Waiting for groups is free.
//
// A descriptor of a matrix in shared memory names 16-byte pieces of it. K-major (rows of 32 bytes along K,
// two pieces): row r and piece j are at
//   start + r % 8 * S + r / 8 * stride + j * (S == 16 ? leading : 16)
// M- or N-major (transposed; pieces are eight 16-bit elements along M or N): piece c of row k is at
//   start + c % (S / 16) * 16 + c / (S / 16) * leading + k % 8 * S + k / 8 * stride
// where S is the swizzle's width in bytes, 16 without one; without one, leading and stride change places in
// the second form. Then the bits 4.. of the address are combined with its bits 7.., as many as S has pieces,
// counted from the base offset.
#include <algorithm>
#include <bit>
#include <cstring>

#include "softgpu/exec/access.h"
#include "softgpu/exec/core.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {
namespace {

using lane::get;

constexpr unsigned kWarps = 4, kRows = 64, kMostColumns = 256, kMostDepth = 32;

struct Descriptor {
  uint32_t start, leading, stride;  // bytes
  uint32_t base;                    // where the swizzle's pattern begins, in 128 bytes
  uint32_t width;                   // S

  explicit Descriptor(uint64_t bits) {
    const auto field = [bits](unsigned at) { return static_cast<uint32_t>(bits >> at & 0x3fff) << 4; };
    constexpr uint32_t kWidths[] = {16, 128, 64, 32};
    start = field(0), leading = field(16), stride = field(32);
    base = bits >> 49 & 7;
    width = kWidths[bits >> 62];
  }
  uint32_t swizzled(uint32_t address) const {
    return address ^ ((((address >> 7) - base) & (width / 16 - 1)) << 4);
  }
  uint32_t along_k(unsigned row, unsigned piece) const {
    return swizzled(start + row % 8 * width + row / 8 * stride + piece * (width == 16 ? leading : 16));
  }
  uint32_t across_k(unsigned k, unsigned piece) const {
    const unsigned per = width / 16;
    const uint32_t outer = width == 16 ? stride : leading, eight = width == 16 ? leading : stride;
    return swizzled(start + piece % per * 16 + piece / per * outer + k % 8 * width + k / 8 * eight);
  }
};

// Elements of 16 bytes.
template <class Put>
void unpack(const char* p, Element type, Put put) {
  const unsigned bytes = bits_of(type) / 8;
  for (unsigned j = 0; j < 16 / bytes; ++j) {
    uint32_t bits = 0;
    std::memcpy(&bits, p + j * bytes, bytes);
    put(j, value_of(type, bits));
  }
}

// A matrix of `size` rows along M or N from shared memory; put(row, k, value). False after a fault.
template <class Put>
bool load(Warp& w, const Op* op, uint64_t bits, bool transposed, Element type, unsigned size, Put put) {
  const Descriptor d(bits);
  const unsigned rows = transposed ? 256 / bits_of(type) : size, pieces = transposed ? size / 8 : 2,
                 per = 128 / bits_of(type);
  for (unsigned row = 0; row < rows; ++row)
    for (unsigned piece = 0; piece < pieces; ++piece) {
      const uint32_t address = transposed ? d.across_k(row, piece) : d.along_k(row, piece);
      const char* p = reach(w, op, Space::kShared, 0, address, 16, false, 16);
      if (!p) return false;
      unpack(p, type, [&](unsigned j, double x) {
        if (transposed)
          put(piece * 8 + j, row, x);
        else
          put(row, piece * per + j, x);
      });
    }
  return true;
}

// sums[4][n] += a[4][k] * b[k][n]: four rows and eight columns at a time stay in registers.
void multiply(const double* a, const double* b, double* sums, unsigned n, unsigned k) {
  for (unsigned first = 0; first < n; first += 8) {
    double s[4][8];
    for (unsigned i = 0; i < 4; ++i)
      for (unsigned j = 0; j < 8; ++j) s[i][j] = sums[i * n + first + j];
    for (unsigned t = 0; t < k; ++t)
      for (unsigned i = 0; i < 4; ++i) {
        const double x = a[i * kMostDepth + t];
        for (unsigned j = 0; j < 8; ++j) s[i][j] += x * b[t * n + first + j];
      }
    for (unsigned i = 0; i < 4; ++i)
      for (unsigned j = 0; j < 8; ++j) sums[i * n + first + j] = s[i][j];
  }
}

const Op* misuse(Warp& w, const Op* op, const char* what) {
  return raise(w, op, FaultKind::kIllegalInstruction,
               w.mask ? static_cast<unsigned>(std::countr_zero(w.mask)) : 0, 0,
               std::string("warpgroup instruction: ") + what);
}

// What all lanes of a warpgroup must agree on.
struct Call {
  uint64_t a, b;
  bool accumulate;
  bool operator==(const Call&) const = default;
};
bool call_of(Warp& w, const Op* op, Call* call) {
  const auto same = [&](uint32_t operand, uint64_t* value) {
    *value = operand == kNoOperand ? 0 : get<uint64_t>(w, operand, 0);
    for (unsigned l = 1; operand != kNoOperand && l < kLanes; ++l)
      if (get<uint64_t>(w, operand, l) != *value) return false;
    return true;
  };
  Mask accumulate = *at<Mask>(w, op->d2);
  if (op->flags & kNegate) accumulate = ~accumulate;
  call->accumulate = accumulate != 0;
  return same(op->a, &call->a) && same(op->b, &call->b) && (accumulate == 0 || accumulate == ~0u);
}

bool waits(const Warp& w) {
  return w.n_groups == 1 && w.groups[0].state == GroupState::kBarrier &&
         w.groups[0].barrier == kWarpgroupBarrier;
}

// The columns that element i of a lane's sums has, and its row among the warp's 16.
unsigned sum_row(unsigned l, unsigned i) {
  return l / 4 + i / 2 % 2 * 8;
}
unsigned sum_column(unsigned l, unsigned i) {
  return i / 4 * 8 + l % 4 * 2 + i % 2;
}

// The whole product; warps: the four of the group.
bool execute(Warp* warps, Warp& w, const Op* op, const MatrixInfo& info, const Call& call) {
  alignas(64) double a[kRows * kMostDepth], b[kMostDepth * kMostColumns], sums[16 * kMostColumns];
  const uint32_t* lists = w.frame->code->extra.data();
  const unsigned n = info.n, k = info.k;
  const double sign_a = info.negate_a ? -1 : 1, sign_b = info.negate_b ? -1 : 1;
  if (!load(w, op, call.b, info.transpose_b, info.b_type, n,
            [&](unsigned column, unsigned t, double x) { b[t * n + column] = x * sign_b; }))
    return false;
  if (info.a_in_memory) {
    if (!load(w, op, call.a, info.transpose_a, info.a_type, kRows,
              [&](unsigned row, unsigned t, double x) { a[row * kMostDepth + t] = x * sign_a; }))
      return false;
  } else {
    const unsigned per = 32 / bits_of(info.a_type);
    for (unsigned q = 0; q < kWarps; ++q)
      for (unsigned l = 0; l < kLanes; ++l)
        for (unsigned i = 0; i < 4 * per; ++i) {
          const unsigned r = i / per, row = q * 16 + l / 4 + r % 2 * 8,
                         column = r / 2 * 4 * per + l % 4 * per + i % per;
          a[row * kMostDepth + column] = sign_a * read_element(warps[q], lists + info.a, info.a_type, l, i);
        }
  }
  for (unsigned q = 0; q < kWarps; ++q) {
    if (call.accumulate)
      for (unsigned l = 0; l < kLanes; ++l)
        for (unsigned i = 0; i < n / 2; ++i)
          sums[sum_row(l, i) * n + sum_column(l, i)] =
              read_element(warps[q], lists + info.c, info.c_type, l, i);
    else
      std::fill_n(sums, 16 * n, 0.0);
    for (unsigned row = 0; row < 16; row += 4)
      multiply(a + (q * 16 + row) * kMostDepth, b, sums + row * n, n, k);
    for (unsigned l = 0; l < kLanes; ++l)
      for (unsigned i = 0; i < n / 2; ++i)
        write_element(warps[q], lists + info.d, info.d_type, l, i, sums[sum_row(l, i) * n + sum_column(l, i)],
                      info.saturate);
  }
  w.worker->memory.tensor_operations += uint64_t{2} * kRows * n * k;
  return true;
}

}  // namespace

const Op* op_warpgroup_point(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->c, &next)) return next;
  if (w.mask != ~0u) return misuse(w, op, "executed by a part of a warp");
  return op + 1;
}

const Op* op_warpgroup_mma(Warp& w, const Op* op) {
  const Op* next;
  if (!gather_members(w, op, op->c, &next)) return next;
  if (w.mask != ~0u) return misuse(w, op, "executed by a part of a warp");
  Block& block = *w.block;
  const uint32_t first = w.index / kWarps * kWarps;
  if (first + kWarps > block.warps.size())
    return misuse(w, op, "the block's last warps are fewer than the four of a warpgroup");
  Warp* warps = &block.warps[first];
  Call call;
  if (!call_of(w, op, &call)) return misuse(w, op, "lanes give different descriptors or different scale-d");
  bool all = true;
  for (unsigned q = 0; q < kWarps; ++q) {
    Warp& other = warps[q];
    if (&other == &w) continue;
    if (!other.live) return misuse(w, op, "a warp of the warpgroup has exited");
    if (!waits(other)) {
      all = false;
      continue;
    }
    Call theirs;
    if (other.groups[0].pc != op + 1) return misuse(w, op, "warps of a warpgroup execute different ones");
    call_of(other, op, &theirs);
    if (!(theirs == call)) return misuse(w, op, "warps give different descriptors or different scale-d");
  }
  if (!all) {
    count_issue(w, op);
    put_away(w, op + 1, w.frame, w.mask, GroupState::kBarrier, kWarpgroupBarrier);
    return start_ready(w);
  }
  if (!execute(warps, w, op, w.frame->code->matrices[static_cast<size_t>(op->imm)], call)) return nullptr;
  for (unsigned q = 0; q < kWarps; ++q) {
    if (&warps[q] == &w) continue;
    warps[q].groups[0].state = GroupState::kReady;
    warps[q].groups[0].stamp = 0;
    block.ready |= 1u << warps[q].index;
  }
  return op + 1;
}

}  // namespace tessera::softgpu::exec
