// The one helper thread: connects, listens to the daemon, tells it what changed. It enters the driver only
// between enter_driver/leave_driver (no capture open), only to query, never to enqueue.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include <bit>

#include "base/clock.h"
#include "base/futex.h"
#include "base/raw_log.h"
#include "driver_api/ask.h"
#include "interpose/gate/collectives.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/peer_gates.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/signals.h"
#include "interpose/lifecycle/completion.h"
#include "interpose/lifecycle/connection.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/lifecycle/park.h"
#include "interpose/memory/memory.h"
#include "interpose/slice/confine.h"
#include "interpose/slice/cut.h"
#include "interpose/state/clock.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/track/track.h"
#include "ipc/channel/question.h"
#include "ipc/channel/socket_path.h"

namespace tessera::lifecycle {

namespace abi = ipc::abi;

namespace {

using state::g_state;
using state::Role;
constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kBackoffMinNs = 10 * kMs, kBackoffMaxNs = 1'000 * kMs;
// A daemon that hangs holds the program's first allocation up for this time. One that gets on answers sooner, also on a machine
// with ten times more work than cores: what is allocated before the attachment may take the place of a program that returns.
constexpr uint32_t kAttachWithinMs = 2'000;
constexpr uint64_t kParkedLookNs = 5 * kMs;
constexpr uint64_t kLearntWaitNs = 200 * kMs;  // how long the daemon's answer to ProfileWanted is waited for

constinit std::atomic<uint32_t> g_started{0};
constinit uint32_t g_daemon_losses = 0;        // helper thread only
constinit uint64_t g_launches_until_loss = 0;  // of the latest daemon; helper thread only

struct Session {             // of one attachment; helper thread only
  uint64_t announced = 0;    // Device sent; bit per device
  uint64_t asked_ns = 0;     // ProfileWanted sent then
  bool learnt_came = false;  // the answer to it
  uint64_t next_clock_ns = 0;
  uint64_t base_launches = 0;
  uint32_t on_loss = 0;
  bool gate_told = false;  // whether its GPU reads the gate
  uint32_t gate_pins = 0;  // contexts come and go
  ipc::Questions questions;
};
constinit Session g_session = {};

// Fetches the knowledge of this GPU's kernels before work on it is gated. It does not wait for a missing answer.
bool learnt_settled(const ipc::Attachment& a, int device, uint64_t now) {
  if (!a.keeps_profiles || g_session.learnt_came) return true;
  if (g_session.asked_ns != 0) return now - g_session.asked_ns > kLearntWaitNs;
  char name[128] = {};
  int version = 0;
  const auto& real = driver_api::real();
  if (!state::enter_driver()) return false;
  const bool known = real.cuDeviceGetName(name, sizeof name - 1, device) == CUDA_SUCCESS &&
                     real.cuDriverGetVersion(&version) == CUDA_SUCCESS;
  state::leave_driver();
  if (!known || !ipc::want_profile(a, name, uint32_t(version)).ok()) return true;
  g_session.asked_ns = now;
  return false;
}

// Can streams of this process wait on the device? With one hardware queue each of them would hold up all others, and launches
// that block would wait in the driver.
abi::GateChoice gate_choice(int device) {
  const state::Config& c = state::config();
  if (c.gate == abi::kGateThread || c.one_queue || c.launches_block ||
      !driver_api::real().cuStreamWaitValue64_v2 ||
      !driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device))
    return abi::kGateThread;
  return c.gate;
}

// Launches in a context that no hook saw, as a library can make one by the driver's export tables: they are taken to be
// those of the first GPU with a primary context.
void look_for_device() {
  if (state::device() >= 0 || gate::total_launches() == g_session.base_launches || !state::enter_driver())
    return;
  const auto& real = driver_api::real();
  int n_devices = 0, active = 0;
  unsigned flags = 0;
  if (real.cuDeviceGetCount(&n_devices) != CUDA_SUCCESS) n_devices = 0;
  for (int device = 0; device < n_devices && !active; ++device)
    if (real.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active)
      state::device_seen(device);
  state::leave_driver();
}

void announce_device(const ipc::Attachment& a, int device) {
  if (!state::enter_driver()) return;
  const auto& real = driver_api::real();
  CUuuid uuid{};
  const CUresult ok = real.cuDeviceGetUuid_v2(&uuid, device);
  const int sms = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  const int mps = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device);
  const bool confines = confine::possible(device);
  const abi::GateChoice gate = gate_choice(device);
  state::leave_driver();
  if (ok != CUDA_SUCCESS) return;
  if (device == state::device()) state::g_sm_count.store(uint32_t(sms), kRelaxed);
  uint8_t bytes[16];
  for (int i = 0; i < 16; i++) bytes[i] = uint8_t(uuid.bytes[i]);
  if (ipc::announce_device(a, bytes, uint32_t(sms), mps != 0, confines, gate,
                           launch_calls() - g_launches_until_loss)
          .ok())
    g_session.announced |= uint64_t(1) << (device % 64);
}

