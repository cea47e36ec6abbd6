// The answer to what a stand-in does not compute. Any thread.
#pragma once

#include <atomic>

namespace tessera::softgpu::libraries {

// Each library defines this: its name in messages, and its status for "not supported".
struct Identity {
  const char* name;
  int not_supported;
};
extern const Identity kIdentity;

// kIdentity.not_supported; `function` and `detail` go to standard error the first time `said` is false.
int not_supported(const char* function, const char* detail, std::atomic<bool>* said);

}  // namespace tessera::softgpu::libraries
