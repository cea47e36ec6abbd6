// The attribute records of machine code (.nv.info, .nv.info.KERNEL), private to kernels/image: a byte for the
// form, a byte for the attribute, then two bytes of value or of the length of a payload. Untrusted: lengths
// are checked. Any thread. Sources: observation of cubins of toolkits 12 and 13; docs/formats.md.
#pragma once

#include <cstdint>

#include "kernels/image/internal.h"

namespace tessera::image {

enum Attribute : uint8_t {
  kMaxThreads = 0x05,
  kParamCbank = 0x0a,
  kRequiredThreads = 0x10,
  kFrameSize = 0x11,
  kMinStack = 0x12,
  kKparamInfo = 0x17,
  kCbankParamSize = 0x19,
  kMaxregCount = 0x1b,
  kExitOffsets = 0x1c,
  kCrsStackSize = 0x1e,
  kCoopGroupOffsets = 0x28,
  kCoopGroupMasks = 0x29,
  kRegcount = 0x2f,
  kWarpWideOffsets = 0x31,
  kIndirectBranches = 0x34,
  kApiVersion = 0x37,
  kMbarrierCount = 0x38,
  kMbarrierOffsets = 0x39,
  kCtaPerCluster = 0x3d,
  kExplicitCluster = 0x3e,
  kMaxClusterRank = 0x3f,
  kKparamInfoV2 = 0x45,
  kNumBarriers = 0x4c,
  kSparseMask = 0x50,
  kRegisterReconfiguration = 0x54,
  kMercuryVersion = 0x5f,
};

struct Attributes {  // one walk over the records of a section
  explicit Attributes(Bytes section) : rest(section) {}

  Bytes rest;
  uint8_t form = 0, code = 0;
  uint16_t value = 0;  // forms 1 to 3
  Bytes payload;       // form 4
  bool broken = false;

  bool next() {
    if (rest.empty()) return false;
    broken = rest.size() < 4;
    if (broken) return false;
    form = rest[0];
    code = rest[1];
    value = load<uint16_t>(rest, 2);
    payload = {};
    size_t used = 4;
    if (form == 4) {
      broken = !inside(4, value, rest.size());
      if (broken) return false;
      payload = rest.subspan(4, value);
      used += value;
    } else if (form < 1 || form > 3) {
      broken = true;
      return false;
    }
    rest = rest.subspan(used);
    return true;
  }
};

}  // namespace tessera::image
