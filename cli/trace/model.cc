#include "cli/trace/model.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "base/printable.h"
#include "cli/look/client_table.h"

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;
using nlohmann::json;

constexpr const char* kKinds[] = {"",     "launch", "slice", "copy",     "hold",   "burst",
                                  "busy", "marker", "done",  "lease",    "name",   "operation",
                                  "sync", "record", "wait",  "estimate", "request"};
static_assert(std::size(kKinds) == abi::kTraceKinds);
constexpr const char* kReasons[] = {"", "lease", "pulse", "window", "burst"};
static_assert(std::size(kReasons) == abi::kTraceReasons);
constexpr const char* kOutcomes[] = {
#define TS_ROW(id, name) name,
    TS_LAUNCH_OUTCOMES(TS_ROW)
#undef TS_ROW
};
constexpr const char* kLeases[] = {"held", "granted", "free", "free"};

constexpr const char* kEntryPoints[] = {
#define TS_CU(symbol, ...) #symbol,
#include "driver_api/entries.def"
};

constexpr uint64_t kLongestNs = 24 * 3'600'000'000'000;  // of one event

// Tracks of a client besides its streams, which have numbers from kStreams on.
constexpr int kLeaseTrack = 1, kBurstTrack = 2, kRequestTrack = 3, kStreams = 3;
constexpr uint32_t kGpuProcesses = 0x40000000;  // process ids that no process has: one per GPU

// The number of the track; 0: the event is one of a stream.
int track_of(abi::TraceKind kind) {
  switch (kind) {
    case abi::kTraceLease:
      return kLeaseTrack;
    case abi::kTraceBurst:
    case abi::kTraceBusy:
      return kBurstTrack;
    case abi::kTraceRequest:
      return kRequestTrack;
    default:
      return 0;
  }
}
constexpr const char* kTrackNames[] = {"", "leases", "bursts", "requests"};

std::string stream_name(uint64_t stream) {
  if (stream == 0) return "all streams";
  if (stream == 1) return "default stream";
  // As interpose/gate/window.cc makes keys: the top bit, the thread, 2.
  if (stream >> 63 != 0) return fmt::format("default stream of thread {}", (stream << 1 >> 9) + 1);
  return fmt::format("stream {:#x}", stream);
}

std::string readable(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      ::abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), free);
  return base::printable(status == 0 && text ? text.get() : symbol);
}

bool has_name(abi::TraceKind kind) {
  return kind == abi::kTraceLaunch || kind == abi::kTraceSlice || kind == abi::kTraceOperation ||
         kind == abi::kTraceEstimate || kind == abi::kTraceRequest;
}

json arguments(const TraceItem& item) {
  json args = {{"kind", kind_name(item.kind)},
               {"start_ns", item.start_ns},
               {"end_ns", item.end_ns},
               {"a", item.a},
               {"client", item.client}};
  if (item.kind == abi::kTraceOperation) {
    args["flop"] = item.b;
    args["bytes"] = item.c;
  }
  if (item.kind == abi::kTraceEstimate) {
    args["expected_ns"] = item.b;
    args["took_ns"] = item.c;
    args["below_call"] = item.detail != 0;
  }
  if (item.b) args["b"] = item.b;
  if (item.c) args["c"] = item.c;
  if (item.stream) args["stream"] = item.stream;
  if (item.thread) args["thread"] = item.thread;
  if (*outcome_of(item)) args["outcome"] = outcome_of(item);
  if (item.kind == abi::kTraceHold) args["reason"] = reason_name(item.detail);
  if (item.detail) args["detail"] = item.detail;
  return args;
}

