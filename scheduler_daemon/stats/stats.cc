#include "scheduler_daemon/stats/stats.h"

#include <cstdio>

#include "base/latency_buckets.h"
#include "base/printable.h"

namespace tessera::stats {
namespace {

// Names come from clients. Made printable here, so that whoever reads the JSON may show them.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  base::put_printable(text, [&](char c) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  });
  return out + '"';
}

class Object {  // appends "key":value pairs to a text
 public:
  explicit Object(std::string* out) : out_(out) { *out_ += '{'; }
  void close() { *out_ += '}'; }
  void raw(const char* key, const std::string& value) {
    if (!first_) *out_ += ',';
    first_ = false;
    *out_ += quoted(key) + ':' + value;
  }
  void text(const char* key, const std::string& value) { raw(key, quoted(value)); }
  void number(const char* key, uint64_t value) { raw(key, std::to_string(value)); }
  void real(const char* key, double value) {  // whole numbers stay whole where a double holds them
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    raw(key, text);
  }
  void flag(const char* key, bool value) { raw(key, value ? "true" : "false"); }

 private:
  std::string* out_;
  bool first_ = true;
};

std::string starved_json(const ClientRow::Starved& s) {
  if (s.by.empty()) return "null";
  std::string out;
  Object o(&out);
  o.text("by", s.by);
  o.raw("share", std::to_string(s.share));
  o.raw("services_busy", std::to_string(s.services_busy));
  o.text("why", s.why);
  o.text("remedy", s.remedy);
  o.close();
  return out;
}

std::string gang_json(const ClientRow::Gang& g) {
  if (g.name.empty()) return "null";
  std::string out;
  Object o(&out);
  o.text("name", g.name);
  o.number("member", g.member);
  o.number("members", g.members);
  o.text("held_at", g.held_at);
  o.text("why", g.why);
  o.close();
  return out;
}

std::string operation_json(const OperationRow& row) {
  std::string out;
  Object o(&out);
  o.text("name", row.name);
  o.text("type", row.type);
  o.text("class", row.resource_class);
  o.number("calls", row.calls);
  o.real("flop", row.flop);
  o.real("bytes", row.bytes);
  o.number("gpu_ns", row.gpu_ns);
  o.number("launches", row.launches);
  o.close();
  return out;
}

std::string outcome_json(const OutcomeRow& row) {
  std::string out;
  Object o(&out);
  o.text("name", row.name);
  o.number("launches", row.launches);
  o.number("gpu_ns", row.gpu_ns);
  o.close();
  return out;
}

std::string request_json(const RequestRow& row) {
  std::string out, buckets;
  uint64_t count = 0;
  for (uint32_t i = 0; i < row.counts.size(); ++i) {
    if (row.counts[i] == 0) continue;
    count += row.counts[i];
    const uint64_t end_ns = base::latency_bucket_end_ns(i);
    buckets += (buckets.empty() ? "[" : ",[") + (end_ns == UINT64_MAX ? "null" : std::to_string(end_ns)) +
               ',' + std::to_string(row.counts[i]) + ']';
  }
  Object o(&out);
  o.text("kind", row.kind);
  o.number("count", count);
  o.number("sum_ns", row.sum_ns);
  if (row.slo_ns != 0) {
    o.number("slo_ns", row.slo_ns);
    o.number("within_slo", row.within_slo);
  }
  o.raw("buckets", '[' + buckets + ']');
  o.close();
  return out;
}

std::string memory_json(const MemoryRow& row) {
  std::string out;
  Object o(&out);
  o.text("gpu", row.gpu);
#define TS_ROW(field, name, meaning) o.number(name, row.field);
  TS_MEMORY_FIGURES(TS_ROW)
#undef TS_ROW
  o.number("limit", row.limit_bytes);
  o.flag("limit_by_kernel", row.limit_by_kernel);
  o.number("reserved", row.reserved_bytes);
  o.number("waits", row.waits_bytes);
  o.number("waits_for_ns", row.waits_for_ns);
  o.close();
  return out;
}

std::string park_json(const ParkRow& row) {
  std::string out;
  Object o(&out);
  o.text("state", row.state);
  o.text("refusal", row.refusal);
  o.text("engine", row.engine);
  o.flag("answered", row.answered);
  o.number("bytes", row.bytes);
  o.number("for_ns", row.for_ns);
  o.number("park_ns", row.park_ns);
  o.number("return_ns", row.return_ns);
  o.number("parks", row.parks);
  o.number("lacks", row.lacks_bytes);
  o.close();
  return out;
}

template <class Row>
std::string array(const std::vector<Row>& rows, std::string (*print)(const Row&)) {
  std::string out = "[";
  for (const Row& row : rows) {
    if (out.size() > 1) out += ',';
    out += print(row);
  }
  return out + ']';
}

std::string client_json(const ClientRow& c) {
  std::string out;
  Object o(&out);
  o.number("id", c.id);
  o.raw("pid", std::to_string(c.pid));
  o.number("uid", c.uid);
  o.text("name", c.name);
  o.number("priority", c.priority);
  o.number("claimed_priority", c.claimed_priority);
  o.number("weight", c.weight);
  o.number("slo_ns", c.slo_ns);
  o.flag("passthrough", c.passthrough);
  o.text("gate", c.gate);
  o.text("gpu", c.gpu);
  o.raw("further_gpus", array(c.further_gpus, quoted));
  o.text("state", c.state);
  o.flag("mps", c.mps);
  o.number("attached_ns", c.attached_ns);
  o.raw("starved", starved_json(c.starved));
  o.raw("gang", gang_json(c.gang));
#define TS_CLIENT(name, unit, description) o.number(#name, c.counters.name);
#include "scheduler_daemon/stats/stats.def"
  o.raw("during_bursts", array(c.during_bursts, quoted));
  o.raw("operations", array(c.operations, operation_json));
  o.raw("requests", array(c.requests, request_json));
  o.raw("memory", array(c.memory, memory_json));
  o.raw("park", park_json(c.park));
  o.raw("outcomes", array(c.outcomes, outcome_json));
  o.close();
  return out;
}

std::string gpu_json(const GpuRow& g) {
  std::string out;
  Object o(&out);
  o.text("uuid", g.uuid);
  o.text("policy", g.policy);
  o.flag("mps", g.mps);
  o.number("sm_count", g.sm_count);
  o.number("clients", g.clients);
  o.close();
  return out;
}

std::string daemon_json(const Snapshot& s) {
  std::string out;
  Object o(&out);
  o.text("version", s.version);
  o.raw("pid", std::to_string(s.pid));
  o.text("epoch", std::to_string(s.epoch));  // 64 bits: as text, because many readers hold numbers as doubles
  o.number("uptime_ns", s.uptime_ns);
  o.text("policy", s.policy);
  o.number("min_share_percent", s.min_share_percent);
  o.text("socket", s.socket);
#define TS_DAEMON(name, unit, description) o.number(#name, s.counters.name);
#include "scheduler_daemon/stats/stats.def"
  o.close();
  return out;
}

std::string described(const char* name, const char* unit, const char* description) {
  std::string out;
  Object o(&out);
  o.text("name", name);
  o.text("unit", unit);
  o.text("description", description);
  o.close();
  return out;
}

}  // namespace

