// Decoding of surfaces by handle.
#include "softgpu/exec/decode.h"
#include "softgpu/exec/surface.h"

namespace tessera::softgpu::exec {

using Kind = ptx::Operand::Kind;

namespace {

constexpr const char* kGeometryNames[] = {"1d", "2d", "3d", "a1d", "a2d"};
// Coordinates as PTX wants them written: three are four, of which one counts for nothing.
constexpr size_t kCoordinates[] = {1, 2, 4, 2, 4};

int geometry_of(Modifiers& m) {
  for (int k = 0; k < 5; ++k)
    if (m.take(kGeometryNames[k])) return k;
  return -1;
}

}  // namespace

// [handle, {coordinates}]
bool Decoder::surface_operands(const ptx::Operand& o, int geometry, std::vector<uint32_t>* list) {
  if (o.kind != Kind::kBracket || o.children.size() != 2 || o.children[0].kind != Kind::kRegister)
    return false;
  list->push_back(use(o.children[0], Ty::kU64));
  if (list->back() == kNone) return false;
  std::vector<const ptx::Operand*> parts;
  vector_elements(o.children[1], &parts);
  const size_t want = kCoordinates[geometry];
  if (parts.size() != want) return false;
  for (size_t k = 0; k < 4; ++k) {
    list->push_back(k < want ? use(*parts[k], Ty::kU32) : kNone);
    if (k < want && list->back() == kNone) return false;
  }
  return true;
}

// suld.b.geometry{.vector}.type.bound d, [s, {..}]; sust.b.geometry{.vector}.type.bound [s, {..}], d
bool Decoder::d_surface(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool store = i.opcode == "sust";
  const int geometry = geometry_of(m);
  SurfaceBound bound = SurfaceBound::kTrap;
  const bool known = m.take("trap") || (m.take("clamp") && (bound = SurfaceBound::kClamp, true)) ||
                     (m.take("zero") && (bound = SurfaceBound::kZero, true));
  if (!m.take("b") || geometry < 0 || !known || m.types.size() != 1 || m.vector > 4 || !leftover(i, m) ||
      !need(i, 2, 2))
    return refuse(i, "this form of a surface access is not supported by the software GPU");
  const Ty type = ty_of(m.types[0]);
  if (type == Ty::kCount || type == Ty::kPred) return refuse(i, "type is not supported by the software GPU");
  std::vector<uint32_t> list;
  if (!surface_operands(i.operands[store ? 0 : 1], geometry, &list))
    return refuse(i, "only surfaces by handle are supported by the software GPU");
  std::vector<const ptx::Operand*> parts;
  vector_elements(i.operands[store ? 1 : 0], &parts);
  if (parts.size() != m.vector) return refuse(i, "vector does not fit");
  for (const ptx::Operand* part : parts) {
    const bool sink = part->kind == Kind::kSink;
    list.push_back(store ? use(*part, type) : sink ? kNone : def(*part, type));
    if (list.back() == kNone && (store || !sink)) return refuse(i, "operand does not fit");
  }
  ++next_cache_;  // the page's range
  Op& op = start(op_surface);
  op.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.insert(code_.extra.end(), list.begin(), list.end());
  op.sub = static_cast<uint8_t>(geometry | (store ? kSurfaceStore : 0));
  op.count = static_cast<uint8_t>(parts.size());
  op.space = static_cast<uint8_t>(bound);
  op.type = type;
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