// A program may look at a GPU in a context of its own, as NCCL and tools do. It works there if it has memory there. The daemon
// knows no more GPUs of a process than have a row in its table of memory.
bool works_on(int device) {
  const state::Lock lock(memory::g_books);
  const memory::Figures& figures = memory::books().of(device);
  return memory::has_row(device) && (figures.used_bytes != 0 || figures.managed_bytes != 0);
}

// The first GPU at once, further ones when the process works there.
void announce_devices(const ipc::Attachment& a, uint64_t now) {
  const int first = state::device();
  if (g_session.announced == 0) {
    if (first >= 0 && learnt_settled(a, first, now)) announce_device(a, first);
    return;
  }
  for (uint64_t others = state::devices_seen() & ~g_session.announced; others != 0; others &= others - 1) {
    const int device = std::countr_zero(others);
    if (!works_on(device)) continue;
    if (std::popcount(g_session.announced) >= int(abi::kMemoryDevices)) return;  // the first one has no row
    gate::leave_gang();  // one thread may launch a collective on each GPU: none is held
    announce_device(a, device);
  }
}

// The page that the daemon sent, once there is a context whose GPU can read it.
void pin_gate(const ipc::Attachment& a) {
  constexpr uint32_t kMostPins = 8;
  const gate::DeviceGate& gate = gate::g_device_gate;
  CUcontext context = nullptr;
  if (!gate.page.load(kRelaxed) || gate.word.load(kRelaxed) != 0 || g_session.gate_pins >= kMostPins ||
      !state::copy_contexts(&context, 1) || !state::enter_driver())
    return;
  const bool usable =
      driver_api::real().cuCtxSetCurrent(context) == CUDA_SUCCESS && gate::pin_device_gate(context);
  state::leave_driver();
  g_session.gate_pins = usable ? g_session.gate_pins + 1 : kMostPins;
  if (g_session.gate_told) return;
  g_session.gate_told = true;
  if (!usable) base::raw_log(base::LogLevel::kInfo, "the driver does not let streams wait for shared memory");
  (void)ipc::acknowledge_gate(a, usable);  // a daemon that is gone is noticed elsewhere
}

