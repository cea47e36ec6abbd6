#include "simulator/simulation.h"

#include <algorithm>
#include <bit>

#include "simulator/policies.h"
#include "simulator/world.h"

namespace tessera::simulator {
namespace {

constexpr long kMaxWatched = 32;         // ipc::abi::kMaxWatchedPulses
constexpr uint64_t kAwayNs = 5'000'000;  // churn: until the next client comes
constexpr uint64_t kLives = 5;

std::vector<uint32_t> priorities(const RunInput& input) {
  std::vector<uint32_t> out;
  for (const ClientSpec& c : input.clients) out.push_back(c.priority);
  return out;
}

std::vector<uint64_t> model_bytes(const RunInput& input) {
  std::vector<uint64_t> out;
  for (const ClientSpec& c : input.clients) out.push_back(c.workload->memory_bytes);
  return out;
}

GpuSpec gpu_of(const RunInput& input) {
  GpuSpec gpu = input.gpu;
  gpu.partitions = input.run.first_part > 0;
  gpu.lends = input.run.lends;
  gpu.context_priorities = input.run.context_priorities;
  if (input.run.switch_ns != 0) gpu.switch_ns = gpu.idle_switch_ns = input.run.switch_ns;
  if (input.perturbation.clock_factor == 1) return gpu;
  gpu.slow_from_ns = input.duration_ns / 3;
  gpu.slow_to_ns = input.duration_ns * 2 / 3;
  gpu.slow_factor = input.perturbation.clock_factor;
  return gpu;
}

}  // namespace

uint64_t percentile_ns(std::vector<uint64_t> values, double p) {
  if (values.empty()) return 0;
  size_t at = std::min(values.size() - 1, size_t(p * double(values.size())));
  std::nth_element(values.begin(), values.begin() + long(at), values.end());
  return values[at];
}

RunResult simulate(const RunInput& input) {
  if (input.gpus > 1) return simulate_gpus(input);
  World world(input);
  return world.run();
}

World::World(const RunInput& input)
    : input_(input),
      policy_(make_any_policy(input.run.policy, input.run.parameters, input.run.tuning)),
      clients_(input.clients.size()),
      gpu_(gpu_of(input), input.run.regime, priorities(input), Random(input.seed, 1)),
      memory_(input.gpu.memory_bytes, input.host.link, model_bytes(input)),
      guard_ns_(policy_->gate_guard_ns(input.run.parameters)) {
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    SimClient& c = clients_[i];
    c.spec = &input.clients[i];
    c.random = Random(input.seed, 100 + i);
    c.lease.grant = policy::Grant::kFree;
    if (!c.is_protected()) only_best_effort_ = only_best_effort_ == -1 ? int(i) : -2;
    push(c.spec->start_ns, EventKind::kStart, i);
    if (c.spec->stop_ns != UINT64_MAX) push(c.spec->stop_ns, EventKind::kStop, i);
    if (!input.perturbation.churn || c.is_protected()) continue;
    for (uint64_t life = 1; life < kLives; ++life) {
      uint64_t at_ns = input.duration_ns * life / kLives;
      push(at_ns, EventKind::kStop, i);
      push(at_ns + kAwayNs, EventKind::kStart, i);
    }
  }
}

RunResult World::run() {
  for (;;) {
    const uint64_t at_ns = next_ns();
    warm_up(at_ns);
    if (at_ns >= input_.duration_ns) return take_result();
    step(at_ns);
  }
}

uint64_t World::next_ns() {
  if (moved_) next_ns_ = std::min(gpu_.next_ns(), events_.empty() ? UINT64_MAX : events_.top().at_ns);
  moved_ = false;
  return next_ns_;
}

void World::warm_up(uint64_t now_ns) {
  if (warm_ || now_ns < input_.warmup_ns) return;
  warm_ = true;
  gpu_.advance(std::max(now_ns_, std::min(input_.warmup_ns, now_ns)), &done_);
  for (uint32_t i = 0; i < clients_.size(); ++i) clients_[i].work_at_warmup_ns = gpu_.work_ns(i);
}

