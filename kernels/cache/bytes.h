// Values one after another, little-endian, as every machine with an NVIDIA driver is. Private to kernels/cache. Pure;
// Reader takes any bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tessera::cache {

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
inline void put_text(std::string& out, std::string_view text) {
  put(out, uint64_t(text.size()));
  out.append(text);
}

// Takes values from the front; after the first that is not there, nothing.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T take() {
    T value{};
    if (rest_.size() < sizeof value) return fail(), value;
    memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string take_text() {
    const auto length = take<uint64_t>();
    if (length > rest_.size()) return fail(), std::string();
    std::string text(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return text;
  }
  bool fine() const { return fine_; }
  size_t left() const { return rest_.size(); }

 private:
  void fail() {
    fine_ = false;
    rest_ = {};
  }
  std::string_view rest_;
  bool fine_ = true;
};

}  // namespace tessera::cache
