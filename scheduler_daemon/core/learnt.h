// Messages between clients and learning::Store: the table of what was learnt, and the kernels that the keys of records stand for.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler_daemon/core/common.h"

namespace tessera::core {

std::string driver_name(uint32_t version);  // as cuDriverGetVersion has it
// Messages. False: malformed.
bool on_profile_wanted(Common& common, Client& client, const ipc::Packet& packet);
bool on_kernel_seen(const Common& common, const Client& client, const ipc::Packet& packet);
void count_learning(const Settings& settings, stats::DaemonCounters& out);

}  // namespace tessera::core
