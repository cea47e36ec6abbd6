// Why kernels of this process are not cut, counted by name: those of kernels/slice (refusals.def, globals.h)
// and those below, which only show at run time. Counting is lock-free; any thread; text is made when it is
// asked for.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::track {

namespace reasons {
inline constexpr const char kNotParsed[] = "not_parsed";        // the image's PTX, or the kernel in it
inline constexpr const char kModuleState[] = "module_state";    // needs what only the original's module has;
                                                                // more of the kind: kernels/slice/globals.h
inline constexpr const char kBitStability[] = "bit_stability";  // recompilation may change bits (D13)
inline constexpr const char kNoSource[] = "no_source";          // machine code without the PTX it came from
inline constexpr const char kVariableAddress[] = "variable_address";  // the driver does not find a variable
inline constexpr const char kSiblingFailed[] = "sibling_failed";  // the driver, or the copy is not the same
inline constexpr const char kSiblingLimit[] = "sibling_limit";    // too many, or too much text
inline constexpr const char kAttributes[] = "attributes";         // the variant cannot have the original's
inline constexpr const char kGridRows[] = "grid_rows";            // a look-back launched with y or z above 1
inline constexpr const char kOneQueue[] = "one_queue";  // a look-back, CUDA_DEVICE_MAX_CONNECTIONS=1
inline constexpr const char kWatchdog[] = "watchdog";   // a slice did not end: it waits for others
}  // namespace reasons

void count_refusal(const char* reason) noexcept;  // a string that lives for ever
uint64_t refusals(const char* reason) noexcept;
// "inter_block_wait 2, bit_stability 1"; "" if none. At most `size` bytes with the NUL.
void describe_refusals(char* out, uint32_t size) noexcept;

}  // namespace tessera::track
