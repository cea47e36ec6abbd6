// The first line of a small file, as those of /proc and /sys are; "" if it cannot be read.
#pragma once

#include <fstream>
#include <string>

namespace tessera::cli {

inline std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace tessera::cli
