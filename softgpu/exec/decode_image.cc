// Decoding of textures and surfaces by handle. Texture references and separate samplers do not exist any
// more.
#include "softgpu/exec/decode.h"
#include "softgpu/exec/image.h"

namespace tessera::softgpu::exec {

using Kind = ptx::Operand::Kind;

namespace {

constexpr const char* kGeometryNames[] = {"1d", "2d", "3d", "a1d", "a2d", "cube", "acube"};
// Coordinates as PTX wants them written: three are four, of which one counts for nothing.
constexpr size_t kCoordinates[] = {1, 2, 4, 2, 4, 4, 4};

int geometry_of(Modifiers& m) {
  for (int k = 0; k < 7; ++k)
    if (m.take(kGeometryNames[k])) return k;
  return -1;
}

}  // namespace

// [handle, {coordinates}]
bool Decoder::image_operands(const ptx::Operand& o, int geometry, Ty coordinate,
                             std::vector<uint32_t>* list) {
  if (o.kind != Kind::kBracket || o.children.size() != 2 || o.children[0].kind != Kind::kRegister)
    return false;
  list->push_back(use(o.children[0], Ty::kU64));
  if (list->back() == kNone) return false;
  std::vector<const ptx::Operand*> parts;
  vector_elements(o.children[1], &parts);
  const bool layered = geometry == 3 || geometry == 4 || geometry == 6;
  const size_t want = kCoordinates[geometry];
  if (parts.size() != want) return false;
  for (size_t k = 0; k < 4; ++k) {
    list->push_back(k < want ? use(*parts[k], k == 0 && layered ? Ty::kU32 : coordinate) : kNone);
    if (k < want && list->back() == kNone) return false;
  }
  return true;
}

// tex{.base,.level}.geometry.v4.type.type d, [t, {..}]{, level}; tld4.channel.2d.v4.type.f32
bool Decoder::d_tex(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool gather = i.opcode == "tld4", level = m.take("level");
  m.take("base");
  unsigned channel = 0;
  if (gather) {
    bool found = false;
    for (unsigned k = 0; k < 4; ++k)
      if (m.take(std::string_view("rgba").substr(k, 1))) channel = k, found = true;
    if (!found) return refuse(i, "unknown form");
  }
  const int geometry = geometry_of(m);
  if (geometry < 0 || m.vector != 4 || m.types.size() != 2 || !leftover(i, m) || (gather && geometry != 1) ||
      !need(i, level ? 3 : 2, level ? 3 : 2))
    return refuse(i, "this form of a texture access is not supported by the software GPU");
  const Ty type = ty_of(m.types[0]), coordinate = ty_of(m.types[1]);
  if ((coordinate != Ty::kS32 && coordinate != Ty::kF32) || storage_of(type) != 4 ||
      (coordinate == Ty::kS32 && (geometry > 4 || level || gather)))
    return refuse(i, "type is not supported by the software GPU");
  std::vector<uint32_t> list;
  if (!image_operands(i.operands[1], geometry, coordinate, &list))
    return refuse(
        i, "only textures by handle, without a sampler of their own, are supported by the software GPU");
  list.push_back(level ? use(i.operands[2], Ty::kF32) : kNone);
  if (level && list.back() == kNone) return refuse(i, "level does not fit");
  std::vector<const ptx::Operand*> parts;
  vector_elements(i.operands[0], &parts);
  if (parts.size() != 4) return refuse(i, "destination does not fit");
  for (const ptx::Operand* part : parts) {
    list.push_back(part->kind == Kind::kSink ? kNone : def(*part, type));
    if (list.back() == kNone && part->kind != Kind::kSink) return refuse(i, "destination does not fit");
  }
  ++next_cache_;  // the page's range; the next one is the image's
  Op& op = start(op_texture);
  op.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.insert(code_.extra.end(), list.begin(), list.end());
  op.sub = static_cast<uint8_t>(geometry | (gather ? kGather : 0));
  op.count = static_cast<uint8_t>(channel);
  op.type = type, op.type2 = coordinate;
  ++next_cache_;
  finish();
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
  if (!m.take("b") || geometry < 0 || geometry > 4 || !known || m.types.size() != 1 || m.vector > 4 ||
      !leftover(i, m) || !need(i, 2, 2))
    return refuse(i, "this form of a surface access is not supported by the software GPU");
  const Ty type = ty_of(m.types[0]);
  if (type == Ty::kCount || type == Ty::kPred) return refuse(i, "type is not supported by the software GPU");
  std::vector<uint32_t> list;
  if (!image_operands(i.operands[store ? 0 : 1], geometry, Ty::kU32, &list))
    return refuse(i, "only surfaces by handle are supported by the software GPU");
  std::vector<const ptx::Operand*> parts;
  vector_elements(i.operands[store ? 1 : 0], &parts);
  if (parts.size() != m.vector) return refuse(i, "vector does not fit");
  for (const ptx::Operand* part : parts) {
    const bool sink = part->kind == Kind::kSink;
    list.push_back(store ? use(*part, type) : sink ? kNone : def(*part, type));
    if (list.back() == kNone && (store || !sink)) return refuse(i, "operand does not fit");
  }
  ++next_cache_;  // the page's range; the next one is the image's
  Op& op = start(op_surface);
  op.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.insert(code_.extra.end(), list.begin(), list.end());
  op.sub = static_cast<uint8_t>(geometry | (store ? kSurfaceStore : 0));
  op.count = static_cast<uint8_t>(parts.size());
  op.space = static_cast<uint8_t>(bound);
  op.type = type;
  ++next_cache_;
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
