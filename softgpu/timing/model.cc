#include "softgpu/timing/model.h"

#include <algorithm>

#include "softgpu/timing/model_state.h"

namespace tessera::softgpu::timing {

Model::Model(const profiles::GpuDescription& gpu, Mode mode, uint64_t start_ns)
    : gpu_(gpu), mode_(mode), epoch_(start_ns) {
  for (int i = 0; i < 2; ++i) engines_[i] = std::make_unique<Engine>();
  engines_[0]->bytes_per_ns = gpu.transfer.h2d_bytes_per_s / 1e9;
  engines_[1]->bytes_per_ns = gpu.transfer.d2h_bytes_per_s / 1e9;
  if (mode == Mode::kMps) {
    spaces_.push_back(std::make_unique<Space>());
    spaces_[0]->sms.resize(gpu.sm.count);
    active_ = spaces_[0].get();
  }
}

Model::~Model() = default;

void Model::add_client(ClientId id, int client_priority) {
  auto client = std::make_unique<Client>();
  client->id = id;
  client->priority = client_priority;
  if (mode_ == Mode::kTimesliced) {
    spaces_.push_back(std::make_unique<Space>());
    spaces_.back()->sms.resize(gpu_.sm.count);
  }
  client->space = spaces_.back().get();
  clients_[id] = std::move(client);
}

void Model::remove_client(ClientId id) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  drop(*found->second, UINT64_MAX);
  if (mode_ == Mode::kTimesliced) {
    Space* space = found->second->space;
    if (active_ == space) {  // the device stays as it is until somebody needs it
      active_ = nullptr;
      switching_until_ = -1;
    }
    std::erase_if(spaces_, [&](const auto& s) { return s.get() == space; });
  }
  clients_.erase(found);
  settle();
}

bool Model::submit(ClientId id, ModelOp spec) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return false;
  Client& client = *found->second;
  if (spec.id <= client.last_id) return false;
  for (uint64_t dep : spec.deps)
    if (dep >= spec.id) return false;
  client.last_id = spec.id;

  auto owned = std::make_unique<Op>();
  Op* op = owned.get();
  op->spec = std::move(spec);
  op->client = &client;
  op->functional_done = !op->spec.has_body;
  if (op->spec.kind == OpKind::kKernel) {
    const ModelOp& s = op->spec;
    op->pending = s.n_blocks;
    // A block that no SM could hold takes a whole one: refusing it is the driver's business.
    op->threads = std::min(std::max(1u, (s.threads_per_block + 31) / 32) * 32, gpu_.sm.max_threads);
    op->registers =
        std::min(profiles::registers_per_block(op->threads, s.registers_per_thread), gpu_.sm.registers);
    op->shared_bytes =
        std::min(profiles::shared_per_block(gpu_, s.shared_bytes_per_block), gpu_.sm.shared_bytes);
    op->sm_begin = s.n_sms ? std::min(s.first_sm, gpu_.sm.count - 1) : 0;
    op->sm_end =
        s.n_sms ? uint32_t(std::min<uint64_t>(uint64_t(s.first_sm) + s.n_sms, gpu_.sm.count)) : gpu_.sm.count;
    op->per_sm = std::min(gpu_.sm.max_blocks, gpu_.sm.max_threads / op->threads);
    if (op->registers) op->per_sm = std::min(op->per_sm, gpu_.sm.registers / op->registers);
    if (op->shared_bytes) op->per_sm = std::min(op->per_sm, gpu_.sm.shared_bytes / op->shared_bytes);
    if (s.work_known) {
      set_work(op, s.work);
    } else if (auto cost = client.costs.find(s.cost_key); s.cost_key && cost != client.costs.end()) {
      set_work(op, cost->second);
    }
  }
  if (op->spec.kind == OpKind::kCopy && op->spec.direction == CopyDirection::kDeviceToDevice) {
    op->pending = 1;
    op->known = true;
    op->bytes = 2.0 * double(op->spec.bytes);  // read and write, through the memory that kernels use
    op->device_ns = op->alone_ns = std::max(1.0, op->bytes / (gpu_.memory.bytes_per_s / 1e9));
  }
  for (uint64_t dep_id : op->spec.deps) {
    auto dep = client.ops.find(dep_id);
    if (dep == client.ops.end()) continue;
    dep->second->dependents.push_back(op->spec.id);
    ++op->deps_left;
  }
  client.ops[op->spec.id] = std::move(owned);
  if (op->deps_left == 0) make_ready(op);
  settle();
  return true;
}

void Model::report(ClientId client_id, uint64_t id, const BlockWork& mean) {
  auto client = clients_.find(client_id);
  if (client == clients_.end()) return;
  Op* op = find(client_id, id);
  if (!op || op->spec.kind != OpKind::kKernel) return;
  if (op->spec.cost_key && client->second->costs.size() < 65536)
    client->second->costs[op->spec.cost_key] = mean;
  if (op->model_ended) return;
  set_work(op, mean);
  settle();
}

