#include "cli/run/started_program.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "base/user_file.h"
#include "cli/run/layout.h"

namespace tessera::cli {
namespace {

constexpr int kInterpreters = 4;         // a script of a script of ...: as many as the kernel follows
constexpr size_t kFirstLineBytes = 256;  // of a script, as the kernel reads it (BINPRM_BUF_SIZE)

// The kernel starts these for a program: a script's interpreter, and the program found by env(1).
std::string interpreter_of(const std::string& file) {
  char begin[kFirstLineBytes];
  const auto fd = base::open_to_read(file);
  const ssize_t n = fd ? read(fd->get(), begin, sizeof begin) : 0;
  const std::string line(begin, size_t(std::max<ssize_t>(n, 0)));
  if (!line.starts_with("#!")) return "";
  std::string word, next;
  std::istringstream words(line.substr(2, line.find('\n') - 2));
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
