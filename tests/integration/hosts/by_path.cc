// A program that opens the driver by its path, as tinygrad does, initialises it and goes on until SIGTERM.
//
//   by_path DRIVER FILE [also_by_name]    FILE appears when it has; also_by_name: then through libcuda.so.1,
//   too
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

namespace {

bool initialise(const char* driver) {
  void* library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
  auto* init = library ? reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit")) : nullptr;
  return init && init(0) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  if (!initialise(argv[1]) || (argc > 3 && !initialise("libcuda.so.1"))) return 1;
  close(open(argv[2], O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  int number = 0;
  sigwait(&stop, &number);
  return 0;
}
