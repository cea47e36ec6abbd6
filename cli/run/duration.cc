#include "cli/run/duration.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace tessera::cli {

base::Result<double> parse_number(const std::string& text, double least, double most) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, number);
  // No comparison with what is not a number is true.
  if (failed == std::errc() && rest == end && number >= least && number <= most) return number;
  char range[64];
  snprintf(range, sizeof range, "' is not a number from %.10g to %.10g", least, most);
  return base::error(base::Code::kInvalid, "'" + text + range);
}

base::Result<uint64_t> parse_duration_ns(const std::string& text) {
  struct Unit {
    std::string_view name;
    double ns;
  };
  static constexpr Unit kUnits[] = {{"ns", 1},  {"us", 1e3},   {"ms", 1e6},
                                    {"s", 1e9}, {"min", 60e9}, {"m", 60e9}};
  constexpr double kLongestNs = 3600e9;
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  for (const Unit& u : kUnits)
    if (text.substr(digits) == u.name)
      if (const auto number = parse_number(text.substr(0, digits), 0, kLongestNs / u.ns))
        return uint64_t(std::llround(*number * u.ns));
  return base::error(base::Code::kInvalid,
                     "'" + text + "' is not a duration up to an hour: write 500us, 20ms, 1.5s or 2min");
}

}  // namespace tessera::cli
