// The attachment that is in force: who publishes it, who may write its wake eventfd, how it ends. Private to
// interpose/lifecycle. One attachment at a time; its mappings are never unmapped, because a launch may still
// read them; their memory goes when the daemon does.
#pragma once

#include <atomic>

#include "ipc/channel/client.h"

namespace tessera::lifecycle {

void notify_daemon() noexcept;  // any thread; two fstat and a write; nothing if there is no daemon
void close_sockets_in_child();  // async-signal-safe
bool helper_started();
void register_membarrier();

bool descriptors_lost();                     // helper thread: the host closed or reused them
void publish(ipc::Attachment&& attachment);  // helper thread
ipc::Attachment* attached();                 // helper thread; null if none
// The operator made this client protected (page: its own pulse from now on) or best-effort (no page).
void change_role(uint32_t priority, ipc::Mapping&& page);  // helper thread
void withdraw(bool hold_on_loss);                          // helper thread: daemon lost
void watch_peer(uint32_t client_id, uint32_t priority, uint64_t slo_ns,
                ipc::Mapping&& page);      // helper thread
void follow_trace(ipc::Mapping&& memory);  // helper thread; invalid: trace no longer
void trace_as_wanted();                    // the same of the driver's calls, once the slots are back (park.h)
void unwatch_peer(uint32_t client_id);
void unwatch_all();

}  // namespace tessera::lifecycle
