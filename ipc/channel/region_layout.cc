#include "ipc/channel/region_layout.h"

#include "ipc/channel/packet.h"

namespace tessera::ipc {
using base::Code;

base::Status check_region_header(const abi::RegionHeader& h, size_t bytes) {
  if (h.magic != abi::kRegionMagic) return base::error(Code::kInvalid, "not a Tessera region");
  if (!versions_agree(h.version, h.compat_version))
    return base::error(Code::kVersion,
                       "region of a daemon that is too old or too new: update Tessera on both sides");
  if ((h.required_features & ~kKnownRequiredFeatures) != 0)
    return base::error(Code::kVersion,
                       "the daemon requires features that this library does not have: update it");
  if (h.header_bytes < sizeof h || h.region_bytes != bytes)
    return base::error(Code::kInvalid, "region header with wrong sizes");
  return base::ok();
}

base::Status check_pulse_header(const abi::PulsePage& page) {
  if (page.magic != abi::kPulseMagic) return base::error(Code::kInvalid, "not a pulse page");
  if (!versions_agree(page.version, page.compat_version))
    return base::error(Code::kVersion, "pulse page of another version");
  return base::ok();
}

}  // namespace tessera::ipc
