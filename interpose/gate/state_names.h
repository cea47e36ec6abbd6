// Short names for interpose/state in the gate: the words of this process that every decision reads.
#pragma once

#include "interpose/state/clock.h"
#include "interpose/state/kernels.h"
#include "interpose/state/state.h"

namespace tessera::gate {

namespace abi = ipc::abi;

using state::g_idle_pulse;
using state::g_kernels;
using state::g_slots;
using state::g_slots_used;
using state::g_state;
using state::kKernelSlots;
using state::kOwnedSlots;
using state::kSlots;
using state::kStreamsPerThread;
using state::kWatched;
using state::t_thread;

using state::Credit;
using state::DaemonLink;
using state::KernelRecord;
using state::KernelSlot;
using state::LaunchMemo;
using state::Role;
using state::State;
using state::StreamCount;
using state::Thread;
using state::ThreadSlot;
using state::Watch;

using state::add;
using state::add_own;
using state::asymmetric_fence;
using state::begin_epoch;
using state::claim_slot;
using state::clock_ns;
using state::enter_driver;
using state::find_kernel;
using state::find_stream;
using state::for_each_stream;
using state::leave_driver;
using state::stream_key;
using state::switch_stream;

}  // namespace tessera::gate
