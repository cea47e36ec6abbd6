// Hands the pages of clients to other clients: pulse pages of protected ones to those that watch them, gate pages to the protected
// ones that close them (ipc/abi/messages.h). Owned by Core; one thread.
//
// A client is told a state, not a history. One that reads slowly is told the rest when it has read, and then what is so by that
// time: however fast others come and go, the daemon keeps nothing for it but the moment since when it is behind.
#pragma once

#include "scheduler_daemon/core/gangs.h"
#include "scheduler_daemon/core/gpu.h"

namespace tessera::core {

class PeerPages {
 public:
  PeerPages(Common& common, Gpus& gpus, Gangs& gangs) : common_(common), gpus_(gpus), gangs_(gangs) {}

  void share(Gpu& gpu);  // its clients changed
  void share_on_gpus_of(const Client& client);
  void share_in_gang(
      const Gang& gang);  // members come, leave or change: all are told whom to watch, and decided about
  void bring_up_to_date(Client& client);

 private:
  ipc::Send tell_pulses(Client& watcher);
  ipc::Send tell_gates(Client& client);

  Common& common_;
  Gpus& gpus_;
  Gangs& gangs_;
};

}  // namespace tessera::core
