// Conditions that a fuzz target insists on: CHECK(condition) names the broken one and aborts, which libFuzzer and
// replay_main.cc take for a finding. Any thread.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tessera::fuzz {

inline void check(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

}  // namespace tessera::fuzz

#define CHECK(condition) ::tessera::fuzz::check(condition, #condition)
