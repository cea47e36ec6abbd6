// Answers of entry points that have no driver function behind them. Signature-free: every driver call
// returns a CUresult in eax and the caller cleans the stack, so one function stands in for any row. Never
// writes through a pointer argument, with the exceptions of fill_without_driver(). Any thread.
#pragma once

#include "driver_api/cuda.h"
#include "driver_api/real_table.h"

extern "C" {
__attribute__((visibility("hidden"))) CUresult tessera_answer_not_initialized() noexcept;  // 3: while opening
__attribute__((visibility("hidden"))) CUresult
tessera_answer_not_supported() noexcept;  // 801: driver lacks the row
__attribute__((visibility("hidden"))) CUresult tessera_answer_no_device() noexcept;  // 100: no driver at all
}

namespace tessera::driver_api {

// Fills `table` for a machine without a driver: see docs/driver_api.md for why these answers.
void fill_without_driver(RealDriver* table);

}  // namespace tessera::driver_api
