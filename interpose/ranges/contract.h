// The contract between libtessera.so and libtessera_ranges.so: where requests begin and end. The ranges library looks the function up by
// name, and does without it if it is not there. Any thread of the program; no call waits, allocates or throws.
#pragma once

#include <cstdint>

namespace tessera::ranges {

inline constexpr uint32_t kContractVersion = 2;  // other versions leave each other alone

struct RequestSide {
  // The kind of that name, which is copied; the same again for the same name. 0: there are too many kinds. `yields`: best-effort
  // work need not wait for the work of a thread while it is in such a range.
  uint32_t (*kind)(const char* name, uint32_t yields) noexcept;
  // A request begins with the next work of this thread, or of any thread of the process. 0: it is not measured.
  uint64_t (*begin)(uint32_t kind, uint32_t of_thread) noexcept;
  // It has no further work; what it began may still run. 0 and what has ended already are ignored.
  void (*end)(uint64_t request) noexcept;
  // It is not measured after all: its thread is gone.
  void (*drop)(uint64_t request) noexcept;
};

// Null: another version, or a library that measures nothing.
using GetRequestSide = const RequestSide* (*)(uint32_t version);
inline constexpr char kGetRequestSide[] = "tessera_request_side";

}  // namespace tessera::ranges
