#include "simulator/tuning.h"

#include <charconv>
#include <cmath>
#include <type_traits>

namespace tessera::simulator {
namespace {

constexpr double kMost = 1e15;

template <class T>
base::Status set(const std::string& name, double value, T* out) {
  const auto wrong = [&](const char* what) {
    return base::Status(base::error(base::Code::kInvalid, "`" + name + "` must be " + what));
  };
  if (!(value >= 0 && value <= kMost)) return wrong("a number from 0 to 1e15");
  if (std::is_same_v<T, bool> && value != 0 && value != 1) return wrong("0 (off) or 1 (on)");
  if (std::is_same_v<T, uint64_t> && value != std::floor(value)) return wrong("a whole number");
  *out = T(value);
  return base::ok();
}

}  // namespace

base::Status set_tuning(const std::string& name, double value, policy::Tuning* tuning) {
  std::string known;
#define TS_TUNE(type, row, initial, unit, why)             \
  if (name == #row) return set(name, value, &tuning->row); \
  known += (known.empty() ? "" : ", ") + std::string(#row);
#define TS_PART(row, on, what) TS_TUNE(bool, row, on, "", what)
#include "scheduler_daemon/policy/tuning.def"
  return base::error(base::Code::kNotFound, "no constant is called `" + name + "`; known: " + known);
}

base::Status set_tuning(const std::string& name_and_value, policy::Tuning* tuning) {
  const size_t at = name_and_value.find('=');
  double value = 0;
  const char* end = name_and_value.data() + name_and_value.size();
  if (at != std::string::npos) {
    const auto read = std::from_chars(name_and_value.data() + at + 1, end, value);
    if (read.ec == std::errc() && read.ptr == end)
      return set_tuning(name_and_value.substr(0, at), value, tuning);
  }
  return base::error(base::Code::kInvalid, "`" + name_and_value + "` must be NAME=VALUE, with a number");
}

}  // namespace tessera::simulator
