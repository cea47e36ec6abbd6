#include "cli/duration.h"

#include <charconv>
#include <cmath>
#include <string_view>

namespace tessera::cli {

base::Result<uint64_t> parse_duration_ns(const std::string& text) {
  struct Unit {
    std::string_view name;
    double ns;
  };
  static constexpr Unit kUnits[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}};
  constexpr double kLongest_ns = 3600e9;
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::string_view unit(rest, size_t(end - rest));
  for (const Unit& u : kUnits)
    if (failed == std::errc() && unit == u.name && number >= 0 && number * u.ns <= kLongest_ns)
      return uint64_t(std::llround(number * u.ns));
  return base::error(base::Code::kInvalid,
                     "'" + text + "' is not a duration up to an hour: write 500us, 20ms, 1.5s or 2min");
}

}  // namespace tessera::cli
