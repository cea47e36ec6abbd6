// Settings of this process from its environment. The first intercepted call reads them once (never a
// constructor). Bad values never stop the program: they are reported through raw_log and the default is
// taken.
#pragma once

#include <cstdint>

#include "interpose/state/gang.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/requests.h"

namespace tessera::state {

struct RequestSlo {  // what requests of a kind shall take at most
  char kind[ipc::abi::kRequestNameBytes];
  uint64_t slo_ns;
};

struct Config {              // static storage, constant after load_config()
  uint32_t priority = 0;     // TESSERA_PRIORITY: 0..7, "best-effort" (0), "high" (5)
  uint32_t weight = 100;     // TESSERA_WEIGHT: 1..10000
  uint64_t slo_ns = 0;       // TESSERA_SLO_MS
  uint64_t max_hold_ns = 0;  // TESSERA_MAX_HOLD_MS: overrides the lease's limit; 0 = as the lease says
  bool slice = true;         // TESSERA_SLICE=0: never cut a kernel of this process
  uint64_t slice_watchdog_ns = 1'000'000'000;  // TESSERA_SLICE_WATCHDOG_MS: see interpose/slice/trial.h
  bool relaxed_bits = false;  // TESSERA_BIT_STABILITY=relaxed: variants may be compiled anew (D13)
  // TESSERA_ALLOW_ORDER_DEPENDENT=1: also kernels whose results may depend on the order of blocks are cut.
  bool allow_order_dependent = false;
  bool disabled = false;  // TESSERA_DISABLE=1
  // TESSERA_GATE=device, thread or auto: where best-effort work of this process waits. A claim, the daemon decides.
  ipc::abi::GateChoice gate = ipc::abi::kGateAuto;
  bool launches_block = false;  // CUDA_LAUNCH_BLOCKING=1: a launch returns when its kernel has ended
  bool splits_operations =
      false;  // TESSERA_SPLIT_OPERATIONS=1: told to the daemon; libtessera_ops.so reads it itself
  bool one_queue = false;  // CUDA_DEVICE_MAX_CONNECTIONS=1: all streams wait in one queue of the device
  // Rewritten images (kernels/cache). TESSERA_CACHE_DIR, else XDG_CACHE_HOME/tessera, else ~/.cache/tessera;
  // "" if there is none. TESSERA_CACHE_MAX_MB: 0 = nothing is kept.
  char cache_dir[512] = {};
  uint64_t cache_max_bytes = uint64_t(256) << 20;
  uint64_t memory_limit_bytes = 0;  // TESSERA_MEMORY_LIMIT: of each device; 0 = none
  uint64_t memory_group = 0;  // TESSERA_MEMORY_GROUP: processes that share that limit; 0 = this one alone
  // TESSERA_MEMORY_WAIT_MS: how long an allocation that finds no room waits for it; 0 = not at all.
  uint64_t memory_wait_ns = 0;
  // TESSERA_REQUEST_SLOS: a line for each, as in "decode=30000000".
  RequestSlo request_slos[ipc::abi::kRequestKinds] = {};
  uint32_t n_request_slos = 0;
  bool parkable = false;  // TESSERA_PARKABLE=1: every call is seen, so that it can be parked
  char name[64] = {};     // TESSERA_NAME, else the program's name
  GangName gang;          // TESSERA_GANG, else as its launcher says
};

const Config& config();
void load_config();             // from the environment
uint64_t memory_limit_asked();  // TESSERA_MEMORY_LIMIT, read anew: for calls that come before load_config()
bool parse_priority(const char* text, uint32_t* priority);

}  // namespace tessera::state
