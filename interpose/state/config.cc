#include "interpose/state/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admission/limits.h"
#include "base/raw_log.h"

namespace tessera::state {
namespace {

constinit Config g_config = {};
constexpr uint32_t kHighPriority = 5;

// A whole decimal number within [low, high]; otherwise says so and keeps the default.
bool number(const char* variable, uint64_t low, uint64_t high, uint64_t* out) {
  const char* text = getenv(variable);
  if (!text || !*text) return false;
  char* end = nullptr;
  const unsigned long long value = strtoull(text, &end, 10);
  if (*end || value < low || value > high) {
    base::raw_log(base::LogLevel::kError, "%s='%.40s' is not a number in %llu..%llu, ignored", variable, text,
                  static_cast<unsigned long long>(low), static_cast<unsigned long long>(high));
    return false;
  }
  *out = value;
  return true;
}

bool is_one(const char* variable) {
  const char* text = getenv(variable);
  return text && strcmp(text, "1") == 0;
}

// Lines that say nothing are left out; `tessera run` writes none.
void read_request_slos(const char* text, Config* c) {
  while (text && *text && c->n_request_slos < ipc::abi::kRequestKinds) {
    const char* const end = text + strcspn(text, "\n");
    const auto* const sign = static_cast<const char*>(memrchr(text, '=', size_t(end - text)));
    RequestSlo& slo = c->request_slos[c->n_request_slos];
    if (sign && size_t(sign - text) < sizeof slo.kind) {
      memcpy(slo.kind, text, size_t(sign - text));
      slo.slo_ns = strtoull(sign + 1, nullptr, 10);
      c->n_request_slos++;
    }
    text = *end ? end + 1 : end;
  }
}

void find_cache_dir(Config* c) {
  struct {
    const char *variable, *below;
  } const places[] = {{"TESSERA_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "/tessera"}, {"HOME", "/.cache/tessera"}};
  for (const auto& place : places) {
    const char* base = getenv(place.variable);
    if (!base || base[0] != '/') continue;  // relative ones would follow the program's working directory
    const int n = snprintf(c->cache_dir, sizeof c->cache_dir, "%s%s", base, place.below);
    if (n >= int(sizeof c->cache_dir)) c->cache_dir[0] = 0;
    return;
  }
}

}  // namespace

const Config& config() {
  return g_config;
}

bool parse_priority(const char* text, uint32_t* priority) {
  if (!strcmp(text, "high")) return *priority = kHighPriority, true;
  if (!strcmp(text, "best-effort")) return *priority = 0, true;
  if (text[0] < '0' || text[0] > '7' || text[1]) return false;
  *priority = uint32_t(text[0] - '0');
  return true;
}

uint64_t memory_limit_asked() {
  uint64_t value = 0;
  return number("TESSERA_MEMORY_LIMIT", 1, INT64_MAX, &value) ? value : 0;
}

void load_config() {
  base::raw_log_init();
  Config c;
  c.disabled = is_one("TESSERA_DISABLE");
  c.parkable = is_one("TESSERA_PARKABLE");
  c.one_queue = is_one("CUDA_DEVICE_MAX_CONNECTIONS");
  c.launches_block = is_one("CUDA_LAUNCH_BLOCKING");
  c.splits_operations = is_one("TESSERA_SPLIT_OPERATIONS");
  if (const char* text = getenv("TESSERA_PRIORITY"); text && *text && !parse_priority(text, &c.priority))
    base::raw_log(
        base::LogLevel::kError,
        "TESSERA_PRIORITY='%.40s' is none of high, best-effort, 0..7; this program runs best-effort", text);
  uint64_t value = 0;
  if (number("TESSERA_WEIGHT", 1, admission::kMostWeight, &value)) c.weight = uint32_t(value);
  if (number("TESSERA_SLO_MS", 0, admission::kMostSloMs, &value)) c.slo_ns = value * 1'000'000;
  if (number("TESSERA_MAX_HOLD_MS", 1, admission::kMostHoldMs, &value)) c.max_hold_ns = value * 1'000'000;
  if (number("TESSERA_SLICE_WATCHDOG_MS", 1, 600'000, &value)) c.slice_watchdog_ns = value * 1'000'000;
  if (number("TESSERA_SLICE", 0, 1, &value)) c.slice = value != 0;
  if (number("TESSERA_ALLOW_ORDER_DEPENDENT", 0, 1, &value)) c.allow_order_dependent = value != 0;
  if (number("TESSERA_CACHE_MAX_MB", 0, 1'000'000, &value)) c.cache_max_bytes = value << 20;
  c.memory_limit_bytes = memory_limit_asked();
  if (number("TESSERA_MEMORY_WAIT_MS", 0, admission::kMostMemoryWaitMs, &value))
    c.memory_wait_ns = value * 1'000'000;
  if (number("TESSERA_MEMORY_GROUP", 0, UINT64_MAX, &value)) c.memory_group = value;
  find_cache_dir(&c);
  read_request_slos(getenv("TESSERA_REQUEST_SLOS"), &c);
  if (const char* text = getenv("TESSERA_BIT_STABILITY"); text && *text) {
    c.relaxed_bits = !strcmp(text, "relaxed");
    if (!c.relaxed_bits && strcmp(text, "strict") != 0)
      base::raw_log(base::LogLevel::kError,
                    "TESSERA_BIT_STABILITY='%.40s' is neither strict nor relaxed; taken as strict", text);
  }
  if (const char* text = getenv("TESSERA_GATE"); text && *text) {
    c.gate = !strcmp(text, "device")   ? ipc::abi::kGateDevice
             : !strcmp(text, "thread") ? ipc::abi::kGateThread
                                       : ipc::abi::kGateAuto;
    if (c.gate == ipc::abi::kGateAuto && strcmp(text, "auto") != 0)
      base::raw_log(base::LogLevel::kError,
                    "TESSERA_GATE='%.40s' is none of auto, device, thread; taken as auto", text);
  }
  const char* name = getenv("TESSERA_NAME");
  strncpy(c.name, name && *name ? name : program_invocation_short_name, sizeof c.name - 1);
  c.gang = gang_of([](const char* variable) -> const char* { return getenv(variable); });
  g_config = c;
}

}  // namespace tessera::state
