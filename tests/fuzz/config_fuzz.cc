// Any text as tesserad's configuration, or as checkpoints.toml: no crash, every mistake has its place, and what is accepted keeps the
// bounds that the rest of the daemon relies on.
#include <cstdint>
#include <string>

#include "scheduler_daemon/config/config.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const config::Checkpoints checkpoints = config::parse_checkpoints(text, "f");
  for (const std::string& line : checkpoints.errors) CHECK(line.starts_with("f:") && line.size() > 6);
  for (const core::CheckpointRule& rule : checkpoints.rules) CHECK(!rule.gpu.empty() && rule.driver != 0);
  const config::Parsed parsed = config::parse_config(text, "f");
  for (const std::string& line : parsed.errors) CHECK(line.starts_with("f:") && line.size() > 6);
  if (!parsed.errors.empty()) return 0;
  const core::Settings s = config::settings_of(parsed.config);
  CHECK(policy::make_policy(s.policy_name, s.parameters) != nullptr);
  CHECK(s.parameters.slice_ns > 0 && s.parameters.slice_ns <= s.parameters.window_ns);
  CHECK(s.parameters.max_hold_ns > 0 && s.parameters.lease_ns > 0 && s.parameters.quantum_ns > 0);
  CHECK(s.parameters.min_share >= 0 && s.parameters.min_share < 1);
  CHECK(s.max_clients >= 1 && s.default_max_priority <= ipc::abi::kMaxPriority);
  for (const core::PriorityLimit& limit : s.priority_limits)
    CHECK(limit.max_priority <= ipc::abi::kMaxPriority);
  return 0;
}
