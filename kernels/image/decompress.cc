#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

// Most that one compressed byte can stand for: LZ4 length bytes, and zstd's 4-byte block of 128 KiB equal
// bytes. A header that promises more lies; checked before memory is allocated for it.
constexpr uint64_t kMaxLz4Ratio = 255;
constexpr uint64_t kMaxZstdRatio = 32768;

enum class Method { kPlain, kLz4, kZstd };

// Entries of kind kOther are kept as they are.
Method method_of(const Entry& entry) {
  const std::string_view name(entry.compression);
  return entry.kind == EntryKind::kOther || name == "none" ? Method::kPlain
         : name == "lz4"                                   ? Method::kLz4
                                                           : Method::kZstd;
}

bool possible(const Entry& entry, Method method) {
  const uint64_t ratio = method == Method::kLz4 ? kMaxLz4Ratio : kMaxZstdRatio;
  return entry.claimed_bytes <= std::min((entry.stored_payload.size() + 64) * ratio, kMaxPayloadBytes);
}

const char* chars(Bytes bytes) {
  return reinterpret_cast<const char*>(bytes.data());
}
char* chars(std::span<uint8_t> bytes) {
  return reinterpret_cast<char*>(bytes.data());
}

// As a stream: the frame's window is allocated (128 MiB at most, zstd's limit), but only one block of it
// used.
bool zstd_start(Bytes stored, std::span<uint8_t> out) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (!stream) return false;
  ZSTD_inBuffer from{stored.data(), stored.size(), 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  while (to.pos < to.size) {
    const size_t before = from.pos + to.pos;
    const size_t more = ZSTD_decompressStream(stream.get(), &to, &from);
    if (ZSTD_isError(more) || from.pos + to.pos == before) return false;
  }
  return true;
}

}  // namespace

base::Result<std::vector<uint8_t>> decompress(const Entry& entry) {
  const Bytes stored = entry.stored_payload;
  const Method method = method_of(entry);
  if (method == Method::kPlain) return std::vector<uint8_t>(stored.begin(), stored.end());
  if (!possible(entry, method))
    return base::error(base::Code::kInvalid, "fat binary: an entry claims an impossible uncompressed size");
  std::vector<uint8_t> out(entry.claimed_bytes);
  if (method == Method::kLz4) {
    const int n = stored.size() > INT32_MAX ? -1
                                            : LZ4_decompress_safe(chars(stored), chars(std::span(out)),
                                                                  int(stored.size()), int(out.size()));
    if (n < 0 || size_t(n) != out.size())
      return base::error(base::Code::kInvalid, "fat binary: an LZ4 entry does not decompress");
    return out;
  }
  const size_t n = ZSTD_decompress(out.data(), out.size(), stored.data(), stored.size());
  if (ZSTD_isError(n) || n != out.size())
    return base::error(base::Code::kInvalid, "fat binary: a zstd entry does not decompress");
  return out;
}

namespace {

// For frames with a larger window, which no stream takes.
bool start_of_whole(const Entry& entry, std::span<uint8_t> out) {
  auto whole = decompress(entry);
  if (!whole.ok() || whole->size() < out.size()) return false;
  std::copy_n(whole->begin(), out.size(), out.begin());
  return true;
}

}  // namespace

bool decompress_start(const Entry& entry, std::span<uint8_t> out) {
  const Bytes stored = entry.stored_payload;
  switch (method_of(entry)) {
    case Method::kPlain:
      if (stored.size() < out.size()) return false;
      std::copy_n(stored.begin(), out.size(), out.begin());
      return true;
    case Method::kLz4:
      return stored.size() <= INT32_MAX &&
             LZ4_decompress_safe_partial(chars(stored), chars(out), int(stored.size()), int(out.size()),
                                         int(out.size())) == int(out.size());
    case Method::kZstd:
      return zstd_start(stored, out) || start_of_whole(entry, out);
  }
  return false;
}

}  // namespace tessera::image
