// How much of a running program was cut, how much of it can be, what stands in the way and which option would help: from
// what the daemon says of its client. `tessera ps`, `tessera doctor` and `tessera explain` show it. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tessera::cli {

struct CutLaunches {      // all "" if no launch of the client was looked at: it was alone, or is protected
  std::string share;      // "cut: 0% of 280k launches, 0% of 12 s on the GPU; can be cut: 0%, 0%"
  std::string obstacles;  // "62% machine code without PTX, 38% NVIDIA's libraries"; "": none
  std::string remedies;   // "" if nothing stands in the way, or nothing helps
};
CutLaunches cut_launches(const nlohmann::json& client);
std::string cutting_line(const nlohmann::json& client);  // all of it, in one line; "" likewise

// A way to shorten the wait for a kernel whose launches have this outcome (ipc/abi/cutting.h): cut, split, confine, or
// only in gaps, and how. "": no such outcome.
std::string shortens(std::string_view outcome);

}  // namespace tessera::cli
