// Arguments that several commands of `tessera` have. Slow to compile, for files that declare arguments only.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/run/duration.h"

namespace tessera::cli {

inline constexpr int kLargestPid = 1 << 22;  // of the kernel, PID_MAX_LIMIT

// Every option that is a number: a duration, a rate, a count.
inline CLI::Validator between(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto number = parse_number(text, least, most);
        return number.ok() ? "" : number.error().text;
      },
      "[" + CLI::detail::to_string(least) + " - " + CLI::detail::to_string(most) + "]");
}

inline void add_socket(CLI::App* command, std::string& path) {
  command->add_option("--socket", path, "tesserad's socket (default: TESSERA_SOCKET, or this user's)");
}

inline void add_gpu(CLI::App* command, std::string& gpu) {
  command->add_option("--gpu", gpu, "auto: the machine's GPU; soft: the software GPU")
      ->check(CLI::IsMember({"auto", "soft"}))
      ->capture_default_str();
}

}  // namespace tessera::cli
