// The common part of this folder's libraries: how often they were called, and how they are told to misbehave.
#pragma once

#include <stdlib.h>
#include <string.h>

#include <atomic>

inline bool is_set_to(const char* variable, const char* value) {
  const char* given = getenv(variable);
  return given && strcmp(given, value) == 0;
}

// FAKE_BITS=size: the bits of a result depend on how much is asked for at once, as of a library that takes another algorithm for
// another shape. FAKE_BITS=beta: where C is read only. FAKE_BITS=workspace: where the program has given it memory only.
// FAKE_BITS=order: more than 40,000 elements are summed from the other end.
inline bool g_has_workspace = false;
inline bool depends_on_size(bool reads_c) {
  return is_set_to("FAKE_BITS", "size") || (is_set_to("FAKE_BITS", "beta") && reads_c) ||
         (is_set_to("FAKE_BITS", "workspace") && g_has_workspace);
}

inline std::atomic<int> g_calls{0};
