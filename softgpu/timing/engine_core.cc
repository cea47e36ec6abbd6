#include "softgpu/timing/engine_core.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/scheduling.h"
#include "base/units.h"

namespace tessera::softgpu::timing {
namespace {

// Forked children: they must not use the engine, nor keep its socket open. Plain atomics, trivially
// destructible.
constinit std::atomic<uint64_t> g_forks{0};
constinit std::array<std::atomic<int>, 64> g_sockets{};  // descriptor + 1, 0 = free

void in_forked_child() {
  g_forks.fetch_add(1, std::memory_order_relaxed);  // the child has one thread
  for (auto& entry : g_sockets)
    if (int fd = entry.exchange(0, std::memory_order_relaxed)) close(fd - 1);
}

void remember_socket(int fd) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, in_forked_child); });
  for (auto& entry : g_sockets) {
    int expected = 0;
    // Relaxed: only fork handlers of this process read it.
    if (entry.compare_exchange_strong(expected, fd + 1, std::memory_order_relaxed)) return;
  }
}

void forget_socket(int fd) {
  for (auto& entry : g_sockets) {
    int expected = fd + 1;
    if (entry.compare_exchange_strong(expected, 0, std::memory_order_relaxed)) return;
  }
}

// Operations that the arbiter is told about at a time; the rest waits here, so that a program may run ahead
// as far as it likes. Half of what the arbiter accepts, joins of submit() included.
constexpr size_t kMaxAnnounced = wire::kMaxOperations / 2;

// A body that runs this long while others wait may be waiting for one of them (kernels that run together on a
// device may do that): another thread takes the next one.
constexpr uint64_t kStuckNs = 100'000'000;
constexpr size_t kMaxExtraThreads = 64;
constexpr int kWatchMs = 25;

// These threads stand for the device, which waits for no CPU. Beside six computing processes on two CPUs, 0.3
// ms of work every 2 ms is done after 0.9 ms on average with slices of 0.3 ms, after 2.2 ms with the kernel's
// 3 ms (two runs of 700 each); below 0.3 ms a body is interrupted more often than it wins.
constexpr uint64_t kSliceNs = base::us(300);

// Relaxed: a count that is behind or ahead only postpones the answer of all_wait_for_this_body().
constinit std::atomic<size_t> g_own_threads{0}, g_waiting_threads{0};
constinit thread_local const Op* t_running = nullptr;  // whose body this thread runs

// How long the poller sleeps between two looks at what streams wait for. A value is seen after about the time
// that the poller has already waited for it, at most the longest pause: gates that open often are seen within
// microseconds. One that stays closed costs 17 % of a CPU (two slow cores), 22 % in front of 300 streams.
constexpr auto kShortestPause = std::chrono::microseconds(5), kLongestPause = std::chrono::microseconds(50);

constexpr auto kStopPatience = std::chrono::milliseconds(500);

}  // namespace

OwnThread::OwnThread() {
  g_own_threads.fetch_add(1, std::memory_order_relaxed);
}
OwnThread::~OwnThread() {
  g_own_threads.fetch_sub(1, std::memory_order_relaxed);
}
size_t OwnThread::count() {
  return g_own_threads.load(std::memory_order_relaxed);
}
size_t Core::waiting_threads() {
  return g_waiting_threads.load(std::memory_order_relaxed);
}

