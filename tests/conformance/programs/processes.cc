// fork before the first call, fork after it, and a daemon that closed every descriptor: each does its work.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/conformance/programs/work.h"

namespace {

// Runs `body` in a child; its lines come before the parent's next one.
template <class Body>
void in_child(const char* what, Body body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    std::printf("child: %s\n", what);
    body();
    std::fflush(stdout);
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("child of '%s' ended with %d\n", what, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

void daemonise_and_work() {
  std::fflush(stdout);
  if (fork() != 0) _exit(0);
  setsid();
  if (fork() != 0) _exit(0);
  if (chdir("/") != 0) return;
  for (int fd = 3; fd < 256; ++fd) close(fd);
  std::printf("daemon\n");
  do_work(open_work());
  std::fflush(stdout);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "daemon") == 0) {
    // The first call is made, then the process turns into a daemon; the caller reads our output to its end.
    SAY(cuInit(0));
    daemonise_and_work();
    return 1;
  }
  in_child("before the first call", [] { do_work(open_work()); });
  const Work w = open_work();
  in_child("after the first call", [&] {
    SAY(cuInit(0));
    do_work(w);
  });
  in_child("grandchildren", [&] { in_child("inner", [&] { do_work(w); }); });
  do_work(w);
}
