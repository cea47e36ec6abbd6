// Engines that give their memory back themselves when they are asked, by a request over HTTP: `[[park.engine]]`
// (docs/memory.md). Owned by Parking, which decides when; scheduler_daemon/transport makes the requests.
//
//   awake -park-> asked to sleep -answer-> asleep -unpark-> waits for room -room-> asked to wake -answer-> awake
//                       \-no answer, or a refusal-> its clients are parked by a checkpoint
#pragma once

#include "base/result.h"
#include "scheduler_daemon/core/common.h"

namespace tessera::core {

inline constexpr char kAsleep[] =
    "asleep";  // the state of its clients, for people and in `tessera ps --json`

struct Engine {
  enum class Task { kNone, kSleep, kWaitForMemory, kWake };
  EngineRule rule;
  bool asleep = false;  // as it answered
  Task task = Task::kNone;
  bool wanted = false;    // it is to wake as soon as it has fallen asleep
  uint64_t since_ns = 0;  // CLOCK_MONOTONIC of the latest change
  uint64_t request = 0;   // number of the one under way; 0: none
  bool settled = false;   // all launches from before it fell asleep were told
  uint64_t launches = 0;  // of its clients until it had settled
  std::string failure;    // why it did not do what it was asked last; empty: it did
};

class Engines {
 public:
  explicit Engines(Common& common) : common_(common) { configure(); }
  void configure();  // as the settings have them; what is known of those that stay is kept

  const Engine* of(const Client& client) const;  // null: none
  // Has the client's engine sleep, or wake when there is room. No value: no engine is to be asked, and the client itself is ordered.
  std::optional<base::Status> ask(const Client& client, bool sleep);
  void wake(const Engine& engine);  // there is room
  // Its answer. Returns the clients that are to be parked by a checkpoint, because it did not sleep.
  std::vector<Client*> answered(uint64_t request, const std::string& failure);
  void note_changes();  // an engine is over with its clients, and awake when they launch
  bool falls_asleep(const Client& client) const;
  bool is_waking(const Client& client) const;
  void add_to(const Client& client, stats::ParkRow* row) const;

 private:
  std::vector<Client*> clients_of(const Engine& engine) const;
  uint64_t launches_of(const Engine& engine) const;
  void send_request(Engine& engine, Engine::Task task);

  Common& common_;
  std::vector<Engine> engines_;  // as Settings::engines
  uint64_t n_requests_ = 0;
};

}  // namespace tessera::core
