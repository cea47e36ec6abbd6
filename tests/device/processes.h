// The common part of questions with several processes: a page in a memfd that all of them see and the device reads, and
// children that are this program in another role. Host code of h20, h24, h25 and h26. A child dies with its parent, and the
// parent calls no driver before it starts children.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <utility>

#include "probe.h"

namespace processes {

// The comparison is signed: the word opens when its bytes 0 to 6 are 0xff, or when its byte 7 is not 0.
constexpr uint64_t kOpen = 0x00ffffffffffffff;
constexpr size_t kPageBytes = 4096;

using WaitValue64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);

// A page that outlives exec: the child gets the descriptor's number.
inline int make_page() {
  const int descriptor = memfd_create("gate", 0);
  if (descriptor < 0 || ftruncate(descriptor, kPageBytes) != 0) samples::fail("no page", "memfd_create");
  return descriptor;
}
template <class Page>
Page* map_page(int descriptor) {
  static_assert(sizeof(Page) <= kPageBytes, "one page");
  void* address = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) samples::fail("no page", "mmap");
  return static_cast<Page*>(address);
}
// The page's address on the device.
inline CUdeviceptr pin_page(void* page) {
  void* device = nullptr;
  CUDA_CHECK(cudaHostRegister(page, kPageBytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  CUDA_CHECK(cudaHostGetDevicePointer(&device, page, 0));
  return reinterpret_cast<CUdeviceptr>(device);
}

// Looks every 100 us, so that many waiting processes leave CPUs to those that work.
inline bool wait_until(double limit_s, const std::function<bool()>& reached) {
  const uint64_t end_ns = samples::now_ns() + uint64_t(limit_s * 1e9);
  while (!reached()) {
    if (samples::now_ns() > end_ns) return false;
    samples::sleep_until_ns(samples::now_ns() + 100000);
  }
  return true;
}

// Forks; what `body` returns is the child's exit status.
inline pid_t fork_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) samples::fail("no child", "fork");
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(getppid() == parent ? body() : 1);
}

// This program with other arguments. Its standard output, one JSON object, is read when it has ended.
class Child {
 public:
  Child(std::vector<std::string> arguments,
        const std::vector<std::pair<std::string, std::string>>& environment) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) samples::fail("no child", "pipe2");
    pid_ = fork_child([&] {
      dup2(ends[1], STDOUT_FILENO);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      arguments.insert(arguments.begin(), "/proc/self/exe");
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      return 127;
    });
    close(ends[1]);
    output_ = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (!ended_) kill_now();
    close(output_);
  }
  pid_t pid() const { return pid_; }
  bool alive() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return !ended_;
  }
  void kill_now() {
    if (!alive()) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  // The child's output; says why if it printed nothing (failed()).
  std::string answer(double limit_s) {
    std::string text;
    char buffer[4096];
    pollfd poll_output{output_, POLLIN, 0};
    const uint64_t end_ns = samples::now_ns() + uint64_t(limit_s * 1e9);
    bool whole = false;
    while (!whole && samples::now_ns() < end_ns) {
      if (poll(&poll_output, 1, 100) <= 0) continue;
      const ssize_t n = read(output_, buffer, sizeof buffer);
      whole = n <= 0;
      if (n > 0) text.append(buffer, size_t(n));
    }
    const bool by_itself = whole && wait_until(5, [&] { return !alive(); });
    kill_now();
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (!text.empty() && text.front() == '{' && text.back() == '}') return text;
    if (!by_itself) return "{\"failed\": \"no answer in time\"}";
    return "{\"failed\": \"ended with wait status " + std::to_string(status_) + "\"}";
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

inline bool failed(const std::string& answer) {
  return answer.rfind("{\"failed\"", 0) == 0;
}

}  // namespace processes
