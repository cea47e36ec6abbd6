#include "kernels/cache/proved.h"

#include <algorithm>
#include <array>

#include "kernels/cache/bytes.h"
#include "kernels/cache/file.h"

namespace tessera::cache {
namespace {

constexpr int kOfMachineCode = -1, kOfText = -2;  // in place of a driver's version: it has no part in them
constexpr size_t kLeastVariantBytes = 2 * sizeof(uint64_t) + sizeof(Key);

constexpr std::string_view kLineStart = "//tessera ";
constexpr size_t kLineCharacters = 2'000;
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Three bytes as four characters; the last may be fewer of both.
std::string to_base64(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - at);
    uint32_t word = 0;
    for (size_t i = 0; i < 3; i++) word = word << 8 | (i < n ? uint8_t(bytes[at + i]) : 0u);
    for (size_t i = 0; i <= n; i++) out += kDigits[word >> (18 - 6 * i) & 63];
  }
  return out;
}

// False: not what to_base64() writes.
bool from_base64(std::string_view text, std::string* out) {
  std::array<uint8_t, 256> value;
  value.fill(0xff);
  for (size_t i = 0; i < kDigits.size(); i++) value[uint8_t(kDigits[i])] = uint8_t(i);
  if (text.size() % 4 == 1) return false;
  for (size_t at = 0; at < text.size(); at += 4) {
    const size_t n = std::min<size_t>(4, text.size() - at);
    uint32_t word = 0;
    for (size_t i = 0; i < 4; i++) {
      const uint8_t v = i < n ? value[uint8_t(text[at + i])] : uint8_t(0);
      if (v > 63) return false;
      word = word << 6 | v;
    }
    if (word & ((uint32_t(1) << (24 - 8 * (n - 1))) - 1)) return false;
    for (size_t i = 0; i + 1 < n; i++) *out += char(word >> (16 - 8 * i) & 0xff);
  }
  return true;
}

}  // namespace

Key proved_key(std::string_view machine_code) {
  return key_of(machine_code, kOfMachineCode);
}
Key text_key(std::string_view ptx) {
  return key_of(ptx, kOfText);
}

std::string encode_proved(const ProvedVariants& variants) {
  std::string out;
  put(out, uint64_t(variants.size()));
  for (const ProvedVariant& v : variants) {
    put_text(out, v.kernel);
    put(out, v.text);
    put_text(out, v.code);
  }
  return out;
}

base::Result<ProvedVariants> decode_proved(std::string_view bytes) {
  const auto damaged = [] { return base::error(base::Code::kInvalid, "not proved variants"); };
  Reader in(bytes);
  const auto n = in.take<uint64_t>();
  if (n > in.left() / kLeastVariantBytes) return damaged();
  ProvedVariants out(n);
  for (ProvedVariant& v : out) {
    v.kernel = in.take_text();
    v.text = in.take<Key>();
    v.code = in.take_text();
  }
  if (!in.fine() || in.left() != 0) return damaged();
  return out;
}

std::string with_proved(std::string_view ptx, const Key& key, const ProvedVariants& variants) {
  std::string out(ptx);
  if (!out.ends_with('\n')) out += '\n';
  const std::string text = to_base64(wrap(key, encode_proved(variants)));
  for (size_t at = 0; at < text.size(); at += kLineCharacters)
    out.append(kLineStart).append(text, at, kLineCharacters).append("\n");
  return out;
}

base::Result<ProvedVariants> proved_in(std::string_view ptx, const Key& key) {
  // Lines from the end, as long as they are of ours.
  std::vector<std::string_view> lines;
  while (ptx.ends_with('\n')) {
    const size_t before = ptx.size() > 1 ? ptx.rfind('\n', ptx.size() - 2) : ptx.npos;
    const size_t begin = before == ptx.npos ? 0 : before + 1;
    std::string_view line = ptx.substr(begin, ptx.size() - 1 - begin);
    if (!line.starts_with(kLineStart)) break;
    lines.push_back(line.substr(kLineStart.size()));
    ptx = ptx.substr(0, begin);
  }
  if (lines.empty()) return base::error(base::Code::kNotFound, "no proved variants");
  std::string text, bytes;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) text += *line;
  if (!from_base64(text, &bytes))
    return base::error(base::Code::kInvalid, "proved variants that are damaged");
  auto payload = unwrap(key, bytes);
  if (!payload) return payload.error();
  return decode_proved(*payload);
}

ProvedVariants find_proved(std::string_view ptx, std::string_view machine_code, const Store& store,
                           std::string* problem) {
  const Key key = proved_key(machine_code);
  auto found = proved_in(ptx, key);
  if (!found) {
    const auto bytes = store.load(key);
    found = bytes ? decode_proved(*bytes) : base::Result<ProvedVariants>(bytes.error());
  }
  if (found) return std::move(*found);
  if (found.error().code != base::Code::kNotFound) *problem = found.error().text;
  return {};
}

}  // namespace tessera::cache
