// How much memory of the host this process may still take: what the machine has left, and each control group that it is in, up
// to the root. Called by the helper thread before a program is parked; reads small files, allocates nothing, keeps nothing.
// Page cache that a group could drop counts as room. Swap does not count.
#pragma once

#include <cstdint>

namespace tessera::lifecycle {

// `root` stands before every path: "" but in tests. UINT64_MAX: nobody says.
uint64_t host_room_bytes(const char* root);

}  // namespace tessera::lifecycle