std::string mps_json(const Mps& m) {
  std::string out;
  Object o(&out);
  o.text("mode", m.mode);
  o.flag("active", m.active);
  o.text("reason", m.reason);
  o.text("pipe_directory", m.pipe_directory);
  o.text("log_directory", m.log_directory);
  o.text("control_program", m.control_program);
  o.number("restarts", m.restarts);
  if (m.memory_limit_bytes != 0) o.number("memory_limit", m.memory_limit_bytes);
  o.close();
  return out;
}

std::string placement_json(const Placement& p) {
  std::string out;
  Object o(&out);
  o.number("chosen", p.chosen);
  o.text("gpu", p.gpus[p.chosen].uuid);
  o.raw("gpus", array<GpuCost>(p.gpus, [](const GpuCost& g) {
          std::string row;
          Object r(&row);
          r.text("uuid", g.uuid);
          r.raw("cost", std::to_string(g.cost));
          r.flag("memory_fits", g.memory_fits);
          r.number("programs", g.programs);
          r.close();
          return row;
        }));
  o.close();
  return out;
}

std::string to_json(const Snapshot& s) {
  std::string out;
  Object o(&out);
  o.raw("daemon", daemon_json(s));
  o.raw("mps", mps_json(s.mps));
  o.raw("gpus", array(s.gpus, gpu_json));
  o.raw("clients", array(s.clients, client_json));
  o.close();
  return out;
}

std::string schema_json() {
  std::string daemon, client;
#define TS_DAEMON(name, unit, description) \
  daemon += (daemon.empty() ? "" : ",") + described(#name, #unit, description);
#define TS_CLIENT(name, unit, description) \
  client += (client.empty() ? "" : ",") + described(#name, #unit, description);
#include "scheduler_daemon/stats/stats.def"
  return "{\"daemon\":[" + daemon + "],\"client\":[" + client + "]}";
}

}  // namespace tessera::stats
