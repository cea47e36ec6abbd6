// Decoding of tensor copies and changes of tensor maps.
#include "softgpu/exec/decode.h"
#include "softgpu/exec/tensor.h"

namespace tessera::softgpu::exec {

using Kind = ptx::Operand::Kind;

// [map, {coordinates}] into map and coordinates of an operand list.
bool Decoder::tensor_operand(const ptx::Operand& o, unsigned rank, uint32_t* map, uint32_t* coordinates) {
  if (o.kind != Kind::kBracket || o.children.size() != 2) return false;
  *map = use(o.children[0], Ty::kU64);
  std::vector<const ptx::Operand*> parts;
  vector_elements(o.children[1], &parts);
  if (*map == kNone || parts.size() != rank) return false;
  for (unsigned d = 0; d < rank; ++d)
    if ((coordinates[d] = use(*parts[d], Ty::kU32)) == kNone) return false;
  return true;
}

// cp.async.bulk.tensor.Nd.shared.global{.tile}.mbarrier::complete_tx::bytes{.multicast::cluster}
//   [to], [map, {..}], [barrier]{, ranks}{, policy}
// cp.async.bulk.tensor.Nd.global.shared::cta{.tile}.bulk_group [map, {..}], [from]{, policy}
// cp.reduce.async.bulk.tensor.Nd.global.shared::cta.how{.tile}.bulk_group [map, {..}], [from]{, policy}
// cp.async.bulk.prefetch.tensor.Nd.L2.global{.tile} [map, {..}]{, policy}
bool Decoder::tensor_copy(const ptx::Instruction& i, Modifiers& m, bool reduces) {
  unsigned rank = 0;
  for (unsigned d = 1; d <= 5; ++d)
    if (m.take(std::string_view("1d2d3d4d5d").substr(2 * d - 2, 2))) rank = d;
  m.take("tensor");
  m.take("tile");
  const bool prefetch = m.take("prefetch") && m.take("L2"), loads = m.take("mbarrier::complete_tx::bytes"),
             multicast = m.take("multicast::cluster");
  TensorCopy how = prefetch ? TensorCopy::kPrefetch : loads ? TensorCopy::kLoad : TensorCopy::kStore;
  if (reduces) {
    Atomic atomic{};
    if (!atomic_named(m, &atomic)) return refuse(i, "unknown reduction");
    how = static_cast<TensorCopy>(static_cast<unsigned>(TensorCopy::kReduce) + static_cast<unsigned>(atomic));
  }
  const bool stores = !prefetch && !loads;
  if (!rank || (stores && !m.take("bulk_group")) || (reduces && !stores) || (multicast && !loads))
    return refuse(i, "unknown form");
  const size_t n = (prefetch ? 1 : loads ? 3 : 2) + multicast + m.cache_hint;
  if (!leftover(i, m) || !need(i, n, n)) return false;
  uint32_t list[9];
  std::fill(std::begin(list), std::end(list), kNone);
  if (!tensor_operand(i.operands[loads ? 1 : 0], rank, &list[0], &list[4]))
    return refuse(i, "operand does not fit: a map in a register and " + std::to_string(rank) +
                         " coordinates are supported by the software GPU");
  Space space = Space::kShared;
  if (!prefetch && (list[1] = whole_address(i.operands[loads ? 0 : 1], &space)) == kNone)
    return refuse(i, "address does not fit");
  if (loads && (list[2] = whole_address(i.operands[2], &space)) == kNone)
    return refuse(i, "barrier does not fit");
  if (multicast && (list[3] = use(i.operands[3], Ty::kU16)) == kNone) return refuse(i, "ranks do not fit");
  Op& op = start(op_tensor_copy);
  op.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.insert(code_.extra.end(), std::begin(list), std::end(list));
  op.space = static_cast<uint8_t>(space);
  op.count = static_cast<uint8_t>(rank);
  op.sub = static_cast<uint8_t>(how);
  finish();
  return true;
}

// tensormap.replace.tile.field{.space}.b1024.type [map], {dimension,} value
// tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [to], [from], 128
bool Decoder::d_tensormap(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.take("cp_fenceproxy")) {
    m.take("sync");
    m.take("aligned");
    if (!m.take("tensormap::generic") || !leftover(i, m) || !need(i, 3, 3) ||
        i.operands[2].kind != Kind::kInteger || i.operands[2].bits != 128)
      return refuse(i, "unknown form");
    Space to = Space::kGlobal, from = Space::kShared;
    const uint32_t list[] = {whole_address(i.operands[0], &to), whole_address(i.operands[1], &from)};
    if (list[0] == kNone || list[1] == kNone) return refuse(i, "address does not fit");
    Op& op = start(op_tensor_map_copy);
    op.extra = static_cast<uint32_t>(code_.extra.size());
    code_.extra.insert(code_.extra.end(), std::begin(list), std::end(list));
    op.space = static_cast<uint8_t>(from);
    finish();
    return true;
  }
  struct Row {
    const char* name;
    TensorField field;
    unsigned dimensions;  // how many the field has; 0: it is one value
    Ty type;
    bool immediate;
  };
  static constexpr Row kRows[] = {{"global_address", TensorField::kAddress, 0, Ty::kU64, false},
                                  {"rank", TensorField::kRank, 0, Ty::kU32, false},
                                  {"box_dim", TensorField::kBox, 5, Ty::kU32, false},
                                  {"global_dim", TensorField::kSize, 5, Ty::kU32, false},
                                  {"global_stride", TensorField::kStride, 4, Ty::kU64, false},
                                  {"element_stride", TensorField::kElementStride, 5, Ty::kU32, false},
                                  {"elemtype", TensorField::kElement, 0, Ty::kU32, true},
                                  {"interleave_layout", TensorField::kInterleave, 0, Ty::kU32, true},
                                  {"swizzle_mode", TensorField::kSwizzle, 0, Ty::kU32, true},
                                  {"fill_mode", TensorField::kFill, 0, Ty::kU32, true},
                                  {"swizzle_atomicity", TensorField::kAtomicity, 0, Ty::kU32, true}};
  const Row* row = nullptr;
  for (const Row& r : kRows)
    if (!row && m.take(r.name)) row = &r;
  m.take("b1024");
  if (!row || !m.take("replace") || !m.take("tile") || m.types.size() != 1 ||
      ty_of(m.types[0]) != row->type || !leftover(i, m) ||
      !need(i, row->dimensions ? 3 : 2, row->dimensions ? 3 : 2))
    return refuse(i, "unknown form");
  const ptx::Operand& dimension = i.operands[1];
  if (row->dimensions && (dimension.kind != Kind::kInteger || dimension.bits >= row->dimensions))
    return refuse(i, "there is no such dimension");
  if (row->immediate && i.operands[1].kind != Kind::kInteger)
    return refuse(i, "the value must be a constant");
  Op op{};
  Space space = m.space;
  if (!address(i.operands[0], &op, &space) || op.a == kNone) return refuse(i, "address does not fit");
  op.b = use(i.operands.back(), row->type);
  if (op.b == kNone) return refuse(i, "value does not fit");
  op.space = static_cast<uint8_t>(space);
  op.sub = static_cast<uint8_t>(row->field);
  op.count = row->dimensions ? static_cast<uint8_t>(dimension.bits) : 0;
  op.type = row->type;
  start(op_tensor_replace, true, op);
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