// The track of an event; each is named once.
class Tracks {
 public:
  explicit Tracks(const Trace& trace, json& out) : trace_(trace), out_(out) {}
  std::pair<uint32_t, int> of(const TraceItem& item) {
    const TraceClient& client = trace_.clients.at(item.client);
    const std::string who = fmt::format("{} ({})", client.name, client.pid);
    if (const int of_client = track_of(item.kind)) {
      const std::string gpu = client.gpu.empty() ? "GPU not known" : client.gpu;
      const auto [at, fresh] = gpus_.try_emplace(gpu, kGpuProcesses + uint32_t(gpus_.size()));
      if (fresh) name("process_name", at->second, 0, gpu);
      const int track = int(item.client) * 4 + of_client;
      if (named_.insert({at->second, track}).second)
        name("thread_name", at->second, track, who + ": " + kTrackNames[of_client]);
      return {at->second, track};
    }
    // A process with two GPUs is two clients.
    const uint32_t process = client.pid;
    if (named_.insert({process, 0}).second) name("process_name", process, 0, who);
    const auto [at, fresh] =
        streams_.try_emplace({item.client, item.stream}, kStreams + int(streams_.size()));
    if (fresh) name("thread_name", process, at->second, stream_name(item.stream));
    return {process, at->second};
  }

 private:
  void name(const char* what, uint32_t process, int track, const std::string& text) {
    out_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", track}, {"args", {{"name", text}}}});
  }
  const Trace& trace_;
  json& out_;
  std::map<std::string, uint32_t> gpus_;
  std::map<std::pair<uint32_t, uint64_t>, int> streams_;
  std::set<std::pair<uint32_t, int>> named_;
};

}  // namespace

bool was_cut(const TraceItem& item) {
  return item.kind == abi::kTraceLaunch && (item.c & abi::kTraceLaunchCut) != 0;
}

const char* outcome_of(const TraceItem& item) {
  const uint64_t number = item.kind == abi::kTraceLaunch ? item.c >> abi::kTraceOutcomeShift & 0xff : 0;
  return number != 0 && number <= std::size(kOutcomes) ? kOutcomes[number - 1] : "";
}

bool is_piece(const TraceItem& item) {
  const bool sent = item.kind == abi::kTraceSlice || item.kind == abi::kTraceCopy ||
                    (item.kind == abi::kTraceLaunch && !was_cut(item));
  return sent && item.detail == 0;
}

const char* kind_name(abi::TraceKind kind) {
  return kind < abi::kTraceKinds ? kKinds[kind] : "";
}
const char* reason_name(uint16_t reason) {
  return reason < abi::kTraceReasons ? kReasons[reason] : "";
}

std::string item_title(const Trace& trace, const TraceItem& item) {
  switch (item.kind) {
    case abi::kTraceLaunch:
    case abi::kTraceSlice:
    case abi::kTraceOperation:
    case abi::kTraceEstimate:
    case abi::kTraceRequest: {
      const auto& functions = trace.clients.at(item.client).functions;
      const auto found = functions.find(item.a);
      return found == functions.end() ? fmt::format("{:#x}", item.a) : readable(found->second);
    }
    case abi::kTraceCopy:
    case abi::kTraceSync:
      return item.a < std::size(kEntryPoints) ? kEntryPoints[item.a] : kind_name(item.kind);
    case abi::kTraceRecord:
    case abi::kTraceWait:
      return fmt::format("event {:#x}", item.a);
    case abi::kTraceHold:
      return fmt::format("held: {}", reason_name(item.detail));
    case abi::kTraceLease:
      return fmt::format("lease {}", kLeases[item.a & 3]);
    default:
      return kind_name(item.kind);
  }
}

void sort_by_start(Trace& trace) {
  std::stable_sort(trace.items.begin(), trace.items.end(),
                   [](const TraceItem& x, const TraceItem& y) { return x.start_ns < y.start_ns; });
}

static uint64_t function_now(const TraceClient& client, uint64_t handle) {
  const auto renamed = client.renamed.find(handle);
  return renamed == client.renamed.end() ? handle : renamed->second;
}