Core::Core(base::ScopedFd socket, DeviceInfo device, unsigned n_executors)
    : info(std::move(device)),
      socket_(std::move(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      generation_(g_forks.load(std::memory_order_relaxed)),
      trace_(info.device, info.stretch) {
  kernels_.name = "softgpu-exec";
  kernels_.max_threads = std::max(1u, n_executors);
  copies_.name = "softgpu-copy";
  copies_.max_threads = 1;
  actions_.name = "softgpu-action";
  actions_.max_threads = 256;  // bodies of actions may block, for instance on a value in memory
  remember_socket(socket_.get());
}

Core::~Core() {
  if (usable()) forget_socket(socket_.get());
}

bool Core::usable() const {
  return g_forks.load(std::memory_order_relaxed) == generation_;
}

void Core::start() {
  std::lock_guard lock(mutex_);
  spawn("softgpu-recv", &Core::receiver_entry, nullptr);
}

// With mutex_ held. All signals stay with the application's threads.
void Core::spawn(const char* name, void (Core::*function)(Pool*), Pool* pool) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  ++n_threads_;
  std::thread([self = shared_from_this(), name, function, pool] {
    const OwnThread counted;
    pthread_setname_np(pthread_self(), name);
    base::ask_for_slice(kSliceNs);
    ((*self).*function)(pool);
    std::lock_guard lock(self->mutex_);
    --self->n_threads_;
    self->threads_gone_.notify_all();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Core::stop() {
  Callbacks callbacks;
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    end_all(kDeviceLost, callbacks);  // nobody is called: the driver is going away too
    for (Pool* pool : {&kernels_, &copies_, &actions_}) pool->work.notify_all();
    waiting_.notify_all();
    completed_.notify_all();
    wake_receiver();
    shutdown(socket_.get(), SHUT_RDWR);  // the arbiter need not wait for our last thread to know
    // A body that never returns must not keep the process from ending; its thread holds a reference to us.
    threads_gone_.wait_for(lock, kStopPatience, [&] { return n_threads_ == 0; });
  }
  trace_.flush();
}

// ---- operations

// A dependency of another device: an operation of ours stands for it, whose body waits for its end.
void Core::bridge(OpRef& dep) {
  if (!dep || dep->done.load(std::memory_order_acquire)) return;
  const std::shared_ptr<Core> home = dep->home.lock();
  if (home.get() == this) return;
  OpSpec wait;
  wait.kind = OpKind::kAction;
  wait.name = "other device";
  if (home)
    wait.body = [home, other = dep](const Report&) {
      home->wait(other);
      return 0;
    };
  dep = submit(std::move(wait));
}

OpRef Core::submit(OpSpec spec) {
  auto op = std::make_shared<Op>();
  op->home = weak_from_this();
  op->times.enqueued_ns = base::now_ns();
  Callbacks callbacks;
  if (!usable()) {
    op->code = kDeviceLost;
    op->done.store(true, std::memory_order_release);
    return op;
  }
  std::vector<OpRef> deps = std::move(spec.deps);
  spec.deps.clear();
  for (OpRef& dep : deps) bridge(dep);
  op->spec = std::move(spec);
  {
    std::lock_guard lock(mutex_);
    if (lost() || stopping_) {
      op->dropped = true;
      finish(op, kDeviceLost, deferred_);
      wake_receiver();
      return op;
    }
    std::erase_if(deps, [](const OpRef& d) { return !d || d->done.load(std::memory_order_relaxed); });
    std::sort(deps.begin(), deps.end(), [](const OpRef& a, const OpRef& b) { return a->id < b->id; });
    deps.erase(std::unique(deps.begin(), deps.end()), deps.end());
    std::vector<uint64_t> ids;
    for (const OpRef& dep : deps) ids.push_back(dep->id);
    // Ids between ours and the next are for the joins that announce() may need.
    last_id_ += ids.size() / (wire::kMaxDeps - 1) + 1;
    op->id = last_id_;
    for (const OpRef& dep : deps) {
      dep->dependents.push_back(op);
      if (!dep->body_done) ++op->bodies_left;
      ++op->ends_left;
    }
    live_[op->id] = op;
    if (n_announced_ < kMaxAnnounced && held_.empty()) {
      announce(op, std::move(ids));
    } else {
      held_.emplace_back(op, std::move(ids));
    }
    std::deque<Step> steps;
    run_when_ready(op, steps);
    settle(std::move(steps), callbacks);
    if (!instants_.empty()) wake_receiver();
  }
  if (flush_outbox()) wake_receiver();
  call(callbacks);
  return op;
}

// Tells the arbiter. More dependencies than a message holds: it gets joins in between, which nobody here
// waits for.
void Core::announce(const OpRef& op, std::vector<uint64_t> ids) {
  uint64_t id = op->id - ids.size() / (wire::kMaxDeps - 1);
  while (ids.size() > wire::kMaxDeps) {
    Op join;
    join.id = id++;
    join.times = op->times;
    send_submit(join, {ids.begin(), ids.begin() + wire::kMaxDeps});
    ids.erase(ids.begin(), ids.begin() + wire::kMaxDeps);
    ids.push_back(join.id);
  }
  op->announced = true;
  ++n_announced_;
  send_submit(*op, ids);
  const BlockWork& w = op->spec.work;  // what a running body has said so far
  if (op->running && w.warp_instructions + w.global_bytes + w.tensor_operations > 0)
    post(wire::Type::kReport, wire::Report{op->times.enqueued_ns, op->id, w});
}

void Core::announce_held() {
  while (!held_.empty() && n_announced_ < kMaxAnnounced) {
    auto [op, ids] = std::move(held_.front());
    held_.pop_front();
    announce(op, std::move(ids));
  }
}

// Starts what has become possible for `op`. Called whenever one of its counters reaches zero.
void Core::run_when_ready(const OpRef& op, std::deque<Step>& steps) {
  if (op->body_done || op->running || op->dropped) return;
  bool timed = op->spec.kind == OpKind::kAction && op->spec.body;
  if (timed ? op->ends_left > 0 : op->bodies_left > 0) return;
  if (!op->spec.body || op->spec.kind == OpKind::kJoin) {
    op->body_done = true;
    steps.push_back({op, true});
    return;
  }
  op->running = true;
  if (op->spec.instant || op->spec.polled) return instants_.push_back(op);
  enqueue(timed ? actions_ : op->spec.kind == OpKind::kCopy ? copies_ : kernels_, op);
}

void Core::settle(std::deque<Step> steps, Callbacks& callbacks) {
  while (!steps.empty()) {
    Step step = std::move(steps.front());
    steps.pop_front();
    for (const OpRef& next : step.op->dependents) {
      uint32_t& left = step.body ? next->bodies_left : next->ends_left;
      // A dependent that came after our body had run did not count it.
      if (left > 0 && --left == 0) run_when_ready(next, steps);
    }
    if (step.body && step.op->model_ended) {
      finish(step.op, step.op->code, callbacks);
      steps.push_back({step.op, false});
    } else if (!step.body) {
      step.op->dependents.clear();
    }
  }
}

// `op` is complete: tell whoever waits. The caller tells the dependents.
void Core::finish(const OpRef& op, int code, Callbacks& callbacks) {
  if (op->done.load(std::memory_order_relaxed)) return;
  op->code = code;
  if (op->spec.body) callbacks.bodies.push_back(std::move(op->spec.body));
  op->spec.body = nullptr;
  if (std::exchange(op->announced, false)) --n_announced_;
  if (trace_.enabled() && op->model_ended)
    trace_.add({op->spec.kind,
                op->spec.name,
                op->spec.stream,
                op->times.enqueued_ns,
                op->times.start_ns,
                op->times.end_ns,
                op->functional_start_ns,
                op->functional_end_ns,
                op->stall_ns,
                base::now_ns(),
                code,
                op->spec.n_blocks,
                op->spec.threads_per_block,
                op->spec.registers_per_thread,
                op->spec.shared_bytes_per_block,
                op->spec.work,
                op->spec.image_hash,
                op->spec.block,
                op->spec.dynamic_shared_bytes,
                op->spec.tag});
  op->done.store(true, std::memory_order_release);
  if (op->spec.on_complete) callbacks.calls.emplace_back(std::move(op->spec.on_complete), code);
  op->spec.on_complete = nullptr;
  live_.erase(op->id);
  completed_.notify_all();
}

void Core::call(Callbacks& callbacks) {
  for (auto& [function, code] : callbacks.calls) function(code);
  callbacks = {};
}

void Core::wait(const OpRef& op) {
  if (!usable()) return;
  std::unique_lock lock(mutex_);
  g_waiting_threads.fetch_add(1, std::memory_order_relaxed);
  completed_.wait(lock, [&] { return op->done.load(std::memory_order_relaxed); });
  g_waiting_threads.fetch_sub(1, std::memory_order_relaxed);
}

bool Core::all_behind_running_body() {
  std::lock_guard lock(mutex_);
  std::set<const Op*> behind;
  std::vector<const Op*> todo;
  if (t_running && live_.contains(t_running->id) && live_.at(t_running->id).get() == t_running)
    todo.push_back(t_running);
  while (!todo.empty()) {
    const Op* op = todo.back();
    todo.pop_back();
    if (!behind.insert(op).second) continue;
    for (const OpRef& next : op->dependents) todo.push_back(next.get());
  }
  return behind.size() == live_.size();
}

OpTimes Core::times(const OpRef& op) {
  if (!usable()) return {};
  std::lock_guard lock(mutex_);
  OpTimes times = op->times;
  if (!op->done.load(std::memory_order_relaxed)) times.end_ns = 0;
  return times;
}

int Core::code(const OpRef& op) {
  return op->done.load(std::memory_order_acquire) ? op->code : 0;  // pairs with the release in finish()
}

void Core::abort_all(int code) {
  if (!usable()) return;
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    post(wire::Type::kAbort, wire::Abort{base::now_ns(), last_id_});
    end_all(code, deferred_);
  }
  flush_outbox();
  wake_receiver();
}

// Ends everything that is outstanding. What is being executed right now ends when its body returns.
void Core::end_all(int code, Callbacks& callbacks) {
  for (Pool* pool : {&kernels_, &copies_, &actions_}) {
    for (auto& [key, op] : pool->queue) op->running = false;
    pool->queue.clear();
  }
  for (const OpRef& op : instants_) op->running = false;
  instants_.clear();
  for (const OpRef& op : waits_) op->running = false;
  waits_.clear();
  held_.clear();
  std::map<uint64_t, OpRef> in_order(live_.begin(), live_.end());
  for (auto& [id, op] : in_order) {
    op->dropped = true;
    op->dependents.clear();  // they are dropped too
    op->code = code;
    if (!op->running) finish(op, code, callbacks);
  }
}

// ---- bodies

void Core::enqueue(Pool& pool, const OpRef& op) {
  pool.queue.insert({{op->spec.priority, op->id}, op});
  if (pool.n_idle < pool.queue.size() && pool.n_threads < pool.max_threads) {
    ++pool.n_threads;
    spawn(pool.name, &Core::pool_entry, &pool);
  }
  pool.work.notify_one();
  if (&pool == &kernels_ && pool.n_idle == 0 && !std::exchange(watched_, true)) wake_receiver();
}

// With mutex_ held, by the receiver. True while the pool's threads are all busy and something waits.
bool Core::relieve(Pool& pool) {
  if (pool.queue.empty() || pool.n_idle > 0 || stopping_) return false;
  uint64_t now = base::now_ns();
  if (now - pool.progress_ns > kStuckNs && pool.n_threads < pool.max_threads + kMaxExtraThreads) {
    pool.progress_ns = now;
    ++pool.n_threads;
    spawn(pool.name, &Core::pool_entry, &pool);
  }
  return true;
}

void Core::pool_thread(Pool& pool) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (pool.n_threads > pool.max_threads && pool.queue.empty()) {  // was needed for a while only
      --pool.n_threads;
      return;
    }
    ++pool.n_idle;
    pool.work.wait(lock, [&] { return stopping_ || !pool.queue.empty(); });
    --pool.n_idle;
    if (stopping_) return;
    OpRef op = pool.queue.begin()->second;
    pool.queue.erase(pool.queue.begin());
    pool.progress_ns = base::now_ns();
    run_body(lock, op);
    run_instants(lock);
  }
}

