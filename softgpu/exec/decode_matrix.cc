// Decoding of the matrix instructions.
#include <cstdio>

#include "softgpu/exec/decode.h"

namespace tessera::softgpu::exec {
namespace {

using Kind = ptx::Operand::Kind;

Element element_of(ptx::Type type) {
  switch (type) {
    case ptx::Type::kF16:
      return Element::kF16;
    case ptx::Type::kBf16:
      return Element::kBf16;
    case ptx::Type::kTf32:
      return Element::kTf32;
    case ptx::Type::kF64:
      return Element::kF64;
    case ptx::Type::kS8:
      return Element::kS8;
    case ptx::Type::kU8:
      return Element::kU8;
    case ptx::Type::kE4m3:
      return Element::kE4m3;
    case ptx::Type::kE5m2:
      return Element::kE5m2;
    case ptx::Type::kF32:
      return Element::kF32;
    case ptx::Type::kS32:
      return Element::kS32;
    default:
      return Element::kNone;
  }
}
// "m16n8k16"; removes it from the list.
bool take_shape(Modifiers& m, MatrixInfo* info) {
  for (size_t i = 0; i < m.others.size(); ++i) {
    unsigned a, b, c;
    const std::string text(m.others[i]);
    if (std::sscanf(text.c_str(), "m%un%uk%u", &a, &b, &c) != 3 || (a | b | c) > 0xffff) continue;
    info->m = static_cast<uint16_t>(a), info->n = static_cast<uint16_t>(b),
    info->k = static_cast<uint16_t>(c);
    m.others.erase(m.others.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }
  return false;
}
Ty register_type(Element e) {
  return e == Element::kF64 ? Ty::kF64 : e == Element::kF32 ? Ty::kF32 : Ty::kU32;
}

// Combinations of types in wgmma, and the operands that it wants behind scale-d.
struct WarpgroupTypes {
  Element a, b;  // either way round
  Element sums, other_sums;
  unsigned immediates;  // 0 none, 2 the signs, 3 and what is transposed
};
const WarpgroupTypes* warpgroup_types(const MatrixInfo& info) {
  using enum Element;
  static constexpr WarpgroupTypes kRows[] = {
      {kF16, kF16, kF32, kF16, 3},   {kBf16, kBf16, kF32, kF32, 3}, {kTf32, kTf32, kF32, kF32, 2},
      {kE4m3, kE4m3, kF32, kF16, 2}, {kE4m3, kE5m2, kF32, kF16, 2}, {kE5m2, kE5m2, kF32, kF16, 2},
      {kS8, kS8, kS32, kS32, 0},     {kS8, kU8, kS32, kS32, 0},     {kU8, kU8, kS32, kS32, 0}};
  for (const WarpgroupTypes& r : kRows)
    if (((r.a == info.a_type && r.b == info.b_type) || (r.a == info.b_type && r.b == info.a_type)) &&
        (info.d_type == r.sums || info.d_type == r.other_sums))
      return &r;
  return nullptr;
}

}  // namespace

// A list of registers into Code::extra; false if one does not fit.
bool Decoder::fragment(const ptx::Operand& o, Ty type, bool is_def, uint32_t* first, uint8_t* n) {
  std::vector<const ptx::Operand*> parts;
  vector_elements(o, &parts);
  std::vector<uint32_t> list;
  for (const ptx::Operand* p : parts) {
    list.push_back(is_def ? def(*p, type) : use(*p, type));
    if (list.back() == kNone) return false;
  }
  *first = static_cast<uint32_t>(code_.extra.size());
  if (list.size() > 255) return false;
  *n = static_cast<uint8_t>(list.size());
  code_.extra.insert(code_.extra.end(), list.begin(), list.end());
  return true;
}

bool Decoder::d_ldmatrix(const ptx::Instruction& i) {
  const bool store = i.opcode == "stmatrix";
  Modifiers m = sort_modifiers(i);
  m.take("sync");
  m.take("aligned");
  unsigned count = 0;
  for (unsigned n : {1u, 2u, 4u})
    if (m.take(n == 1 ? "x1" : n == 2 ? "x2" : "x4")) count = n;
  const bool trans = m.take("trans");
  if (!count || !m.take("m8n8") || m.types.size() != 1 || m.types[0] != ptx::Type::kB16 || !leftover(i, m) ||
      !need(i, 2, 2))
    return refuse(i, "this form is not supported by the software GPU");
  Space space = m.space;
  Op op{};
  if (!address(i.operands[store ? 0 : 1], &op, &space) || op.a == kNone)
    return refuse(i, "address does not fit");
  uint32_t first;
  uint8_t n;
  if (!fragment(i.operands[store ? 1 : 0], Ty::kU32, !store, &first, &n) || n != count)
    return refuse(i, "registers do not fit");
  Op& out = start(store ? op_stmatrix : op_ldmatrix);
  out.a = op.a, out.imm = op.imm, out.flags = op.flags, out.space = static_cast<uint8_t>(space);
  out.extra = first, out.count = static_cast<uint8_t>(count), out.sub = trans;
  finish();
  return true;
}

bool Decoder::d_movmatrix(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  m.take("sync");
  m.take("aligned");
  m.take("m8n8");
  if (!m.take("trans") || !leftover(i, m) || !need(i, 2, 2)) return refuse(i, "unknown form");
  const uint32_t a = use(i.operands[1], Ty::kU32);
  if (a == kNone) return refuse(i, "operand does not fit");
  Op& op = start(op_movmatrix);
  op.a = a;
  op.d = def(i.operands[0], Ty::kU32);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

// mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c
bool Decoder::d_mma(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  MatrixInfo info;
  m.take("sync");
  m.take("aligned");
  info.saturate = m.take("satfinite");
  if (!take_shape(m, &info) || !m.take("row") || !m.take("col") || m.types.size() != 4 || !leftover(i, m) ||
      !need(i, 4, 4))
    return refuse(i, "this form is not supported by the software GPU");
  info.d_type = element_of(m.types[0]), info.a_type = element_of(m.types[1]);
  info.b_type = element_of(m.types[2]), info.c_type = element_of(m.types[3]);
  return finish_mma(i, info);
}

bool Decoder::finish_mma(const ptx::Instruction& i, MatrixInfo& info) {
  if (info.d_type == Element::kNone || info.a_type == Element::kNone || info.b_type == Element::kNone ||
      info.c_type == Element::kNone || info.m > 32 || info.n > 32 || info.k > 32)
    return refuse(i, "element types or shape are not supported by the software GPU");
  if (!fragment(i.operands[1], register_type(info.a_type) == Ty::kF64 ? Ty::kF64 : Ty::kU32, false, &info.a,
                &info.n_a) ||
      !fragment(i.operands[2], register_type(info.b_type) == Ty::kF64 ? Ty::kF64 : Ty::kU32, false, &info.b,
                &info.n_b) ||
      !fragment(i.operands[3], register_type(info.c_type), false, &info.c, &info.n_c) ||
      !fragment(i.operands[0], register_type(info.d_type), true, &info.d, &info.n_d))
    return refuse(i, "registers do not fit");
  if (!info.wmma) {
    // The layout must cover each matrix exactly.
    const auto covers = [](unsigned n, Element e, unsigned total) {
      return n * 32 * (e == Element::kF64 ? 1 : 32 / bits_of(e)) == total;
    };
    if ((info.m != 8 && info.m != 16) || info.n != 8 || !covers(info.n_a, info.a_type, info.m * info.k) ||
        !covers(info.n_b, info.b_type, info.n * info.k) || !covers(info.n_c, info.c_type, info.m * info.n) ||
        !covers(info.n_d, info.d_type, info.m * info.n))
      return refuse(i, "shape is not supported by the software GPU");
  }
  Op& op = start(op_mma);
  op.c = constant(4, ~0u);
  op.imm = static_cast<int64_t>(code_.matrices.size());
  code_.matrices.push_back(info);
  finish();
  return true;
}

// wmma.load.{a,b,c}.sync.aligned.layout.shape{.space}.type r, [p]{, stride}
// wmma.store.d.sync.aligned.layout.shape{.space}.type [p], r{, stride}
// wmma.mma.sync.aligned.alayout.blayout.shape.dtype{.atype.btype}.ctype d, a, b, c
bool Decoder::d_wmma(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  MatrixInfo info;
  info.wmma = true;
  m.take("sync");
  m.take("aligned");
  if (!take_shape(m, &info)) return refuse(i, "unknown form");
  if (m.take("mma")) {
    for (int layout = 0; layout < 2; ++layout)
      if (!m.take("row")) m.take("col");
    info.saturate = m.take("satfinite");
    if (!leftover(i, m) || !need(i, 4, 4)) return refuse(i, "unknown form");
    if (m.types.size() == 2) {
      info.d_type = element_of(m.types[0]), info.c_type = element_of(m.types[1]);
      info.a_type = info.b_type = Element::kF16;
    } else if (m.types.size() == 4) {
      info.d_type = element_of(m.types[0]), info.a_type = element_of(m.types[1]);
      info.b_type = element_of(m.types[2]), info.c_type = element_of(m.types[3]);
    } else {
      return refuse(i, "unknown form");
    }
    return finish_mma(i, info);
  }
  const bool load = m.take("load");
  if (!load && !m.take("store")) return refuse(i, "unknown form");
  const bool is_a = m.take("a"), is_b = !is_a && m.take("b");
  if (!is_a && !is_b) m.take(load ? "c" : "d");
  info.rows = is_b ? info.k : info.m;
  info.columns = is_a ? info.k : info.n;
  info.column_major = m.take("col");
  m.take("row");
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 2, 3)) return refuse(i, "unknown form");
  info.type = element_of(m.types[0]);
  if (info.type == Element::kNone) return refuse(i, "element type is not supported by the software GPU");
  Space space = m.space;
  Op op{};
  if (!address(i.operands[load ? 1 : 0], &op, &space) || op.a == kNone)
    return refuse(i, "address does not fit");
  if (i.operands.size() == 3) {
    op.b = use(i.operands[2], Ty::kU32);
    if (op.b == kNone) return refuse(i, "stride does not fit");
  }
  if (!fragment(i.operands[load ? 0 : 1], register_type(info.type), load, &info.d, &info.n_d))
    return refuse(i, "registers do not fit");
  Op& out = start(load ? op_wmma_load : op_wmma_store);
  out.a = op.a, out.b = op.b, out.imm = op.imm, out.flags = op.flags, out.space = static_cast<uint8_t>(space);
  out.extra = static_cast<uint32_t>(code_.matrices.size());
  code_.matrices.push_back(info);
  finish();
  return true;
}

// wgmma.{fence,commit_group,wait_group}.sync.aligned
// wgmma.mma_async.sync.aligned.shape{.satfinite}.dtype.atype.btype d, a, b-descriptor, scale-d
//   {, scale-a, scale-b{, transpose-a}{, transpose-b}}; a: registers or a descriptor
bool Decoder::d_wgmma(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (!m.take("sync") || !m.take("aligned")) return refuse(i, "unknown form");
  for (const char* name : {"fence", "commit_group", "wait_group"})
    if (m.take(name)) {
      if (!leftover(i, m)) return false;
      start(op_warpgroup_point).c = constant(4, ~0u);
      finish();
      return true;
    }
  MatrixInfo info;
  info.saturate = m.take("satfinite");
  if (!m.take("mma_async") || !take_shape(m, &info) || m.types.size() != 3 || !leftover(i, m) ||
      !need(i, 4, 8))
    return refuse(i, "this form is not supported by the software GPU");
  info.d_type = info.c_type = element_of(m.types[0]);
  info.a_type = element_of(m.types[1]), info.b_type = element_of(m.types[2]);
  info.a_in_memory = i.operands[1].kind != Kind::kVector;

  const WarpgroupTypes* row = warpgroup_types(info);
  if (!row) return refuse(i, "there is no warpgroup matrix instruction for these element types");
  const bool integers = row->sums == Element::kS32;
  if (info.m != 64 || info.k * bits_of(info.a_type) != 256 || info.n < 8 || info.n > 256 ||
      info.n % (integers && info.n > 32 ? 16 : 8) || (info.saturate && !integers))
    return refuse(i, "there is no warpgroup matrix instruction of this shape");
  const size_t n = 4 + (row->immediates == 3 ? (info.a_in_memory ? 4u : 3u) : row->immediates);
  if (!need(i, n, n)) return false;
  for (size_t k = 4; k < n; ++k) {
    const int64_t value = static_cast<int64_t>(i.operands[k].bits);
    const bool sign = k < 6;
    if (i.operands[k].kind != Kind::kInteger || (sign ? value != 1 && value != -1 : value != 0 && value != 1))
      return refuse(i, "a sign must be 1 or -1, a transposition 0 or 1");
    bool& to = k == 4                       ? info.negate_a
               : k == 5                     ? info.negate_b
               : k == 6 && info.a_in_memory ? info.transpose_a
                                            : info.transpose_b;
    to = sign ? value == -1 : value == 1;
  }

  const Ty sums = register_type(info.d_type);
  Op op{};
  if (info.a_in_memory) {
    op.a = use(i.operands[1], Ty::kU64);
    if (op.a == kNone) return refuse(i, "descriptor does not fit");
  } else if (!fragment(i.operands[1], Ty::kU32, false, &info.a, &info.n_a) || info.n_a != 4) {
    return refuse(i, "registers do not fit");
  }
  bool negated;
  op.b = use(i.operands[2], Ty::kU64);
  op.d2 = use_predicate(i.operands[3], &negated);
  if (op.b == kNone || op.d2 == kNone) return refuse(i, "operand does not fit");
  if (negated) op.flags |= kNegate;
  if (!fragment(i.operands[0], sums, false, &info.c, &info.n_c) ||
      !fragment(i.operands[0], sums, true, &info.d, &info.n_d) ||
      info.n_d != info.n / (info.d_type == Element::kF16 ? 4 : 2))
    return refuse(i, "registers do not fit");
  op.c = constant(4, ~0u);
  op.imm = static_cast<int64_t>(code_.matrices.size());
  code_.matrices.push_back(info);
  start(op_warpgroup_mma, true, op);
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
