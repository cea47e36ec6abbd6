// Chooses the GPU on which a program should start, of several: it cannot move later. Pure, as policy.h: plain data
// in, an index out. Called by the daemon for `tessera run --place`, and by the simulator for cells with several GPUs.
//
// A GPU where the program's memory fits goes before one where it does not. Among equals the least cost wins: for how
// much of the time others keep it waiting or slow it down, by the contention that was measured between their classes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

struct Program {
  uint32_t priority = 0;  // 0 best-effort, 1..7 protected
  ResourceClass resource_class = ResourceClass::kUnknown;
  double load = 1;            // part of the time that it works, alone; best-effort: 1
  uint64_t memory_bytes = 0;  // 0 = not known
};

struct GpuPrograms {
  uint64_t memory_bytes = 0;  // 0 = not known: everything fits
  std::vector<Program> programs;
};

// [own class][class of the neighbour]: how much longer own kernels take beside such a neighbour.
using ContentionBetween = std::array<std::array<double, 4>, 4>;

// Values for GPUs that nobody has measured, from scenarios/parts/a100.toml; docs/simulator.md has source and range.
// A neighbour of unknown class counts as one half compute, half memory.
inline constexpr ContentionBetween kAssumedContention = {
    {{0.5, 0.4, 0.6, 0.1},  // unknown beside unknown, compute ...
     {0.525, 0.75, 0.3, 0.1},
     {0.7, 0.3, 1.1, 0.1},
     {0.25, 0.25, 0.25, 0.1}}};

// Expected part of the newcomer's time that it loses on this GPU; may exceed 1.
double placement_cost(const Program& newcomer, const GpuPrograms& gpu, const ContentionBetween& contention);

bool memory_suffices(const Program& newcomer, const GpuPrograms& gpu);  // as far as it is known

// Index of the GPU; of equal ones that with least memory taken, then the first. `gpus` is not empty.
size_t place(const Program& newcomer, std::span<const GpuPrograms> gpus, const ContentionBetween& contention);

}  // namespace tessera::policy
