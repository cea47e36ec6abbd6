#include "cli/run/child_output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/quiet_write.h"
#include "base/read_to_end.h"
#include "base/scoped_fd.h"

namespace tessera::cli {
namespace {

struct Pipe {
  base::ScopedFd read_end, write_end;
};

bool open_pipe(Pipe* p) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  *p = {base::ScopedFd(ends[0]), base::ScopedFd(ends[1])};
  return true;
}

}  // namespace

ChildOutput output_of_child(const std::function<void()>& work, const std::string* input) {
  ChildOutput result;
  Pipe in, out;
  if (!open_pipe(&out) || (input && !open_pipe(&in))) return result;
  const pid_t child = fork();
  if (child == 0) {
    if (input) dup2(in.read_end.get(), STDIN_FILENO);
    dup2(out.write_end.get(), STDOUT_FILENO);
    work();
    _exit(127);
  }
  if (child < 0) return result;
  out.write_end = {};
  if (input) (void)!base::quiet_write(in.write_end.get(), input->data(), input->size());
  in = {};
  result.text = base::read_to_end(out.read_end.get());
  while (waitpid(child, &result.status, 0) < 0 && errno == EINTR) {
  }
  return result;
}

}  // namespace tessera::cli
