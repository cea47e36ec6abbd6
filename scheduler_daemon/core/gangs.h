// Gangs (docs/gangs.md): clients of one user that name the same gang, whatever GPUs they are on. Members get one decision over all their
// GPUs (policy/gang.h), watch each other's protected neighbours, and ask for turns as one. Owned by Core; one thread.
//
// A gang's turns on several GPUs must meet, where best-effort clients take turns. Its first GPU, in the order of UUIDs, decides:
// members on the others want a turn only while the gang has it there, and are then the next. On GPUs that it shares with other
// gangs it takes turns one after another, in that order, so that no gangs wait for each other in a circle.
#pragma once

#include "scheduler_daemon/core/common.h"

namespace tessera::core {

class Gpu;
class Gpus;

using GangKey = std::pair<uid_t, std::string>;

struct Gang {
  GangKey key;
  std::vector<Client*> members;  // in order of arrival
  base::ScopedFd page;           // ipc/abi/gang.h; invalid: out of descriptors, so that no collective is held
};

class Gangs {
 public:
  Gangs(Common& common, Gpus& gpus) : common_(common), gpus_(gpus) {}

  void join(Client& client, const std::string& name);
  void send_page(const Client& client);
  const Gang* leave(Client& client);  // null: no members are left, or it was in none
  std::vector<Gpu*> may_watch_on(const Client& watcher);
  void add_wishes(const Gpu& gpu, const Client& client, policy::ClientView* view);
  void share_leases(const Gpu& gpu, const std::vector<Client*>& managed, std::vector<policy::Lease>* leases);

 private:
  bool may_take_turn(const Gpu& gpu, const Client& client);

  Common& common_;
  Gpus& gpus_;
  std::map<GangKey, Gang> gangs_;
};

stats::ClientRow::Gang gang_row(const Client& client);

}  // namespace tessera::core
