// Finds the program that the kernel starts for a command. Main thread; reads the program's file.
#pragma once

#include <string>

namespace tessera::cli {

struct StartedProgram {
  std::string file;     // ELF, or "" if nothing can be started
  bool script = false;  // `file` is what interprets it
};

// Follows scripts to their interpreters, and env(1) to what it finds.
StartedProgram started_program(const std::string& command);

}  // namespace tessera::cli