void World::come_to(uint64_t now_ns) {
  warm_up(now_ns);
  if (warm_ && only_best_effort_ >= 0) count_losses(now_ns);
  now_ns_ = now_ns;
  moved_ = true;
}

void World::step(uint64_t now_ns) {
  come_to(now_ns);
  gpu_.advance(now_ns_, &done_);
  for (size_t i = 0; i < done_.size(); ++i) completed(done_[i]);
  done_.clear();
  while (!events_.empty() && events_.top().at_ns <= now_ns_) {
    Event e = events_.top();
    events_.pop();
    ++n_events_;
    handle(e);
  }
  if (input_.audit_idle) audit_idle();
}

void World::meet(uint32_t client, uint64_t now_ns) {
  gpu_.meet(client);
  step(now_ns);
}

RunResult World::take_result() {
  RunResult result;
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    clients_[i].result.work_ns = gpu_.work_ns(i) - clients_[i].work_at_warmup_ns;
    result.clients.push_back(std::move(clients_[i].result));
  }
  result.audit = audit_;
  result.losses = losses_;
  result.n_events = n_events_ + gpu_.n_events();
  result.n_decisions = n_decisions_;
  result.model_loads = memory_.loads();
  return result;
}

void World::audit_idle() {
  bool busy = !gpu_.idle(), waits = false;
  for (const SimClient& c : clients_) {
    busy |= c.pulse.busy;
    waits |=
        c.gate.waiting_for == admission::Reason::kLease || c.gate.waiting_for == admission::Reason::kPulse;
  }
  if (busy || !waits) {
    idle_wait_since_ns_ = UINT64_MAX;
    return;
  }
  idle_wait_since_ns_ = std::min(idle_wait_since_ns_, now_ns_);
  audit_.longest_idle_wait_ns = std::max(audit_.longest_idle_wait_ns, now_ns_ - idle_wait_since_ns_);
}

// Nothing changes between now and `until_ns`.
void World::count_losses(uint64_t until_ns) {
  for (const SimClient& c : clients_)
    if (c.pulse.busy) return;
  const SimClient& c = clients_[size_t(only_best_effort_)];
  const uint64_t passed_ns = until_ns - now_ns_;
  if (!c.attached || !c.program.in_job) return;
  if (!gpu_.idle()) {
    losses_.free_sms_ns += double(passed_ns) * (1 - gpu_.fill(uint32_t(only_best_effort_)));
    return;
  }
  if (!c.device_gate.open && c.gate.in_flight_ns != 0) {
    losses_.lease_ns += passed_ns;
    return;
  }
  switch (c.gate.waiting_for) {
    case admission::Reason::kPulse:
      losses_.pulse_ns += passed_ns;
      return;
    case admission::Reason::kLease:
      losses_.lease_ns += passed_ns;
      return;
    case admission::Reason::kWindow:
      losses_.window_ns += passed_ns;
      return;
    case admission::Reason::kUnmanaged:
    case admission::Reason::kNone:
      if (c.program.step_last_op == 0 && c.program.next_op - 1 != c.program.completed_op)
        losses_.launch_ns += passed_ns;
      return;
  }
}

void World::push(uint64_t at_ns, EventKind kind, uint32_t client, uint64_t token) {
  events_.push({std::max(at_ns, now_ns_), next_seq_++, kind, client, token});
}

