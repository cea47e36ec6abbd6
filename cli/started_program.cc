#include "cli/started_program.h"

#include <fstream>
#include <sstream>

#include "cli/layout.h"

namespace tessera::cli {
namespace {

constexpr int kInterpreters = 4;  // a script of a script of ...: as many as the kernel follows

// What the kernel starts for it: a script's interpreter, and what env(1) finds.
std::string interpreter_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  char mark[2] = {};
  in.read(mark, 2);
  if (mark[0] != '#' || mark[1] != '!') return "";
  std::string line, word, next;
  std::getline(in, line);
  std::istringstream words(line);
  words >> word;
  if (!word.ends_with("/env")) return word;
  while (words >> next)
    if (next[0] != '-' && next.find('=') == std::string::npos) return find_in_path(next);
  return word;
}

}  // namespace

StartedProgram started_program(const std::string& command) {
  StartedProgram out{find_in_path(command)};
  for (int i = 0; i < kInterpreters && !out.file.empty(); i++) {
    const std::string interpreter = interpreter_of(out.file);
    if (interpreter.empty()) return out;
    out = {interpreter, true};
  }
  return out;
}

}  // namespace tessera::cli
