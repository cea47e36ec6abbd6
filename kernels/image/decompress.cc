#include <lz4.h>
#include <zstd.h>

#include <algorithm>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

// Most that one compressed byte can stand for: LZ4 length bytes, and zstd's 4-byte block of 128 KiB equal
// bytes. A header that promises more lies; checked before memory is allocated for it.
constexpr uint64_t kMaxLz4Ratio = 255;
constexpr uint64_t kMaxZstdRatio = 32768;

}  // namespace

base::Result<std::vector<uint8_t>> decompress(Bytes payload, uint64_t flags, uint64_t uncompressed) {
  const bool lz4 = flags & kFlagLz4, zstd = flags & kFlagZstd;
  if (!lz4 && !zstd) {
    return std::vector<uint8_t>(payload.begin(), payload.end());
  }
  if (lz4 && zstd) {
    return base::error(base::Code::kInvalid, "fat binary: an entry claims two compressions");
  }
  uint64_t most = (payload.size() + 64) * (lz4 ? kMaxLz4Ratio : kMaxZstdRatio);
  if (uncompressed > std::min(most, kMaxPayloadBytes)) {
    return base::error(base::Code::kInvalid, "fat binary: an entry claims an impossible uncompressed size");
  }
  std::vector<uint8_t> out(uncompressed);
  if (lz4) {
    int n = payload.size() > INT32_MAX
                ? -1
                : LZ4_decompress_safe(reinterpret_cast<const char*>(payload.data()),
                                      reinterpret_cast<char*>(out.data()), static_cast<int>(payload.size()),
                                      static_cast<int>(out.size()));
    if (n < 0 || static_cast<uint64_t>(n) != uncompressed) {
      return base::error(base::Code::kInvalid, "fat binary: an LZ4 entry does not decompress");
    }
    return out;
  }
  size_t n = ZSTD_decompress(out.data(), out.size(), payload.data(), payload.size());
  if (ZSTD_isError(n) || n != uncompressed) {
    return base::error(base::Code::kInvalid, "fat binary: a zstd entry does not decompress");
  }
  return out;
}

}  // namespace tessera::image