// Bodies of instant actions do not block: the thread that finds them due runs them. A stream write is seen
// one wake-up of a thread earlier than if a pool ran it.
void Core::run_instants(std::unique_lock<std::mutex>& lock) {
  while (!instants_.empty()) {
    const OpRef op = std::move(instants_.front());
    instants_.pop_front();
    run_body(lock, op);
  }
}

void Core::run_body(std::unique_lock<std::mutex>& lock, const OpRef& op) {
  Body body = std::move(op->spec.body);
  lock.unlock();
  BlockWork last;
  bool reported = false;
  op->functional_start_ns = base::now_ns();
  t_running = op.get();
  int result = body([&](const BlockWork& mean) { report(*op, mean, &last, &reported); });
  t_running = nullptr;
  if (result != kNotYet) body = nullptr;  // what it holds is released without the lock
  Callbacks callbacks;
  lock.lock();
  op->spec.body = std::move(body);
  body_ended(op, result, callbacks);
  lock.unlock();
  if (flush_outbox()) wake_receiver();
  call(callbacks);
  lock.lock();
}

// With mutex_ held: the body has returned.
void Core::body_ended(const OpRef& op, int result, Callbacks& callbacks) {
  if (result == kNotYet && !op->dropped) {
    waits_.push_back(op);
    if (!std::exchange(has_poller_, true)) spawn("softgpu-poll", &Core::poller_entry, nullptr);
    waiting_.notify_one();
    return;
  }
  op->running = false;
  op->functional_end_ns = base::now_ns();
  if (op->dropped) {
    finish(op, op->code, callbacks);
  } else {
    op->code = result;
    op->body_done = true;
    if (op->announced && !op->spec.instant)
      post(wire::Type::kDone, wire::Done{op->functional_end_ns, op->id});
    settle({{op, true}}, callbacks);
    announce_held();
  }
}

