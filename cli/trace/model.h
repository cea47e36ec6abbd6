// A trace as `tessera trace` took it or as its file says: clients, and their events in order of time. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "ipc/abi/trace.h"

namespace tessera::cli {

struct TraceClient {
  uint32_t pid = 0, priority = 0;
  std::string name, gpu;                      // printable; gpu: "GPU-...", or empty
  std::map<uint64_t, std::string> functions;  // by handle, as the program's symbols are called
  std::string
      gang;  // its place in a gang, and who held it when the trace ended (gang_line()); "": it is in none
  std::string
      cutting;  // what of it can be cut, when the trace ended (cli/look/cut_launches.h); "": nothing is known
  // Handles that came to another function while it was traced: under which number that one is known. Not in files.
  std::map<uint64_t, uint64_t> renamed;
};

struct TraceItem {
  uint32_t client = 0;  // key of Trace::clients
  ipc::abi::TraceKind kind = ipc::abi::kTraceNone;
  uint16_t detail = 0;
  uint32_t thread = 0;
  uint64_t start_ns = 0, end_ns = 0, stream = 0, a = 0, b = 0, c = 0;  // as in abi::TraceEvent
};

struct Trace {
  std::map<uint32_t, TraceClient> clients;
  std::vector<TraceItem> items;  // by start
  uint64_t lost = 0;             // events that were overwritten or not kept
};

// These describe a launch. `outcome_of`: as ipc/abi/cutting.h names it; "" if the trace does not say it.
bool was_cut(const TraceItem& item);
const char* outcome_of(const TraceItem& item);
// A launch or a copy that went to the driver by itself, and was taken. Of a cut launch that is its slices.
bool is_piece(const TraceItem& item);

void sort_by_start(Trace& trace);

// The event of a client, bounded. False: a piece of a name, or nothing that can be shown.
bool add_event(Trace& trace, uint32_t client, const ipc::abi::TraceEvent& event_untrusted);

const char* kind_name(ipc::abi::TraceKind kind);  // "launch"
const char* reason_name(uint16_t reason);         // "lease"
// The title for people: the kernel's name, "cuMemcpyHtoD_v2", "held: lease".
std::string item_title(const Trace& trace, const TraceItem& item);

// Trace Event Format of Chrome and Perfetto: one track per client and stream, one per client and GPU.
nlohmann::json to_chrome(const Trace& trace);
// Reads the output of to_chrome. Errors name the part that is not understood.
base::Result<Trace> from_chrome(const nlohmann::json& json);
// One line per event.
std::string to_text(const Trace& trace);

}  // namespace tessera::cli
