// Engine: connects to the arbiter (or runs one in this process) and forwards to Core.
#include "softgpu/timing/engine.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "softgpu/timing/arbiter.h"
#include "softgpu/timing/engine_core.h"
#include "softgpu/timing/place.h"
#include "softgpu/timing/stretch.h"

namespace tessera::softgpu::timing {
namespace {

using base::Code;

// Engines whose trace has to reach the disk when the process ends without destroying them. Never freed.
struct Registry {
  std::mutex mutex;  // guards cores
  std::vector<std::weak_ptr<Core>> cores;
};

Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

void flush_traces() {
  Registry& r = registry();
  std::unique_lock lock(r.mutex, std::try_to_lock);
  if (!lock) return;  // a forked child may find it locked for ever
  for (auto& weak : r.cores)
    if (auto core = weak.lock(); core && core->usable()) core->flush_trace();
}

void remember(const std::shared_ptr<Core>& core) {
  static std::once_flag once;
  std::call_once(once, [] { atexit(flush_traces); });
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::erase_if(r.cores, [](auto& weak) { return weak.expired(); });
  r.cores.push_back(core);
}

class EngineImpl : public Engine {
 public:
  explicit EngineImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~EngineImpl() override {
    if (core_->usable()) {
      core_->stop();
    } else {
      new std::shared_ptr<Core>(core_);  // forked child: its locks may be held by threads that are not here
    }
  }
  const DeviceInfo& info() const override { return core_->info; }
  OpRef submit(OpSpec spec) override { return core_->submit(std::move(spec)); }
  bool complete(const OpRef& op) const override {
    return !op || op->done.load(std::memory_order_acquire);  // pairs with the release in Core::finish()
  }
  int code(const OpRef& op) const override { return op ? core_->code(op) : 0; }
  // A core that is gone has ended all its operations.
  void wait(const OpRef& op) override {
    if (complete(op)) return;
    if (const auto home = op->home.lock()) home->wait(op);
  }
  OpTimes times(const OpRef& op) const override {
    const auto home = op ? op->home.lock() : nullptr;
    return home ? home->times(op) : OpTimes{};
  }
  void abort_all(int code) override { core_->abort_all(code); }
  bool lost() const override { return !core_->usable() || core_->lost(); }

 private:
  std::shared_ptr<Core> core_;
};

bool receive_exactly(int fd, void* to, size_t bytes, uint64_t deadline_ns) {
  auto* p = static_cast<char*>(to);
  while (bytes > 0) {
    uint64_t now = base::now_ns();
    pollfd ready{fd, POLLIN, 0};
    if (now >= deadline_ns || poll(&ready, 1, int((deadline_ns - now) / 1'000'000) + 1) == 0) return false;
    ssize_t n = recv(fd, p, bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    p += n;
    bytes -= size_t(n);
  }
  return true;
}

base::Result<DeviceInfo> greet(int fd, int client_priority) {
  struct {
    wire::Header header{sizeof(wire::Hello), wire::Type::kHello, 0};
    wire::Hello hello{};
  } m;
  m.hello = {wire::kMagic, wire::kVersion, client_priority, 0};
  if (send(fd, &m, sizeof m, MSG_NOSIGNAL) != ssize_t(sizeof m))
    return base::error(Code::kUnavailable, "the softgpu arbiter closed the connection");
  wire::Header header;
  wire::Welcome welcome;
  uint64_t deadline = base::now_ns() + kArbiterPatienceNs;
  if (!receive_exactly(fd, &header, sizeof header, deadline) || header.type != wire::Type::kWelcome ||
      header.bytes != sizeof welcome || !receive_exactly(fd, &welcome, sizeof welcome, deadline) ||
      welcome.version != wire::kVersion ||
      !(welcome.stretch >= kLeastStretch && welcome.stretch <= kMostStretch))
    return base::error(Code::kUnavailable,
                       "the softgpu arbiter did not answer as expected (an older one still running?)");
  welcome.path[sizeof welcome.path - 1] = 0;
  DeviceInfo info;
  info.description_path = welcome.path;
  info.mode = welcome.timesliced ? "timesliced" : "mps";
  info.stretch = welcome.stretch;
  memcpy(info.uuid.data(), welcome.uuid, info.uuid.size());
  return info;
}

std::unique_ptr<Engine> make_engine(base::ScopedFd fd, DeviceInfo info) {
  const char* threads = getenv("TESSERA_SOFTGPU_THREADS");
  int n = threads && *threads ? atoi(threads) : 1;
  auto core = std::make_shared<Core>(std::move(fd), std::move(info), unsigned(n < 1 ? 1 : n > 64 ? 64 : n));
  core->start();
  remember(core);
  return std::make_unique<EngineImpl>(core);
}

size_t threads_of_process() {
  std::error_code failed;
  size_t n = 0;
  for (std::filesystem::directory_iterator task("/proc/self/task", failed), end; !failed && task != end;
       task.increment(failed))
    ++n;
  return failed ? 0 : n;
}

}  // namespace

bool all_wait_for_this_body(unsigned more_threads) {
  // In this order: a thread that waits for what stands behind the body goes on waiting.
  const size_t idle = OwnThread::count() + Core::waiting_threads() + more_threads;
  if (threads_of_process() != idle) return false;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  for (auto& weak : r.cores)
    if (auto core = weak.lock(); core && !core->all_behind_running_body()) return false;
  return true;
}

base::Result<std::unique_ptr<Engine>> Engine::connect(int client_priority, unsigned device,
                                                      const std::string& description) {
  // An arbiter that is about to leave may take the connection with it: once more then.
  for (int attempt = 0;; ++attempt) {
    auto fd = connect_to_arbiter(device, description);
    if (!fd.ok()) return fd.error();
    auto info = greet(fd->get(), client_priority);
    if (info.ok()) {
      info->device = device;
      return make_engine(std::move(*fd), std::move(*info));
    }
    if (attempt == 4) return info.error();
  }
}

base::Result<std::unique_ptr<Engine>> Engine::local(const std::string& description_path,
                                                    const std::string& mode, unsigned device) {
  if (mode != "timesliced" && mode != "mps")
    return base::error(Code::kInvalid, "mode is '" + mode + "', must be timesliced or mps");
  auto path = find_description(description_path);
  if (!path.ok()) return path.error();
  auto gpu = profiles::load_gpu_description(*path);
  if (!gpu.ok()) return gpu.error();
  auto stretch = stretch_from_environment();
  if (!stretch.ok()) return stretch.error();
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return base::error(Code::kExhausted, std::string("socketpair: ") + strerror(errno));
  base::ScopedFd ours(pair[0]), theirs(pair[1]);
  Arbiter::Options options;
  options.linger_ms = 0;
  options.stretch = *stretch;
  auto arbiter = std::make_unique<Arbiter>(*gpu, mode == "mps" ? Mode::kMps : Mode::kTimesliced, options);
  arbiter->add_client(std::move(theirs));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([arbiter = std::move(arbiter)] {
    const OwnThread counted;
    pthread_setname_np(pthread_self(), "softgpu-arbiter");
    arbiter->run();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  auto info = greet(ours.get(), 0);
  if (!info.ok()) return info.error();
  info->device = device;
  return make_engine(std::move(ours), std::move(*info));
}

}  // namespace tessera::softgpu::timing