// Streams that wait for a value in memory need no thread each: this one looks for all of them.
void Core::poller_thread() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // ns; the usual 50 us would be added to every pause
  auto pause = kShortestPause;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (waits_.empty()) {
      waiting_.wait(lock, [&] { return stopping_ || !waits_.empty(); });
      pause = kShortestPause;
    }
    pause = poll_waits(lock) ? kShortestPause : std::min(2 * pause, kLongestPause);
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
  }
}

// Asks all once. True: something has come true.
bool Core::poll_waits(std::unique_lock<std::mutex>& lock) {
  const std::vector<OpRef> asked = std::exchange(waits_, {});
  lock.unlock();
  std::vector<int> answers;
  // They are marked as running, so that nobody else touches their bodies.
  for (const OpRef& op : asked) answers.push_back(op->spec.body({}));
  Callbacks callbacks;
  lock.lock();
  for (size_t i = 0; i < asked.size(); ++i) body_ended(asked[i], answers[i], callbacks);
  const bool came_true =
      std::any_of(answers.begin(), answers.end(), [](int answer) { return answer != kNotYet; });
  lock.unlock();
  if (came_true && flush_outbox()) wake_receiver();
  call(callbacks);
  lock.lock();
  return came_true;
}

// From inside a body. The first report matters (the model may be waiting), later ones only if they say
// something new.
void Core::report(Op& op, const BlockWork& mean, BlockWork* last, bool* reported) {
  auto near = [](double a, double b) { return a == b || (a > b * 0.99 && a < b * 1.01); };
  const bool old_news =
      *reported && near(mean.warp_instructions, last->warp_instructions) &&
      near(mean.global_bytes, last->global_bytes) && near(mean.tensor_operations, last->tensor_operations) &&
      near(mean.fp64_operations, last->fp64_operations) && near(mean.fp16_operations, last->fp16_operations);
  {
    std::lock_guard lock(mutex_);
    op.spec.work = mean;  // the trace wants the last word
    if (old_news) return;
    *last = mean;
    *reported = true;
    if (op.announced) post(wire::Type::kReport, wire::Report{base::now_ns(), op.id, mean});
  }
  if (flush_outbox()) wake_receiver();
}