void World::handle(const Event& e) {
  if (e.kind == EventKind::kDecide) {
    if (e.at_ns == decide_at_ns_) decide();
    return;
  }
  SimClient& c = clients_[e.client];
  switch (e.kind) {
    case EventKind::kStart:
      return attach(e.client);
    case EventKind::kStop:
      return detach(e.client);
    case EventKind::kArrival:
      if (e.token == c.incarnation) arrived(e.client);
      return;
    case EventKind::kHost:
      if (e.token != c.program.host_token || !c.attached) return;
      return c.is_protected() ? run_step(e.client) : host(e.client);
    case EventKind::kStepDone:
      if (e.token == c.incarnation) step_done(e.client);
      return;
    case EventKind::kMarker:
      if (c.attached) marker_seen(e.client, e.token);
      return;
    case EventKind::kRetreat:
      return gpu_.retreat(e.client);
    case EventKind::kGateLimit:
      return reach_gate_limit(e.client, e.token);
    case EventKind::kDecide:
      return;
  }
}

void World::attach(uint32_t index) {
  SimClient& c = clients_[index];
  c.attached = true;
  const auto n_watched =
      std::count_if(clients_.begin(), clients_.end(), [](const SimClient& s) { return s.watched; });
  c.watched = c.is_protected() && n_watched < kMaxWatched;
  const uint64_t alone_ns = c.spec->workload->alone_ns(
      input_.gpu.sm_count, {input_.host.launch_ns, input_.gpu.kernel_gap_ns, input_.host.sync_ns});
  c.arrivals = std::make_unique<ArrivalProcess>(c.spec->arrivals, alone_ns,
                                                Random(input_.seed, 10'000 + index * 16 + c.incarnation));
  c.pulse.idle_since_ns = now_ns_;
  if (input_.run.first_part > 0) {
    const auto first = uint32_t(input_.run.first_part * input_.gpu.sm_count);
    c.sm_limit = index == 0 ? first : input_.gpu.sm_count - first;
  }
  notify_daemon();
  if (c.spec->workload->serving)
    c.server = std::make_unique<TokenServer>(*c.spec->workload->serving,
                                             Random(input_.seed, 20'000 + index * 16 + c.incarnation));
  if (c.spec->arrivals.kind == ArrivalKind::kClosed)
    for (uint32_t user = 0; user < c.spec->arrivals.users; ++user)
      push(now_ns_ + input_.host.setup_ns, EventKind::kArrival, index, c.incarnation);
  else
    push(now_ns_ + c.arrivals->next_ns(), EventKind::kArrival, index, c.incarnation);
}

void World::detach(uint32_t index) {
  SimClient& c = clients_[index];
  if (!c.attached) return;
  gpu_.drop_queue(index);
  std::erase(waiting_for_memory_, index);
  if (c.program.in_job) end_job(index);
  SimClient fresh;  // what a new process of the same program starts with
  fresh.spec = c.spec;
  fresh.random = c.random;
  fresh.result = std::move(c.result);
  fresh.work_at_warmup_ns = c.work_at_warmup_ns;
  fresh.incarnation = c.incarnation + 1;
  fresh.gang = c.gang;
  if (c.gang != nullptr) c.gang->leave(*this);
  fresh.program.host_token = c.program.host_token + 1;
  fresh.program.next_op = c.program.next_op;
  fresh.program.completed_op = fresh.gate.drained_word = c.program.next_op - 1;
  fresh.lease.grant = policy::Grant::kFree;
  c = std::move(fresh);
  notify_daemon();
}

void World::arrived(uint32_t index) {
  SimClient& c = clients_[index];
  const bool closed = c.spec->arrivals.kind == ArrivalKind::kClosed;
  if (!closed)
    push(std::max(now_ns_, c.spec->start_ns + c.arrivals->next_ns()), EventKind::kArrival, index,
         c.incarnation);
  if (c.server)
    c.server->arrive(now_ns_);
  else
    c.program.waiting_jobs.push_back(now_ns_);
  if (!c.program.in_job) start_job(index, now_ns_);
}

void World::start_job(uint32_t index, uint64_t host_free_ns) {
  SimClient& c = clients_[index];
  c.program.in_job = true;
  c.program.job_start_ns = now_ns_;
  if (c.server) {
    c.program.job.clear();
    draw_steps(c.server->begin_step(), c.random.lognormal(c.spec->workload->cv), 1, &c.random,
               &c.program.job);
  } else {
    c.program.job_arrival_ns = c.program.waiting_jobs.front();
    c.program.waiting_jobs.pop_front();
    c.program.job_length = draw_job(*c.spec->workload, &c.random, &c.program.job);
  }
  const double heavier = c.is_protected() ? 0 : input_.perturbation.kernel_cv;
  if (heavier > 0)
    for (Launch& l : c.program.job)
      l.kernel.block_ns = uint64_t(double(l.kernel.block_ns) * c.random.lognormal(heavier)) + 1;
  c.program.next_launch = 0;
  c.program.first_step_ns = 0;
  c.program.host_free_ns = host_free_ns;
  load_model(index);
}

void World::load_model(uint32_t index) {
  SimClient& c = clients_[index];
  const uint64_t there_ns = memory_.begin(index, now_ns_);
  if (there_ns == ModelMemory::kNoRoom)
    waiting_for_memory_.push_back(index);
  else
    run_host(index, std::max(there_ns, c.program.host_free_ns));
}

// Whoever waits for memory goes before the next job of this client.
void World::end_job(uint32_t index) {
  clients_[index].program.in_job = false;
  memory_.end(index, now_ns_);
  for (size_t n = waiting_for_memory_.size(); n > 0; --n) {
    const uint32_t next = waiting_for_memory_.front();
    waiting_for_memory_.pop_front();
    if (clients_[next].attached && clients_[next].program.in_job) load_model(next);
  }
}

void World::submit(uint32_t index, const Kernel& kernel, const Submitted& part) {
  SimClient& c = clients_[index];
  GpuWork op{.client = index,
             .id = c.program.next_op++,
             .available_ns = part.at_ns,
             .kernel = kernel,
             .n_blocks = part.n_blocks};
  double slower =
      c.is_protected() ? (1 + input_.run.regime_overhead) * (1 + input_.run.protected_overhead) - 1 : 0;
  // With all its workers a transformed kernel takes 1 + transform_overhead of the original's time, on fewer slots.
  if (part.workers != 0) slower = (1 + input_.run.transform_overhead) * input_.run.worker_slots - 1;
  op.kernel.block_ns = uint64_t(double(kernel.block_ns) * (1 + slower));
  op.work_scale = 1 / (1 + slower);
  op.yields = part.workers != 0;
  op.workers = part.workers;
  op.sm_limit = part.sm_limit;
  op.lowest = input_.run.first_part > 0 && index == 0;
  if (op.sm_limit != c.sm_limit) op.gap_ns = input_.host.confine_ns;  // this launch alone keeps to them
  op.gated = part.boundary == Boundary::kGate;
  op.length_class = part.length_class;
  op.meets = kernel.collective && c.gang != nullptr;
  if (part.boundary != Boundary::kNone) op.gap_ns += input_.host.boundary_ns;
  ++c.result.launches;
  gpu_.submit(op);
}

// The program computes until its next launch.
void World::run_host(uint32_t index, uint64_t from_ns) {
  SimClient& c = clients_[index];
  push(from_ns + launch_of(c).host_ns, EventKind::kHost, index, ++c.program.host_token);
}

// Part of the signature of a burst. The preload library knows the size of a burst's first copy
// to a factor of four.
static uint64_t identity_of(const Kernel& kernel, bool first) {
  return kernel.copy && first ? 256 + uint64_t(std::bit_width(kernel.block_ns >> 15)) / 2 : kernel.n_blocks;
}

void World::run_step(uint32_t index) {
  SimClient& c = clients_[index];
  set_busy(index);
  uint64_t at_ns = now_ns_ - launch_of(c).host_ns;  // which is over
  for (bool last = false; !last; ++c.program.next_launch) {
    const Launch& l = launch_of(c);
    last = l.last_of_step;
    at_ns += l.in_call ? 0 : l.host_ns + input_.host.launch_ns;
    c.pulse.signature = c.pulse.signature * 31 + identity_of(l.kernel, c.pulse.signature == 0);
    c.pulse.resource_class = l.kernel.resource_class;
    submit(index, l.kernel, {.n_blocks = l.kernel.n_blocks, .at_ns = at_ns, .sm_limit = c.sm_limit});
  }
  c.program.step_last_op = c.program.next_op - 1;
}

void World::completed(const Completion& done) {
  SimClient& c = clients_[done.client];
  if (!c.attached || done.id <= c.program.completed_op) return;
  if (done.id == c.gate.yielding_op) {  // the host polls for it
    c.gate.blocks_left = done.blocks_left;
    if (done.blocks_left == 0) end_call(c);
    if (done.blocks_left == 0 && !launch_of(c).last_of_step) ++c.program.next_launch;
    if (done.blocks_left == 0 && launch_of(c).last_of_step) c.program.step_last_op = done.id;
    push(now_ns_ + input_.host.marker_ns, EventKind::kHost, done.client, ++c.program.host_token);
  }
  for (const GateState::Sent& sent : c.gate.sent) {
    if (sent.op > done.id) break;
    if (sent.op == done.id && sent.marked)
      push(now_ns_ + input_.host.marker_ns, EventKind::kMarker, done.client, done.id);
  }
  c.program.completed_op = done.id;
  open_quanta(done.client);
  if (c.gate.throttled && c.program.next_op - c.program.completed_op < input_.host.queue_launches / 4 * 3) {
    c.gate.throttled = false;
    push(now_ns_, EventKind::kHost, done.client, ++c.program.host_token);
  }
  if (done.id == c.program.step_last_op && (done.id != c.gate.yielding_op || done.blocks_left == 0))
    push(now_ns_ + input_.host.sync_ns, EventKind::kStepDone, done.client, c.incarnation);
}

void World::step_done(uint32_t index) {
  SimClient& c = clients_[index];
  const bool waited = c.program.step_last_op != 0;
  c.program.step_last_op = 0;
  c.gate.yielding_op = 0;
  if (c.is_protected())
    set_idle(index);
  else if (waited)
    cover(c, c.program.completed_op), acknowledge_drain(index);
  // The launch that ended a best-effort step is still the current one: see host().
  if (!c.is_protected()) ++c.program.next_launch;
  if (c.program.first_step_ns == 0)
    c.program.first_step_ns = now_ns_;
  else if (input_.record_steps && warm_ && !c.server)
    c.result.further_ns.push_back(now_ns_ - c.program.latest_step_ns);
  c.program.latest_step_ns = now_ns_;
  const uint64_t gap_ns = c.program.job[c.program.next_launch - 1].gap_ns;
  if (c.program.next_launch < c.program.job.size()) {
    run_host(index, now_ns_ + gap_ns);
    return;
  }
  end_job(index);
  ++c.result.jobs;
  if (c.server) {
    answer(index);
    if (!c.server->idle()) start_job(index, now_ns_ + gap_ns);
    return;
  }
  if (warm_) {
    uint64_t from = input_.latency_from_arrival ? c.program.job_arrival_ns : c.program.job_start_ns;
    c.result.latencies_ns.push_back(now_ns_ - from);
    if (c.spec->workload->is_short(c.program.job_length))
      c.result.short_latencies_ns.push_back(now_ns_ - from);
    c.result.first_ns.push_back(c.program.first_step_ns - from);
  }
  if (c.spec->arrivals.kind == ArrivalKind::kClosed) c.program.waiting_jobs.push_back(now_ns_ + gap_ns);
  if (c.program.waiting_jobs.empty()) return;
  start_job(index, now_ns_ + gap_ns);
}

void World::answer(uint32_t index) {
  SimClient& c = clients_[index];
  const uint64_t before = c.server->tokens();
  for (const Answer& a : c.server->end_step(now_ns_)) {
    if (c.spec->arrivals.kind == ArrivalKind::kClosed) c.server->arrive(now_ns_);
    if (!warm_) continue;
    c.result.answers.push_back(a);
    c.result.latencies_ns.push_back(now_ns_ - a.arrival_ns);
    c.result.first_ns.push_back(a.to_first_ns());
    if (a.tokens > 1) c.result.further_ns.push_back(a.per_token_ns());
  }
  if (warm_) c.result.tokens += c.server->tokens() - before;
}

// ---- pulses

void World::set_busy(uint32_t index) {
  SimClient& c = clients_[index];
  if (c.pulse.busy) return;
  c.pulse.busy = c.pulse.closes_gates = true;
  c.pulse.busy_since_ns = now_ns_;
  c.pulse.signature = 0;
  c.pulse.packed = false;
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    SimClient& other = clients_[i];
    if (other.is_protected() || !other.attached) continue;
    if ((other.lease.packed || other.lease.confine_all) && other.lease.grant == policy::Grant::kGranted)
      c.pulse.packed = true;
    if (other.gate.yielding_op != 0) push(now_ns_ + input_.host.retreat_ns, EventKind::kRetreat, i);
  }
  update_gates();
}

// As core::Gpus::add_burst, of the burst that ends now.
policy::Burst World::burst_of(const SimClient& c) const {
  policy::Burst burst{.signature = c.pulse.signature,
                      .length_ns = now_ns_ - c.pulse.busy_since_ns,
                      .end_ns = now_ns_,
                      .solo = true,
                      .packed = c.pulse.packed};
  for (const SimClient& other : clients_) {
    if (!other.attached || other.spec->priority >= c.spec->priority) continue;
    if (other.is_protected()) {
      burst.solo &= !other.pulse.busy && other.pulse.idle_since_ns <= c.pulse.busy_since_ns;
      continue;
    }
    const policy::InFlight work{.measured = other.lease.grant != policy::Grant::kFree,
                                .any = other.gate.in_flight_ns != 0,
                                .since_ns = other.gate.in_flight_since_ns,
                                .end_ns = other.gate.in_flight_end_ns};
    const auto nothing_passed = [&](uint64_t by_ns) {  // as core::Client
      return !other.device_gate.open && other.lease.quantum_ns != 0 && !other.lease.confine_all &&
             other.device_gate.closed_since_ns + admission::drained_after_ns(other.lease.quantum_ns) <= by_ns;
    };
    const uint64_t last_end_ns = c.pulse.bursts.last_end_ns();
    burst.after_work |= exclusive() && !nothing_passed(last_end_ns) && policy::ran_since(last_end_ns, work);
    if (nothing_passed(c.pulse.busy_since_ns)) continue;
    policy::ClosedGate closed;
    if (!burst.packed) closed = {other.lease.quantum_ns, other.device_gate.longest_ns};
    burst.overlap_ns =
        std::max(burst.overlap_ns, policy::overlap_ns(c.pulse.busy_since_ns, now_ns_, work, closed));
  }
  burst.solo &= burst.overlap_ns == 0;
  return burst;
}

void World::set_idle(uint32_t index) {
  SimClient& c = clients_[index];
  c.pulse.busy = false;
  c.pulse.closes_gates = c.lease.keeps_closed;
  c.pulse.idle_since_ns = now_ns_;
  if (input_.record_bursts) c.result.bursts_ns.emplace_back(c.pulse.busy_since_ns, now_ns_);
  policy::Burst burst = burst_of(c);
  burst.kind =
      uint32_t(c.pulse.roles.add({c.pulse.signature, c.pulse.busy_since_ns, now_ns_}, [](const auto&) {}));
  c.pulse.bursts.add(burst);
  wake_watchers();
  for (const SimClient& rank : clients_)
    if (is_paced_with_gang(rank)) rank.gang->wake_watchers(*this, now_ns_);
  update_gates();
  if (!c.lease.quiet) notify_daemon();
}

}  // namespace tessera::simulator
