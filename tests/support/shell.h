// A command line run by the shell, and what it printed. Header only, no GoogleTest; waits for the end.
#pragma once

#include <stdio.h>

#include <string>

namespace tessera::test {

struct Ended {
  int status = 0;    // as waitpid gives it
  std::string text;  // standard output and error
};

inline Ended shell(const std::string& command) {
  Ended ended;
  FILE* pipe = popen((command + " 2>&1").c_str(), "re");
  if (pipe == nullptr) return {-1, ""};
  char chunk[4096];
  while (const size_t n = fread(chunk, 1, sizeof chunk, pipe)) ended.text.append(chunk, n);
  ended.status = pclose(pipe);
  return ended;
}

}  // namespace tessera::test