// ---- connection

template <class T>
void Core::post(wire::Type type, const T& payload, const void* tail, size_t tail_bytes) {
  wire::Header header{uint32_t(sizeof payload + tail_bytes), type, 0};
  auto append = [&](const void* from, size_t bytes) {
    auto* p = static_cast<const char*>(from);
    outbox_.insert(outbox_.end(), p, p + bytes);
  };
  append(&header, sizeof header);
  append(&payload, sizeof payload);
  if (tail_bytes) append(tail, tail_bytes);
}

void Core::send_submit(const Op& op, const std::vector<uint64_t>& deps) {
  const OpSpec& s = op.spec;
  wire::Submit m{};
  m.stamp_ns = op.times.enqueued_ns;
  m.id = op.id;
  m.n_blocks = s.n_blocks;
  m.cost_key = s.cost_key;
  m.copy_bytes = s.bytes;
  m.work = s.work;
  m.priority = s.priority;
  m.threads_per_block = s.threads_per_block;
  m.registers_per_thread = s.registers_per_thread;
  m.shared_bytes_per_block = s.shared_bytes_per_block;
  m.first_sm = s.first_sm;
  m.n_sms = s.n_sms;
  m.kind = uint8_t(s.kind);
  m.direction = uint8_t(s.direction);
  bool has_body = (s.body || op.running) && !op.body_done && s.kind != OpKind::kJoin && !s.instant;
  // A kernel that neither executes nor says what it costs takes no time. One whose body has run while it was
  // held has left its cost in spec.work.
  bool work_known = s.work_known || (s.kind == OpKind::kKernel && !has_body);
  m.flags = uint8_t((has_body ? wire::kHasBody : 0) | (s.cooperative ? wire::kCooperative : 0) |
                    (work_known ? wire::kWorkKnown : 0));
  m.n_deps = uint32_t(deps.size());
  post(wire::Type::kSubmit, m, deps.data(), deps.size() * 8);
}