// False: the daemon is gone.
bool listen(ipc::Attachment& a) {
  for (int i = 0; i < 64; i++) {
    ipc::PeerEvent event = ipc::next_event(a);
    switch (event.kind) {
      case ipc::PeerEvent::Kind::kNothing:
        return true;
      case ipc::PeerEvent::Kind::kPeerPulse:
        watch_peer(event.client_id, event.priority, event.slo_ns, std::move(event.page));
        break;
      case ipc::PeerEvent::Kind::kPeerGone:
        unwatch_peer(event.client_id);
        gate::forget_peer_gate(event.client_id);
        break;
      case ipc::PeerEvent::Kind::kPriority:
        base::raw_log(base::LogLevel::kInfo, "priority is %u now", event.priority);
        change_role(event.priority, std::move(event.page));
        break;
      case ipc::PeerEvent::Kind::kLearnt:
        g_session.learnt_came = true;
        gate::adopt_learnt(std::move(event.page));
        break;
      case ipc::PeerEvent::Kind::kGate:
        gate::adopt_device_gate(static_cast<abi::GatePage*>(event.page.leak()));
        g_session.gate_pins = 0;
        g_session.gate_told = false;
        break;
      case ipc::PeerEvent::Kind::kPeerGate:
        gate::watch_peer_gate(event.client_id, event.gate_byte, std::move(event.page));
        break;
      case ipc::PeerEvent::Kind::kGang:
        gate::join_gang(
            static_cast<abi::GangPage*>(event.page.leak()),
            g_state.role.load(kRelaxed) == Role::kBestEffort && !track::g_has_collectives.load(kRelaxed));
        break;
      case ipc::PeerEvent::Kind::kTrace:
        follow_trace(std::move(event.page));
        break;
      case ipc::PeerEvent::Kind::kLost:
        return false;
    }
  }
  return true;
}

void leave_daemon() {
  g_launches_until_loss = launch_calls();
  withdraw(g_session.on_loss == abi::kLossHold);
}

// Best-effort launches wait for it, and it does not say that it is alive: it hangs or is stopped.
bool daemon_is_silent(const ipc::Attachment& a, uint64_t now) {
  const bool needed = g_state.role.load(kRelaxed) == Role::kBestEffort &&
                      (g_state.waiters.load(kRelaxed) != 0 || gate::waits_behind_gate());
  switch (g_session.questions.check(needed, now)) {
    case ipc::Questions::State::kNothing:
      return false;
    case ipc::Questions::State::kAsked:
      return !ipc::notify(a);
    case ipc::Questions::State::kOverdue:
      base::raw_log(base::LogLevel::kInfo, "the daemon does not answer");
      return true;
  }
  return false;
}

