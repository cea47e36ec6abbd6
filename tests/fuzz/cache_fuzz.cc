// Any bytes as a file of the cache, and as what such a file holds: refused, or the same again when written
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "kernels/cache/file.h"
#include "kernels/cache/proved.h"
#include "kernels/cache/rewritten.h"

namespace {

using namespace tessera::cache;

void check(bool fine) {
  if (!fine) abort();
}

void record(std::string_view bytes) {
  auto read = decode(bytes);
  if (!read.ok()) return;
  auto again = decode(encode(*read));
  check(again.ok() && *again == *read);
}

void proved(const Key& key, std::string_view bytes) {
  if (auto read = decode_proved(bytes)) {
    auto again = decode_proved(encode_proved(*read));
    check(again.ok() && *again == *read);
  }
  if (auto read = proved_in(bytes, key)) {
    auto again = proved_in(with_proved("", key, *read), key);
    check(again.ok() && *again == *read);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Key key;  // of the corpus
  if (auto payload = unwrap(key, bytes)) {
    check(wrap(key, *payload) == bytes);
    record(*payload);
  }
  record(bytes);
  proved(key, bytes);
  return 0;
}