// A name may be said again. Another name is another function's, which has the handle from now on.
static void add_name(TraceClient& client, const abi::TraceEvent& e) {
  constexpr size_t kMostFunctions = 100'000;
  const size_t at = size_t(e.detail) * sizeof e.name;
  if (client.functions.size() >= kMostFunctions || e.detail >= abi::kTraceNamePieces) return;
  const std::string_view piece(reinterpret_cast<const char*>(e.name),
                               strnlen(reinterpret_cast<const char*>(e.name), sizeof e.name));
  std::string& name = client.functions[function_now(client, e.a)];
  if (name.size() <= at) {
    name += piece;
    return;
  }
  const bool is_last = piece.size() < sizeof e.name;
  if (is_last ? name.substr(at) == piece : std::string_view(name).substr(at).starts_with(piece)) return;
  const uint64_t other = e.a + (client.functions.size() + 1) * 0x9e3779b97f4a7c15u;
  client.functions[other] = name.substr(0, at).append(piece);
  client.renamed[e.a] = other;
}

bool add_event(Trace& trace, uint32_t client, const abi::TraceEvent& e) {
  if (e.kind == abi::kTraceNone || e.kind >= abi::kTraceKinds) return false;
  if (e.kind == abi::kTraceName) return add_name(trace.clients[client], e), false;
  const uint64_t end_ns = std::clamp(e.at.end_ns, e.at.start_ns,
                                     e.at.start_ns + std::min(kLongestNs, UINT64_MAX - e.at.start_ns));
  const auto kind = abi::TraceKind(e.kind);
  const uint64_t a = has_name(kind) ? function_now(trace.clients[client], e.a) : e.a;
  trace.items.push_back(
      {client, kind, e.detail, e.thread, e.at.start_ns, end_ns, e.at.stream, a, e.at.b, e.at.c});
  return true;
}

json to_chrome(const Trace& trace) {
  json events = json::array(), clients = json::array();
  Tracks tracks(trace, events);
  const uint64_t origin_ns = trace.items.empty() ? 0 : trace.items.front().start_ns;
  for (const TraceItem& item : trace.items) {
    const auto [process, track] = tracks.of(item);
    const bool instant = item.end_ns == item.start_ns;
    json event = {{"name", item_title(trace, item)},
                  {"cat", kind_name(item.kind)},
                  {"ph", instant ? "i" : "X"},
                  {"ts", double(item.start_ns - origin_ns) / 1000},
                  {"pid", process},
                  {"tid", track},
                  {"args", arguments(item)}};
    if (instant)
      event["s"] = "t";
    else
      event["dur"] = double(item.end_ns - item.start_ns) / 1000;
    events.push_back(std::move(event));
  }
  for (const auto& [id, client] : trace.clients)
    clients.push_back({{"id", id},
                       {"pid", client.pid},
                       {"name", client.name},
                       {"priority", client.priority},
                       {"gpu", client.gpu},
                       {"gang", client.gang},
                       {"cutting", client.cutting}});
  return {
      {"traceEvents", std::move(events)},
      {"displayTimeUnit", "ns"},
      {"otherData", {{"format", "tessera trace 1"}, {"clients", std::move(clients)}, {"lost", trace.lost}}}};
}