void Model::functional_done(ClientId client_id, uint64_t id) {
  Op* op = find(client_id, id);
  if (!op || op->functional_done) return;
  op->functional_done = true;
  if (op->spec.kind == OpKind::kKernel && !op->known && !op->model_ended)
    set_work(op, {});  // it had nothing to say
  if (op->model_ended) complete(op);
  settle();
}

void Model::abort(ClientId client_id, uint64_t up_to) {
  auto client = clients_.find(client_id);
  if (client == clients_.end()) return;
  drop(*client->second, up_to);
  settle();
}

void Model::drop(Client& client, uint64_t up_to) {
  auto gone = [&](const Op* op) { return op->client == &client && op->spec.id <= up_to; };
  for (auto& space : spaces_) {
    for (const Group& group : space->groups)
      if (gone(group.op)) release(*space, group);
    size_t removed = std::erase_if(space->groups, [&](const Group& g) { return gone(g.op); });
    std::erase_if(space->ready, gone);
    space->dirty |= removed > 0;
  }
  for (const Delayed& delayed : delayed_)
    if (gone(delayed.op)) --delayed.op->client->space->n_launching;
  std::erase_if(delayed_, [&](const Delayed& d) { return gone(d.op); });
  std::make_heap(delayed_.begin(), delayed_.end());
  for (auto& engine : engines_) {
    if (!engine->queue.empty() && gone(engine->queue.front())) engine->end = kNever;
    std::erase_if(engine->queue, gone);
  }
  std::erase_if(ready_, gone);
  std::erase_if(client.ops, [&](const auto& entry) { return entry.first <= up_to; });
}

Model::Op* Model::find(ClientId client, uint64_t id) const {
  auto c = clients_.find(client);
  if (c == clients_.end()) return nullptr;
  auto op = c->second->ops.find(id);
  return op == c->second->ops.end() ? nullptr : op->second.get();
}

size_t Model::n_operations(ClientId client) const {
  auto c = clients_.find(client);
  return c == clients_.end() ? 0 : c->second->ops.size();
}

// Operations become ready through a worklist: a chain of a million joins must not be a million stack frames.
void Model::make_ready(Op* op) {
  ready_.push_back(op);
}

void Model::drain_ready() {
  for (size_t i = 0; i < ready_.size(); ++i) {
    Op* op = ready_[i];
    op->sequence = ++sequence_;
    op->start = now_;
    switch (op->spec.kind) {
      case OpKind::kJoin:
      case OpKind::kAction:
        end_model(op);
        break;
      case OpKind::kKernel:
        if (op->pending == 0) {
          end_model(op);
          break;
        }
        ++op->client->space->n_launching;
        delayed_.push_back({now_ + gpu_.time.launch_overhead_ns, op->sequence, op});
        std::push_heap(delayed_.begin(), delayed_.end());
        break;
      case OpKind::kCopy:
        if (op->spec.direction != CopyDirection::kDeviceToDevice) {
          engines_[op->spec.direction == CopyDirection::kDeviceToHost]->queue.push_back(op);
          break;
        }
        ++op->client->space->n_launching;
        delayed_.push_back({now_ + gpu_.transfer.overhead_ns, op->sequence, op});
        std::push_heap(delayed_.begin(), delayed_.end());
        break;
    }
  }
  ready_.clear();
}

void Model::enqueue_kernel(Op* op) {
  Space& space = *op->client->space;
  --space.n_launching;
  if (op->spec.kind == OpKind::kCopy) {  // needs no SM
    op->started = true;
    op->pending = 0;
    op->running = 1;
    op->start = now_;
    space.groups.push_back({op, -1, 1});
    space.dirty = true;
    return;
  }
  auto before = [](const Op* a, const Op* b) {
    if (a->client->priority != b->client->priority) return a->client->priority < b->client->priority;
    if (a->spec.priority != b->spec.priority) return a->spec.priority < b->spec.priority;
    return a->sequence < b->sequence;
  };
  space.ready.insert(std::upper_bound(space.ready.begin(), space.ready.end(), op, before), op);
}

void Model::end_model(Op* op) {
  op->model_ended = true;
  ended_.push_back({op->client->id, op->spec.id, to_ns(op->start), to_ns(now_), uint64_t(op->stall)});
  if (op->functional_done) complete(op);
}

void Model::complete(Op* op) {
  Client& client = *op->client;
  for (uint64_t id : op->dependents) {
    auto dependent = client.ops.find(id);
    if (dependent != client.ops.end() && --dependent->second->deps_left == 0)
      make_ready(dependent->second.get());
  }
  client.ops.erase(op->spec.id);
}

void Model::start_copies() {
  for (auto& engine : engines_) {
    if (engine->queue.empty() || engine->end != kNever) continue;
    Op* op = engine->queue.front();
    op->start = now_;
    engine->end = now_ + gpu_.transfer.overhead_ns + double(op->spec.bytes) / engine->bytes_per_ns;
  }
}

