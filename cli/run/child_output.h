// Runs something in a child and reads all that it writes on its standard output. Blocks until the child ends;
// not for a process with other threads that allocate.
#pragma once

#include <functional>
#include <string>

namespace tessera::cli {

struct ChildOutput {
  std::string text;
  int status = -1;  // as waitpid gives it; -1: there was no child
  bool ended_well() const { return status == 0; }
};

// `work` should end in an exec or _exit; if it returns, the child exits with 127. `input` is what the child
// reads on its standard input; null: it has the caller's.
ChildOutput output_of_child(const std::function<void()>& work, const std::string* input = nullptr);

}  // namespace tessera::cli