base::Result<Trace> from_chrome(const json& file) {
  const auto bad = [](const std::string& what) {
    return base::error(base::Code::kInvalid, what + ": is this a file of `tessera trace`?");
  };
  const auto number = [](const json& object, const char* key) -> uint64_t {
    const auto found = object.find(key);
    return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
  };
  const auto text = [](const json& object, const char* key) -> std::string {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? base::printable(found->get<std::string>()) : "";
  };
  if (!file.is_object() || !file.contains("otherData") || !file["otherData"].is_object() ||
      text(file["otherData"], "format") != "tessera trace 1")
    return bad("there is no otherData.format 'tessera trace 1'");
  Trace trace;
  trace.lost = number(file["otherData"], "lost");
  for (const json& c : file["otherData"].value("clients", json::array())) {
    if (!c.is_object()) return bad("a client is no object");
    trace.clients[uint32_t(number(c, "id"))] = {uint32_t(number(c, "pid")),
                                                uint32_t(number(c, "priority")),
                                                text(c, "name"),
                                                text(c, "gpu"),
                                                {},
                                                text(c, "gang"),
                                                text(c, "cutting"),
                                                {}};
  }
  const auto events = file.find("traceEvents");
  if (events == file.end() || !events->is_array()) return bad("there is no list traceEvents");
  for (const json& event : *events) {
    if (!event.is_object() || text(event, "ph") == "M") continue;
    const auto args = event.find("args");
    if (args == event.end() || !args->is_object()) return bad("an event has no args");
    const std::string kind = text(*args, "kind");
    const auto known = std::find(std::begin(kKinds) + 1, std::end(kKinds), kind);
    if (known == std::end(kKinds)) continue;  // of a newer release
    const uint32_t client = uint32_t(number(*args, "client"));
    if (!trace.clients.contains(client)) return bad("an event is of a client that is not listed");
    abi::TraceEvent e{};
    e.kind = uint16_t(known - std::begin(kKinds));
    e.detail = uint16_t(number(*args, "detail"));
    e.thread = uint32_t(number(*args, "thread"));
    e.a = number(*args, "a");
    e.at = {number(*args, "start_ns"), number(*args, "end_ns"), number(*args, "stream"), number(*args, "b"),
            number(*args, "c")};
    if (e.kind == abi::kTraceName) continue;
    add_event(trace, client, e);
    if (has_name(abi::TraceKind(e.kind)))
      trace.clients[client].functions.try_emplace(e.a, text(event, "name"));
  }
  sort_by_start(trace);
  return trace;
}

std::string to_text(const Trace& trace) {
  std::string out;
  const uint64_t origin_ns = trace.items.empty() ? 0 : trace.items.front().start_ns;
  for (const TraceItem& item : trace.items) {
    const TraceClient& client = trace.clients.at(item.client);
    out +=
        fmt::format("{:14.6f} ms  {}/{}", double(item.start_ns - origin_ns) / 1e6, client.name, client.pid);
    if (item.stream) out += "  " + stream_name(item.stream);
    // The titles of holds and leases say what they are.
    const std::string kind = kind_name(item.kind), name = item_title(trace, item);
    const bool says_itself = item.kind == abi::kTraceHold || item.kind == abi::kTraceLease;
    if (!says_itself) out += "  " + kind;
    if (name != kind) out += (says_itself ? "  " : " ") + name;
    if ((item.kind == abi::kTraceLaunch || item.kind == abi::kTraceSlice) && item.b)
      out += fmt::format(", {} blocks", item.b);
    if (item.kind == abi::kTraceCopy && item.b) out += fmt::format(", {} bytes", item.b);
    if (item.kind == abi::kTraceOperation)
      out += fmt::format(", {} FLOP, {} bytes", short_count(double(item.b)), short_count(double(item.c)));
    if (item.kind == abi::kTraceEstimate)
      out += fmt::format(", expected {}, took {}", short_duration(double(item.b)),
                         short_duration(double(item.c)));
    if (item.kind == abi::kTraceBurst) out += fmt::format(", {} launches", item.a);
    if (item.kind == abi::kTraceLease && item.b)
      out += fmt::format(", window {}, slice {}", short_duration(double(item.b)),
                         short_duration(double(item.c)));
    if (item.end_ns != item.start_ns) out += ", " + short_duration(double(item.end_ns - item.start_ns));
    if (item.detail &&
        (item.kind == abi::kTraceLaunch || item.kind == abi::kTraceSlice || item.kind == abi::kTraceCopy))
      out += fmt::format(", CUDA error {}", item.detail);
    out += '\n';
  }
  if (trace.lost) out += fmt::format("{} events were lost\n", trace.lost);
  return out;
}

}  // namespace tessera::cli
