// Ranges that are open. No lock; memory is taken once for each thread that pushes.
#pragma once

#include <cstdint>

#include "interpose/ranges/contract.h"

namespace tessera::ranges {

// Once, before all else: who is told when a range is over, or its thread is gone.
void prepare_open(const RequestSide* side);

// Push and pop: a stack for each thread and domain. `request` 0: the range is none, and has its place all the same.
void push(const void* domain, uint64_t request);
void pop(const void* domain);

// Start and end, in any threads. Only ranges that are requests are kept.
void start(uint64_t range, uint64_t request);
void end(uint64_t range);

}  // namespace tessera::ranges
