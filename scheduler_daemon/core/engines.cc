// Asks engines to give their memory back, and to take it again (engines.h). A sleeping engine's clients run, and have less
// memory. Whoever sent it to sleep wakes it: its own router, whose waking shows in launches, or `tessera unpark`.
#include "scheduler_daemon/core/engines.h"

#include <fnmatch.h>

#include "scheduler_daemon/core/park.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;
using base::Code;
using Task = Engine::Task;

}  // namespace

const Engine* Engines::of(const Client& client) const {
  for (const Engine& engine : engines_)
    if (client.identity.uid == engine.rule.uid.value_or(common_.settings.user) &&
        ::fnmatch(engine.rule.name.c_str(), client.name.c_str(), 0) == 0)
      return &engine;
  return nullptr;
}

std::vector<Client*> Engines::clients_of(const Engine& engine) const {
  std::vector<Client*> of_it;
  for (const auto& [connection, client] : common_.clients)
    if (!client->dying && of(*client) == &engine) of_it.push_back(client.get());
  return of_it;
}

uint64_t Engines::launches_of(const Engine& engine) const {
  uint64_t launches = 0;
  for (const Client* client : clients_of(engine))
    launches += ipc::load(client->usage_untrusted().launches, std::memory_order_relaxed);
  return launches;
}

void Engines::configure() {
  std::vector<Engine> engines;
  for (const EngineRule& rule : common_.settings.engines) {
    const auto same = std::ranges::find(engines_, rule, &Engine::rule);
    engines.push_back(same != engines_.end() ? *same : Engine{.rule = rule});
  }
  engines_ = std::move(engines);
}

void Engines::send_request(Engine& engine, Task task) {
  engine.task = task;
  engine.since_ns = common_.now_ns;
  engine.request = ++n_requests_;
  common_.peers.ask_engine(engine.request, task == Task::kSleep ? engine.rule.sleep : engine.rule.wake,
                           common_.settings.engine_answer_ns);
}

std::optional<base::Status> Engines::ask(const Client& client, bool sleep) {
  Engine* engine = const_cast<Engine*>(of(client));
  if (engine != nullptr && !sleep) engine->failure.clear();
  if (engine == nullptr || park_state(client) != abi::kParkRuns) return std::nullopt;
  if (engine->task == Task::kSleep) {
    engine->wanted = !sleep;
    return base::ok();
  }
  if (engine->task == Task::kWake && sleep) return base::error(Code::kUnavailable, "its engine is waking up");
  if (engine->task == Task::kWake) return base::ok();
  if (sleep && engine->asleep && engine->task == Task::kNone) return std::nullopt;  // what is left of it
  engine->failure.clear();
  engine->wanted = false;
  engine->since_ns = common_.now_ns;
  if (!sleep) {
    engine->task = Task::kWaitForMemory;  // grant_returns() finds it
  } else if (engine->asleep) {
    engine->task = Task::kNone;  // it does not want to wake any more
  } else {
    for (Client* one : clients_of(*engine))
      for (uint32_t i = 0; i < abi::kMemoryDevices; ++i)
        one->before_sleep[i] = bytes_of(one->memory_row(i).used_bytes);
    send_request(*engine, Task::kSleep);
  }
  return base::ok();
}

void Engines::wake(const Engine& engine) {
  send_request(const_cast<Engine&>(engine), Task::kWake);
}

std::vector<Client*> Engines::answered(uint64_t request, const std::string& failure) {
  const auto engine = std::ranges::find(engines_, request, &Engine::request);
  if (request == 0 || engine == engines_.end())
    return {};  // the configuration has it no more, or its clients have ended
  const bool sleeps = engine->task == Task::kSleep, done = failure.empty();
  engine->task = done && sleeps && engine->wanted ? Task::kWaitForMemory : Task::kNone;
  engine->request = 0;
  engine->since_ns = common_.now_ns;
  if (done) engine->asleep = sleeps;
  engine->settled = false;
  const std::string what = std::string(sleeps ? "sleep" : "wake up");
  if (!done) engine->failure = "its engine did not " + what + ": " + failure;
  common_.peers.log(
      done ? Severity::kInfo : Severity::kWarning,
      "engine '" + engine->rule.name + "' was asked to " + what + ": " +
          (done ? "done" : failure + (sleeps ? "; its programs are parked by a checkpoint" : "")));
  if (done || !sleeps || engine->wanted) return {};
  return clients_of(*engine);
}

void Engines::note_changes() {
  for (Engine& engine : engines_) {
    if (!engine.asleep && engine.task == Task::kNone) continue;
    if (clients_of(engine).empty()) {
      engine = Engine{.rule = engine.rule};
    } else if (engine.asleep && engine.task == Task::kNone && !engine.settled) {
      engine.launches = launches_of(engine);
      engine.settled = common_.now_ns >= engine.since_ns + kToldLateNs;
    } else if (engine.asleep && engine.task == Task::kNone && launches_of(engine) != engine.launches) {
      engine.asleep = false;
      common_.peers.log(Severity::kInfo, "engine '" + engine.rule.name + "' is awake: its programs launch");
    }
  }
}

bool Engines::falls_asleep(const Client& client) const {
  const Engine* engine = of(client);
  return engine != nullptr && engine->task == Task::kSleep;
}

bool Engines::is_waking(const Client& client) const {
  const Engine* engine = of(client);
  return engine != nullptr && (engine->task == Task::kWaitForMemory || engine->task == Task::kWake);
}

void Engines::add_to(const Client& client, stats::ParkRow* row) const {
  const Engine* engine = of(client);
  if (engine == nullptr) return;
  row->engine = engine->failure;
  if (!row->state.empty() || (!engine->asleep && engine->task == Task::kNone)) return;
  row->state = engine->task == Task::kSleep           ? "falling asleep"
               : engine->task == Task::kWaitForMemory ? abi::kParkStateNames[abi::kParkWaits]
               : engine->task == Task::kWake          ? "waking"
                                                      : kAsleep;
  row->for_ns = common_.now_ns - std::min(engine->since_ns, common_.now_ns);
  row->bytes = 0;
  for (uint32_t i = 0; i < abi::kMemoryDevices; ++i) row->bytes += client.slept_bytes(client.memory_row(i));
}

}  // namespace tessera::core