// ---- time

uint64_t Model::now_ns() const {
  return to_ns(now_);
}

std::vector<Ended> Model::take_ended() {
  return std::exchange(ended_, {});
}

double Model::next_event() const {
  double next = kNever;
  if (!delayed_.empty()) next = delayed_.front().at;
  for (const auto& engine : engines_) next = std::min(next, engine->end);
  if (switching_until_ >= 0) return std::min(next, switching_until_);
  if (!active_) return next;
  for (const Group& group : active_->groups)
    if (group.rate > 0) next = std::min(next, now_ + group.left / group.rate);
  if (mode_ == Mode::kTimesliced && spaces_.size() > 1 && next_busy()) next = std::min(next, slice_end_);
  return std::max(next, now_);
}

// Lets everything that runs run until `to`, at the present rates.
void Model::progress(double to) {
  double dt = to - now_;
  if (dt <= 0) return;
  if (active_ && switching_until_ < 0) {
    for (Group& group : active_->groups) {
      if (group.op->known) {
        group.left = std::max(0.0, group.left - group.rate * dt);
      } else {
        group.stalled += dt;
      }
    }
  }
  now_ = to;
}

void Model::step() {
  ++n_events_;
  while (!delayed_.empty() && delayed_.front().at <= now_) {
    std::pop_heap(delayed_.begin(), delayed_.end());
    Op* op = delayed_.back().op;
    delayed_.pop_back();
    enqueue_kernel(op);
  }
  for (auto& engine : engines_) {
    if (engine->end > now_) continue;
    Op* op = engine->queue.front();
    engine->queue.pop_front();
    engine->end = kNever;
    end_model(op);
  }
  if (active_ && switching_until_ < 0) retire(*active_);
  settle();
}

void Model::settle() {
  drain_ready();
  start_copies();
  schedule_spaces();
  if (!active_ || switching_until_ >= 0) return;
  dispatch(*active_);
  if (active_->dirty) compute_rates(*active_);
}

void Model::run_until(uint64_t time_ns) {
  double limit = from_ns(time_ns);
  for (;;) {
    double next = next_event();
    if (next > limit) return;
    fast_forward(limit);
    next = next_event();
    if (next > limit) return;
    progress(next);
    step();
  }
}

void Model::advance_to(uint64_t time_ns) {
  run_until(time_ns);
  progress(from_ns(time_ns));
}

// One kernel alone whose blocks all run in step: whole waves pass without looking at each. Exact, because
// nothing can arrive before `limit` and the state after a wave is the state before it.
void Model::fast_forward(double limit) {
  if (!active_ || switching_until_ >= 0 || active_->ready.size() != 1 || active_->groups.empty()) return;
  Op* op = active_->ready[0];
  const Group& first = active_->groups[0];
  if (first.op != op || !op->known || op->debt != 0 || first.rate <= 0) return;
  uint64_t wave = 0;
  for (const Group& group : active_->groups) {
    if (group.op != op || group.n != first.n || group.rate != first.rate || group.left != first.left) return;
    wave += group.n;
  }
  if (!delayed_.empty()) limit = std::min(limit, delayed_.front().at);
  for (const auto& engine : engines_) limit = std::min(limit, engine->end);
  if (mode_ == Mode::kTimesliced && next_busy()) limit = std::min(limit, slice_end_);
  double period = 1 / first.rate;
  double waves = std::min(std::floor((limit - now_) / period), double(op->pending / wave));
  if (waves < 2) return;
  ++n_events_;
  now_ += waves * period;
  op->pending -= uint64_t(waves) * wave;
  op->finished += uint64_t(waves) * wave;
  if (op->pending == 0) active_->ready.clear();
}

uint64_t Model::next_wake_ns() const {
  double event = next_event(), bound = kNever;
  for (const auto& engine : engines_) bound = std::min(bound, engine->end);
  auto consider = [&](const Op* op, double running) {
    if (op->known) bound = std::min(bound, now_ + (double(op->pending) + running) * op->device_ns);
  };
  for (const Delayed& delayed : delayed_) consider(delayed.op, 0);
  for (const auto& space : spaces_) {
    for (const Op* op : space->ready) consider(op, 0);
    for (const Group& group : space->groups) consider(group.op, group.n * group.left);
  }
  double wake = std::max(event, bound);
  // With many groups out of step, handling a long time at once would itself take long: keep up with it.
  constexpr size_t kManyGroups = 64;
  constexpr double kKeepUpNs = 5e6;
  if (active_ && active_->groups.size() > kManyGroups)
    wake = std::min(wake, std::max(event, now_ + kKeepUpNs));
  return wake == kNever ? UINT64_MAX : to_ns(std::ceil(wake));
}

}  // namespace tessera::softgpu::timing
