// Files that the build made for these tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

inline std::string fixture(const std::string& name) {
  std::string path = std::string(FIXTURES) + "/" + name, out;
  FILE* f = std::fopen(path.c_str(), "rb");
  EXPECT_NE(f, nullptr) << path;
  if (f) {
    char buffer[65536];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) {
      out.append(buffer, n);
    }
    std::fclose(f);
  }
  return out;
}
