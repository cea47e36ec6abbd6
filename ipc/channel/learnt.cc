#include "ipc/channel/learnt.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "ipc/abi/region.h"
#include "ipc/channel/memfd.h"
#include "ipc/channel/packet.h"

namespace tessera::ipc {

using base::Code;

base::Result<LearntTable> check_learnt(const void* data, size_t bytes) {
  abi::LearntHeader h;
  if (bytes < sizeof h) return base::error(Code::kInvalid, "learnt table is too short");
  std::memcpy(&h, data, sizeof h);
  if (h.magic != abi::kLearntMagic) return base::error(Code::kInvalid, "not a learnt table");
  if (!versions_agree(h.version, h.compat_version))
    return base::error(Code::kVersion, "learnt table of another version");
  if (h.slots == 0 || h.slots > abi::kMaxLearntSlots || !std::has_single_bit(h.slots) ||
      h.header_bytes != sizeof h || h.slot_bytes != sizeof(abi::LearntSlot) ||
      bytes != sizeof h + size_t(h.slots) * sizeof(abi::LearntSlot))
    return base::error(Code::kInvalid, "learnt table with wrong sizes");
  const auto* first =
      reinterpret_cast<const abi::LearntSlot*>(static_cast<const unsigned char*>(data) + sizeof h);
  return LearntTable{first, h.slots - 1};
}

base::Result<LearntFile> create_learnt(const std::vector<abi::LearntSlot>& entries) {
  abi::LearntHeader h{};
  h.magic = abi::kLearntMagic;
  h.version = abi::kVersion;
  h.compat_version = abi::kCompatVersion;
  h.header_bytes = sizeof h;
  h.slot_bytes = sizeof(abi::LearntSlot);
  const size_t wanted = std::clamp<size_t>(entries.size() * 2, 64, abi::kMaxLearntSlots);
  h.slots = uint32_t(std::min<size_t>(std::bit_ceil(wanted), abi::kMaxLearntSlots));
  std::vector<abi::LearntSlot> slots(h.slots);
  for (const abi::LearntSlot& entry : entries) {
    for (uint32_t i = 0; i < abi::kLearntProbes; ++i) {
      abi::LearntSlot& slot = slots[(learnt_start(entry.key) + i) & (h.slots - 1)];
      if (slot.key == entry.key) break;
      if (slot.key != 0) continue;
      slot = entry;
      ++h.used;
      break;
    }
  }
  LearntFile out;
  out.bytes = sizeof h + slots.size() * sizeof(abi::LearntSlot);
  auto fd = create_memfd("tessera-learnt", out.bytes, 0);
  if (!fd.ok()) return fd.error();
  out.fd = std::move(*fd);
  const auto write_at = [&](const void* data, size_t n, size_t at) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    while (n != 0) {
      const ssize_t done = ::pwrite(out.fd.get(), bytes, n, off_t(at));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      bytes += done, at += size_t(done), n -= size_t(done);
    }
    return true;
  };
  if (!write_at(&h, sizeof h, 0) || !write_at(slots.data(), slots.size() * sizeof slots[0], sizeof h))
    return base::error(Code::kExhausted, std::string("cannot write shared memory: ") + std::strerror(errno));
  if (auto sealed = add_seals(out.fd.get(), kLearntSeals); !sealed.ok()) return sealed.error();
  return out;
}

}  // namespace tessera::ipc
