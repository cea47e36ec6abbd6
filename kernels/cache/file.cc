#include "kernels/cache/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace tessera::cache {
namespace {

constexpr char kMagic[8] = {'t', 's', 'r', 'c', 'a', 'c', 'h', 'e'};
constexpr uint32_t kVersion = 1;

struct Header {  // little-endian, as every machine with an NVIDIA driver is
  char magic[8];
  uint32_t version, header_bytes;
  Key key;
  uint64_t payload_bytes, payload_xxh3;
};
static_assert(sizeof(Header) == 48);

}  // namespace

std::string wrap(const Key& key, std::string_view payload) {
  Header header{.magic = {},
                .version = kVersion,
                .header_bytes = sizeof(Header),
                .key = key,
                .payload_bytes = payload.size(),
                .payload_xxh3 = XXH3_64bits(payload.data(), payload.size())};
  memcpy(header.magic, kMagic, sizeof kMagic);
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  return out.append(payload);
}

base::Result<std::string_view> unwrap(const Key& key, std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof header) return base::error(base::Code::kInvalid, "shorter than its header");
  memcpy(&header, bytes.data(), sizeof header);
  if (memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return base::error(base::Code::kInvalid, "not a cache file");
  if (header.version != kVersion || header.header_bytes != sizeof header)
    return base::error(base::Code::kVersion,
                       "of version " + std::to_string(header.version) + ", not " + std::to_string(kVersion));
  if (!(header.key == key)) return base::error(base::Code::kInvalid, "of another key than its name says");
  const std::string_view payload = bytes.substr(sizeof header);
  if (header.payload_bytes != payload.size())
    return base::error(base::Code::kInvalid, std::to_string(payload.size()) + " bytes instead of " +
                                                 std::to_string(header.payload_bytes));
  if (header.payload_xxh3 != XXH3_64bits(payload.data(), payload.size()))
    return base::error(base::Code::kInvalid, "its checksum does not fit");
  return payload;
}

}  // namespace tessera::cache
