// softgpu_arbiter: the modelled device that all processes of a user share. Started on demand by the first of
// them (softgpu/timing/place.cc), ends by itself some seconds after the last one left. `softgpu_arbiter
// [--detach] [FOLDER]`.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/scheduling.h"
#include "base/units.h"
#include "softgpu/timing/arbiter.h"
#include "softgpu/timing/place.h"

namespace {

using namespace tessera;
using namespace tessera::softgpu::timing;

// Whoever started us reads this from standard output.
int refuse(const std::string& why) {
  printf("softgpu_arbiter: %s\n", why.c_str());
  fflush(stdout);
  return 1;
}

int number_from_environment(const char* name, int fallback) {
  const char* text = getenv(name);
  return text && *text ? atoi(text) : fallback;
}

bool detach() {
  pid_t pid = fork();
  if (pid < 0) return false;
  if (pid > 0) _exit(0);
  setsid();
  pid = fork();
  if (pid < 0) return false;
  if (pid > 0) _exit(0);
  // Nothing of the host may be kept open: its pipes would never end.
  close_range(3, ~0u, 0);
  int null = open("/dev/null", O_RDWR);
  if (null >= 0) {
    dup2(null, 0);
    dup2(null, 2);
    if (null > 2) close(null);
  }
  return chdir("/") == 0;
}

// Little work, but everybody waits for it. As a session of its own the arbiter is also a scheduling group of
// its own (sched(7), autogroup), within which alone its nice value counts. Refused to ordinary users, no
// matter.
void go_first() {
  setpriority(PRIO_PROCESS, 0, -10);
  base::ask_for_slice(base::us(100));
  const base::ScopedFd group(open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC));
  if (group.valid()) (void)!write(group.get(), "-10", 3);
}

// Whoever has the lock will listen, or is on its way out. This one takes its place as soon as it may, so that programs which
// start at once wait for one process instead of starting others.
bool takes_over(int lock, const std::string& socket_path) {
  const uint64_t end_ns = base::now_ns() + kArbiterPatienceNs;
  while (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (try_connect(socket_path).ok() || base::now_ns() > end_ns) return false;
    usleep(2000);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  bool detached = argc > 1 && strcmp(argv[1], "--detach") == 0;
  if (argc > 1 && argv[1][0] == '-' && !detached) return refuse("usage: softgpu_arbiter [--detach] [FOLDER]");
  const char* folder = argc > (detached ? 2 : 1) ? argv[detached ? 2 : 1] : nullptr;
  if (folder) setenv("TESSERA_SOFTGPU_DIR", folder, 1);

  // Everything that depends on the working directory comes before detach().
  auto description = find_description("");
  if (!description.ok()) return refuse(description.error().text);
  auto gpu = profiles::load_gpu_description(*description);
  if (!gpu.ok()) return refuse(gpu.error().text);
  const char* mode_text = getenv("TESSERA_SOFTGPU_MODE");
  std::string mode = mode_text && *mode_text ? mode_text : "timesliced";
  if (mode != "timesliced" && mode != "mps")
    return refuse("TESSERA_SOFTGPU_MODE is '" + mode + "', must be timesliced or mps");
  auto stretch = stretch_from_environment();
  if (!stretch.ok()) return refuse(stretch.error().text);
  auto directory = runtime_directory();
  if (!directory.ok()) return refuse(directory.error().text);
  char real[4096];
  if (realpath(directory->c_str(), real)) *directory = real;

  if (detached && !detach()) return refuse("cannot detach");
  prctl(PR_SET_NAME, "softgpu-arbiter");
  go_first();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);

  // The lock says who is the arbiter; the socket of a dead one is then ours to replace.
  base::ScopedFd lock(
      open((*directory + "/arbiter.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return refuse("cannot open " + *directory + "/arbiter.lock: " + strerror(errno));
  std::string path = socket_path(*directory);
  if (!takes_over(lock.get(), path)) return 0;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return refuse("socket path too long: " + path + " (set TESSERA_SOFTGPU_DIR to a shorter one)");
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  unlink(path.c_str());
  base::ScopedFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  umask(077);
  if (!listener.valid() || bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), 128) != 0)
    return refuse("cannot listen on " + path + ": " + strerror(errno));

  Arbiter::Options options;
  options.linger_ms = number_from_environment("TESSERA_SOFTGPU_LINGER_MS", options.linger_ms);
  options.spin_us = number_from_environment("TESSERA_SOFTGPU_SPIN_US", options.spin_us);
  options.stretch = *stretch;
  Arbiter arbiter(*gpu, mode == "mps" ? Mode::kMps : Mode::kTimesliced, options);
  if (!arbiter.ok()) return refuse("no epoll or timer descriptor");
  arbiter.listen_on(std::move(listener));
  printf("ready\n");
  fflush(stdout);
  if (detached) {
    int null = open("/dev/null", O_WRONLY);
    if (null >= 0) {
      dup2(null, 1);
      if (null > 2) close(null);
    }
  }
  arbiter.run();
  unlink(path.c_str());  // still under the lock: nobody else's
  return 0;
}