bool Core::flush_outbox() {
  std::lock_guard sending(send_mutex_);
  for (;;) {
    if (sending_.empty()) {
      std::lock_guard lock(mutex_);
      if (lost()) outbox_.clear();
      if (outbox_.empty()) return false;
      sending_.swap(outbox_);
    }
    ssize_t n = send(socket_.get(), sending_.data(), sending_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n < 0) {  // the receiver notices by itself
      sending_.clear();
      return false;
    }
    sending_.erase(sending_.begin(), sending_.begin() + n);
  }
}

void Core::wake_receiver() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(wake_.get(), &one, sizeof one);
}

void Core::receiver_thread() {
  std::vector<char> buffer;
  uint64_t flushed_ns = base::now_ns();
  for (;;) {
    bool unsent = !lost() && flush_outbox(), watch;
    {
      std::lock_guard lock(mutex_);
      watch = watched_ = relieve(kernels_);
    }
    pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {socket_.get(), short(unsent ? POLLIN | POLLOUT : POLLIN), 0}};
    poll(fds, lost() ? 1 : 2, watch ? kWatchMs : trace_.enabled() ? 1000 : -1);
    uint64_t ticks;
    [[maybe_unused]] ssize_t n = read(wake_.get(), &ticks, sizeof ticks);
    Callbacks callbacks;
    {
      std::lock_guard lock(mutex_);
      callbacks = std::exchange(deferred_, {});
      if (stopping_) break;
    }
    call(callbacks);
    if (!lost() && (fds[1].revents & ~POLLOUT)) receive(buffer);
    {
      std::unique_lock lock(mutex_);
      run_instants(lock);
    }
    if (trace_.enabled() && base::now_ns() - flushed_ns > 1'000'000'000) {
      trace_.flush();
      flushed_ns = base::now_ns();
    }
  }
}

void Core::receive(std::vector<char>& buffer) {
  char chunk[64 << 10];
  ssize_t n = recv(socket_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
  if (n <= 0) return lose();
  buffer.insert(buffer.end(), chunk, chunk + n);
  std::vector<wire::Ended> ended;
  size_t at = 0;
  while (buffer.size() - at >= sizeof(wire::Header)) {
    wire::Header header;
    memcpy(&header, buffer.data() + at, sizeof header);
    if (header.type != wire::Type::kEnded || header.bytes != sizeof(wire::Ended)) return lose();
    if (buffer.size() - at < sizeof header + header.bytes) break;
    ended.emplace_back();
    memcpy(&ended.back(), buffer.data() + at + sizeof header, sizeof(wire::Ended));
    at += sizeof header + header.bytes;
  }
  buffer.erase(buffer.begin(), buffer.begin() + ptrdiff_t(at));
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    std::deque<Step> steps;
    for (const wire::Ended& e : ended) {
      auto found = live_.find(e.id);
      if (found == live_.end()) continue;  // aborted meanwhile, or a join of submit()
      OpRef op = found->second;
      op->model_ended = true;
      op->times.start_ns = e.start_ns;
      op->times.end_ns = e.end_ns;
      op->stall_ns = e.stall_ns;
      if (!op->body_done) continue;
      finish(op, op->code, callbacks);
      steps.push_back({op, false});
    }
    settle(std::move(steps), callbacks);
    announce_held();
  }
  if (flush_outbox()) wake_receiver();
  call(callbacks);
}

void Core::lose() {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    lost_.store(true, std::memory_order_release);  // pairs with the acquire in lost()
    end_all(kDeviceLost, callbacks);
  }
  call(callbacks);
}

}  // namespace tessera::softgpu::timing