void* helper_main(void*) {
  prctl(PR_SET_NAME, "tessera", 0, 0, 0);
  state::t_thread.inside =
      state::kAlwaysInside;  // whatever this thread asks of the driver is not the program's work
  register_membarrier();
  state::calibrate_clock();
  uint64_t backoff_ns = kBackoffMinNs;
  unsigned seed = unsigned(base::now_ns());
  while (state::g_phase.load(kRelaxed) == state::Phase::kLive) {
    if (!attached()) {
      (void)park_step(nullptr, base::now_ns());
      std::string skipped;
      const auto path = ipc::default_socket_path(&skipped);
      if (!skipped.empty()) base::raw_log(base::LogLevel::kInfo, "%s", skipped.c_str());
      if (path.ok()) {
        const state::Config& c = state::config();
        auto attachment = ipc::attach(*path,
                                      {.priority = c.priority,
                                       .weight = c.weight,
                                       .slo_ns = c.slo_ns,
                                       .name = c.name,
                                       .memory_limit_bytes = c.memory_limit_bytes,
                                       .memory_group = c.memory_group,
                                       .gang = c.gang.text},
                                      kAttachWithinMs);
        if (attachment.ok()) {
          base::raw_log(base::LogLevel::kInfo, "attached as client %u, priority %u", attachment->client_id,
                        attachment->priority);
          helper_attach(std::move(*attachment));
          memory::attaching_ended();
          backoff_ns = kBackoffMinNs;
          continue;
        }
        const bool never = attachment.error().code == base::Code::kUnsupported;
        base::raw_log(never ? base::LogLevel::kError : base::LogLevel::kDebug, "not attached: %s",
                      attachment.error().text.c_str());
      }
      memory::attaching_ended();
      const uint64_t jitter = uint64_t(rand_r(&seed)) % (backoff_ns / 4 + 1);
      const timespec pause{time_t((backoff_ns + jitter) / 1'000'000'000),
                           long((backoff_ns + jitter) % 1'000'000'000)};
      nanosleep(&pause, nullptr);
      backoff_ns = backoff_ns * 2 < kBackoffMaxNs ? backoff_ns * 2 : kBackoffMaxNs;
      state::calibrate_clock();
      continue;
    }
    const uint64_t sleep_ns = helper_step(base::now_ns());
    if (attached()) helper_sleep(sleep_ns);
  }
  return nullptr;
}

}  // namespace

bool helper_started() {
  return g_started.load(kRelaxed) != 0;
}

void driver_initialised() {
  if (state::g_phase.load(std::memory_order_acquire) != state::Phase::kLive) return;
  uint32_t no = 0;
  if (g_started.compare_exchange_strong(no, 1, kRelaxed) && !start_helper())
    state::g_phase.store(state::Phase::kDead, kRelaxed);
}

bool start_helper() {
  memory::attaching();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals go to the program's threads
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool ok = pthread_create(&thread, &attributes, helper_main, nullptr) == 0;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return ok;
}

void helper_attach(ipc::Attachment&& attachment) {
  const uint32_t on_loss = attachment.on_daemon_loss;
  const uint64_t base_launches = gate::total_launches();
  g_session = {};
  g_session.on_loss = on_loss;
  g_session.base_launches = base_launches;
  g_session.questions = {&attachment.shared().signals, &attachment.shared().answer,
                         attachment.answer_within_ms * kMs};
  begin_completion_watch();
  park_attached();
  gate::forget_told();
  publish(std::move(attachment));
}

void helper_detach() {
  base::raw_log(base::LogLevel::kInfo, "daemon lost: running unmanaged");
  ++g_daemon_losses;
  leave_daemon();
}

uint64_t helper_step(uint64_t now) {
  ipc::Attachment* a = attached();
  if (!a) return 0;
  if (descriptors_lost() || !listen(*a) || daemon_is_silent(*a, now)) {
    helper_detach();
    return 0;
  }
  switch (park_step(&a->shared().park, now)) {
    case ParkStep::kAway:
      return kParkedLookNs;
    case ParkStep::kMoves:
      leave_daemon();
      return 0;
    case ParkStep::kHere:
      break;
  }
  memory::acknowledge_kept();
  look_for_device();
  announce_devices(*a, now);
  pin_gate(*a);
  if (g_session.announced == 0 && g_session.asked_ns != 0) return kMs;
  gate::tell_shapes(*a);
  if (now >= g_session.next_clock_ns) {
    state::calibrate_clock();
    g_session.next_clock_ns = now + (g_session.next_clock_ns ? 1'000 * kMs : 10 * kMs);
  }
  const state::DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  ipc::store(link->usage->launches, gate::total_launches() - g_session.base_launches, kRelaxed);
  ipc::store(link->usage->cut_kernels, track::g_cut_kernels.load(kRelaxed), kRelaxed);
  ipc::store(link->usage->refused_kernels, track::g_refused_kernels.load(kRelaxed), kRelaxed);
  gate::publish_signals(link);
  ipc::store(link->signals->daemon_losses, g_daemon_losses, kRelaxed);
  track::publish_refusals(*link->signals);
  cut::publish(*link->signals);
  confine::publish(*link->signals);
  ipc::store(link->signals->bypassed, uint32_t(bypassed()), kRelaxed);
  gate::publish_learnt(link);
  return look_for_completion(now);
}

void helper_sleep(uint64_t ns) {
  const state::DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  if (g_state.role.load(kRelaxed) == Role::kBestEffort) {
    const uint32_t* word = &link->lease->word;  // a new lease, a new peer: the daemon bumps it
    base::futex_wait(word, ipc::load(*word, std::memory_order_acquire), ns);
    return;
  }
  if (ns < kParkedNs) {
    const timespec pause{0, long(ns)};
    nanosleep(&pause, nullptr);
    return;
  }
  if (gate::park(*link)) base::futex_wait(reinterpret_cast<const uint32_t*>(&gate::g_helper_word), 1, ns);
  gate::g_helper_word.store(0, std::memory_order_seq_cst);
}

}  // namespace tessera::lifecycle
