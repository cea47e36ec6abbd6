#include "softgpu/exec/modifiers.h"

#include <algorithm>
#include <unordered_map>

namespace tessera::softgpu::exec {
namespace {

using Apply = void (*)(Modifiers&);
#define TS_SET(...) [](Modifiers& m) { __VA_ARGS__; }
#define TS_ROUND(r) TS_SET(m.has_rounding = true, m.rounding = Rounding::r)
#define TS_ROUND_INTEGER(r) TS_SET(m.has_rounding = true, m.to_integer = true, m.rounding = Rounding::r)
#define TS_COMPARE(c) TS_SET(m.has_compare = true, m.compare = Compare::c)
#define TS_SPACE(s) TS_SET(m.has_space = true, m.space = Space::s)
#define TS_IGNORED [](Modifiers&) {}

const std::unordered_map<ptx::Name, Apply>& table() {
  static const std::unordered_map<ptx::Name, Apply> rows = {
      {"rn", TS_ROUND(kNearest)},
      {"rz", TS_ROUND(kZero)},
      {"rm", TS_ROUND(kDown)},
      {"rp", TS_ROUND(kUp)},
      {"rna", TS_ROUND(kAway)},
      {"rni", TS_ROUND_INTEGER(kNearest)},
      {"rzi", TS_ROUND_INTEGER(kZero)},
      {"rmi", TS_ROUND_INTEGER(kDown)},
      {"rpi", TS_ROUND_INTEGER(kUp)},
      {"ftz", TS_SET(m.flags |= kFtz)},
      {"sat", TS_SET(m.flags |= kSat)},
      {"relu", TS_SET(m.flags |= kRelu)},
      {"NaN", TS_SET(m.flags |= kNanResult)},
      {"xorsign", TS_SET(m.flags |= kXorSign)},
      {"approx", TS_SET(m.approx = true)},
      {"full", TS_SET(m.full = true)},
      {"lo", TS_SET(m.lo = true)},
      {"hi", TS_SET(m.hi = true)},
      {"wide", TS_SET(m.wide = true)},
      {"cc", TS_SET(m.carry_out = true)},
      {"eq", TS_COMPARE(kEq)},
      {"ne", TS_COMPARE(kNe)},
      {"lt", TS_COMPARE(kLt)},
      {"le", TS_COMPARE(kLe)},
      {"gt", TS_COMPARE(kGt)},
      {"ge", TS_COMPARE(kGe)},
      {"ls", TS_COMPARE(kLe)},
      {"hs", TS_COMPARE(kGe)},
      {"equ", TS_COMPARE(kEqu)},
      {"neu", TS_COMPARE(kNeu)},
      {"ltu", TS_COMPARE(kLtu)},
      {"leu", TS_COMPARE(kLeu)},
      {"gtu", TS_COMPARE(kGtu)},
      {"geu", TS_COMPARE(kGeu)},
      {"num", TS_COMPARE(kNum)},
      {"nan", TS_COMPARE(kNan)},
      {"global", TS_SPACE(kGlobal)},
      {"shared", TS_SPACE(kShared)},
      {"shared::cta", TS_SPACE(kShared)},
      {"local", TS_SPACE(kLocal)},
      {"param", TS_SPACE(kParam)},
      {"param::entry", TS_SPACE(kParam)},
      {"param::func", TS_SPACE(kParam)},
      {"const", TS_SPACE(kConst)},
      {"shared::cluster", TS_SET(m.has_space = true, m.space = Space::kShared, m.cluster = true)},
      {"v2", TS_SET(m.vector = 2)},
      {"v4", TS_SET(m.vector = 4)},
      {"v8", TS_SET(m.vector = 8)},
      {"volatile", TS_SET(m.is_volatile = true)},
      {"relaxed", TS_SET(m.is_volatile = true)},
      {"acquire", TS_SET(m.is_volatile = true)},
      {"release", TS_SET(m.is_volatile = true)},
      {"acq_rel", TS_SET(m.is_volatile = true)},
      {"mmio", TS_SET(m.is_volatile = true)},
      {"L2::cache_hint", TS_SET(m.cache_hint = true)},
      // Hints about caches and scopes of ordering change nothing here.
      {"weak", TS_IGNORED},
      {"cta", TS_IGNORED},
      {"gpu", TS_IGNORED},
      {"sys", TS_IGNORED},
      {"cluster", TS_IGNORED},
      {"ca", TS_IGNORED},
      {"cg", TS_IGNORED},
      {"cs", TS_IGNORED},
      {"lu", TS_IGNORED},
      {"cv", TS_IGNORED},
      {"wb", TS_IGNORED},
      {"wt", TS_IGNORED},
      {"nc", TS_IGNORED},
      {"uni", TS_IGNORED},
      {"noftz", TS_IGNORED},
      {"L1::evict_normal", TS_IGNORED},
      {"L1::evict_unchanged", TS_IGNORED},
      {"L1::evict_first", TS_IGNORED},
      {"L1::evict_last", TS_IGNORED},
      {"L1::no_allocate", TS_IGNORED},
      {"L2::evict_first", TS_IGNORED},
      {"L2::evict_last", TS_IGNORED},
      {"L2::evict_normal", TS_IGNORED},
      {"L2::64B", TS_IGNORED},
      {"L2::128B", TS_IGNORED},
      {"L2::256B", TS_IGNORED}};
  return rows;
}

}  // namespace

bool Modifiers::take(ptx::Name name) {
  auto it = std::find(others.begin(), others.end(), name);
  if (it == others.end()) return false;
  others.erase(it);
  return true;
}

Modifiers sort_modifiers(const ptx::Instruction& instruction) {
  Modifiers m;
  for (ptx::Name name : instruction.modifiers) {
    const ptx::Type type = ptx::type_from(name);
    if (type != ptx::Type::kNone && type != ptx::Type::kOther) {
      m.types.push_back(type);
      continue;
    }
    auto row = table().find(name);
    if (row != table().end())
      row->second(m);
    else
      m.others.push_back(name);
  }
  return m;
}

Ty ty_of(ptx::Type type) {
  switch (type) {
    case ptx::Type::kPred:
      return Ty::kPred;
    case ptx::Type::kB8:
    case ptx::Type::kU8:
      return Ty::kU8;
    case ptx::Type::kS8:
      return Ty::kS8;
    case ptx::Type::kB16:
    case ptx::Type::kU16:
      return Ty::kU16;
    case ptx::Type::kS16:
      return Ty::kS16;
    case ptx::Type::kB32:
    case ptx::Type::kU32:
      return Ty::kU32;
    case ptx::Type::kS32:
      return Ty::kS32;
    case ptx::Type::kB64:
    case ptx::Type::kU64:
      return Ty::kU64;
    case ptx::Type::kS64:
      return Ty::kS64;
    case ptx::Type::kF16:
      return Ty::kF16;
    case ptx::Type::kF16x2:
      return Ty::kF16x2;
    case ptx::Type::kBf16:
      return Ty::kBf16;
    case ptx::Type::kBf16x2:
      return Ty::kBf16x2;
    case ptx::Type::kTf32:
      return Ty::kTf32;
    case ptx::Type::kF32:
      return Ty::kF32;
    case ptx::Type::kF64:
      return Ty::kF64;
    case ptx::Type::kE4m3:
    case ptx::Type::kE5m2:
      return Ty::kU8;
    case ptx::Type::kE4m3x2:
    case ptx::Type::kE5m2x2:
      return Ty::kU16;
    default:
      return Ty::kCount;
  }
}
unsigned storage_of(Ty type) {
  switch (type) {
    case Ty::kPred:
      return 0;
    case Ty::kU64:
    case Ty::kS64:
    case Ty::kF64:
      return 8;
    default:
      return 4;
  }
}

}  // namespace tessera::softgpu::exec
