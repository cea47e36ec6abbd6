// The GPUs of devices.def, and what a kernel is on one: how many of its blocks an SM holds, how its length changes from one
// GPU to another. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "profiles/gpu_description.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::simulator::traces {

using Device = profiles::GpuDescription;  // limits of an SM, peaks, bandwidth; `path` is the key

const Device* device_of_key(std::string_view key);    // nullptr: there is none
const Device* device_of_name(std::string_view name);  // as a driver reports it; nullptr: not known
std::string device_keys();                            // "b200, h200, ..."

// How a kernel's name is understood.
enum class Work : uint8_t { kUnknown, kCompute, kTensor, kMemory, kCollective };
Work work_of(std::string_view kernel);
bool is_of_triton(std::string_view kernel);
bool is_attention(std::string_view kernel);

// 1: as long on both. Compute by peak, memory by bandwidth, what is not known by the smaller of the two factors of change.
double length_factor(Work work, const Device& from, const Device& to);

}  // namespace tessera::simulator::traces
