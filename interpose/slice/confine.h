// A launch that cannot be cut, or a slice of long blocks, keeps off the SMs that its lease reserves for services
// (admission/confine.h): it goes to a stream of a green context of the other SMs, between two events that keep the order
// of the program's stream.
//
//   program's stream   ... before --+                 +-- (waits) ...
//   our stream                      +-- the kernel ---+
//
// Which SMs: all but the first ones of the device, the same in each process. Called by the launch hook of best-effort
// clients, in the caller's thread, within a DepthGuard. Green contexts, streams and events are made once per context,
// stream of the program and number of SMs, and kept until that stream ends; where there are no more of them, another
// thread uses the same, or the driver refuses, the launch goes where the program sent it. No allocation, no lock that
// anybody waits for.
#pragma once

#include "interpose/gate/launch.h"

namespace tessera::confine {

// Does the lease reserve SMs? Mostly not.
bool any_reserved();

// Not in clusters, cooperative, dependent on others by an attribute, or to be captured: such a launch may be confined.
bool is_plain(const gate::LaunchCall& launch);

// There is a stream for this launch that leads to `sms` SMs, or one is made. False: it goes where the program sent it.
bool ready(const gate::LaunchCall& launch, uint32_t sms);

// Uses what ready() made. False: nothing was launched. Else *result is what the program gets.
bool launch(const gate::LaunchCall& launch, uint32_t sms, CUresult* result);

bool possible(CUdevice device);              // can this driver divide that device's SMs at all
void forget(CUcontext context) noexcept;     // about to be destroyed, released or reset; null = all
void stream_ends(CUstream stream) noexcept;  // of the program: another may have what was made for it
void publish(ipc::abi::SignalLine& signals);

}  // namespace tessera::confine
