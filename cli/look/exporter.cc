#include "cli/look/exporter.h"

#include <prometheus/text_serializer.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/scoped_fd.h"
#include "base/units.h"
#include "base/user_file.h"
#include "cli/look/device_memory.h"
#include "cli/look/metrics_server.h"
#include "cli/look/request_table.h"
#include "cli/run/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr uint32_t kAskState = 0, kAskSchema = 1;  // ipc/abi/messages.h, Query::what

// One row of the daemon's description as a metric: Prometheus wants seconds, and sums that end in _total.
struct Row {
  std::string key, name, help;
  bool grows = false;
  double scale = 1;
};

std::vector<Row> rows(const json& schema, const char* of, const std::string& prefix) {
  std::vector<Row> out;
  for (const json& described : schema.value(of, json::array())) {
    const std::string unit = described.value("unit", "");
    Row row{described.value("name", ""), "", described.value("description", ""),
            unit == "count" || unit == "nanoseconds", 1};
    row.name = row.key;
    if (row.name.ends_with("_ns")) {
      row.name.replace(row.name.size() - 3, 3, "_seconds");
      row.scale = 1e-9;
    }
    row.name = prefix + row.name + (row.grows ? "_total" : "");
    out.push_back(std::move(row));
  }
  return out;
}

ClientMetric metric(double value, bool grows, Labels labels) {
  ClientMetric m;
  m.label = std::move(labels);
  if (grows)
    m.counter.value = value;
  else
    m.gauge.value = value;
  return m;
}

MetricFamily family(const Row& row) {
  return {row.name, row.help, row.grows ? MetricType::Counter : MetricType::Gauge, {}};
}

MetricFamily single(const std::string& name, const std::string& help, double value) {
  MetricFamily f{name, help, MetricType::Gauge, {}};
  f.metric.push_back(metric(value, false, {}));
  return f;
}

std::string text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? ""
         : found->is_string()  ? found->get<std::string>()
                               : base::json_text(*found);
}

Labels labels_of(const json& client, const std::string& proc) {
  Labels labels;
  for (const char* key : {"pid", "name", "gpu", "uid", "priority"})
    labels.push_back({key, base::printable(text(client, key))});
  labels.push_back({"UUID", base::printable(text(client, "gpu"))});  // as dcgm-exporter calls it, for joins
  std::string further;
  for (const json& gpu : client.value("further_gpus", json::array()))
    if (gpu.is_string()) further += (further.empty() ? "" : ",") + base::printable(gpu.get<std::string>());
  if (!further.empty()) labels.push_back({"further_gpus", further});
  const auto group =
      base::read_user_file(proc + "/" + text(client, "pid") + "/cgroup", base::kMiB);  // it may have ended
  const ContainerNames in = container_of(group.ok() ? *group : "");
  if (!in.container_id.empty()) labels.push_back({"container_id", in.container_id});
  if (!in.pod_uid.empty()) labels.push_back({"pod_uid", in.pod_uid});
  return labels;
}

double number(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// A bound for each doubling: eight times as many would make eight times as many series.
ClientMetric histogram(const RequestHistogram& h, Labels labels) {
  ClientMetric m;
  m.label = std::move(labels);
  m.label.push_back({"kind", h.kind});
  m.histogram.sample_count = h.count;
  m.histogram.sample_sum = double(h.sum_ns) * 1e-9;
  uint64_t below = 0;
  for (uint32_t i = 0; i < base::kLatencyBuckets; i++) {
    below += h.counts[i];
    const bool is_last = i + 1 == base::kLatencyBuckets;
    if (i % base::kLatencySteps != 0 && !is_last) continue;
    m.histogram.bucket.push_back({below, is_last ? std::numeric_limits<double>::infinity()
                                                 : double(base::latency_bucket_end_ns(i)) * 1e-9});
  }
  return m;
}

MetricFamily request_family(const json& clients, const std::string& proc) {
  MetricFamily f{"tessera_client_request_seconds",
                 "how long bursts and requests of protected clients took on the GPU, by kind",
                 MetricType::Histogram,
                 {}};
  for (const json& client : clients)
    for (const RequestHistogram& h : requests_of(client))
      f.metric.push_back(histogram(h, labels_of(client, proc)));
  return f;
}

// Requests that have an SLO: the SLO, and how many kept it.
void add_slo_families(const json& clients, const std::string& proc, std::vector<MetricFamily>* out) {
  MetricFamily slo{"tessera_client_request_slo_seconds",
                   "what requests of a kind shall take at most",
                   MetricType::Gauge,
                   {}};
  MetricFamily within{
      "tessera_client_requests_within_slo_total", "requests that took no longer", MetricType::Counter, {}};
  for (const json& client : clients)
    for (const RequestHistogram& h : requests_of(client)) {
      if (h.slo_ns == 0) continue;
      Labels labels = labels_of(client, proc);
      labels.push_back({"kind", h.kind});
      slo.metric.push_back(metric(double(h.slo_ns) * 1e-9, false, labels));
      within.metric.push_back(metric(double(h.within_slo), true, std::move(labels)));
    }
  if (slo.metric.empty()) return;
  out->push_back(std::move(slo));
  out->push_back(std::move(within));
}

std::vector<MetricFamily> collect(const std::string& socket) {
  const auto state = ipc::query(socket, kAskState), schema = ipc::query(socket, kAskSchema);
  json with_residuals = json::parse(state.ok() ? *state : "", nullptr, /*allow_exceptions=*/false);
  if (with_residuals.is_object()) add_residuals(process_memory(), &with_residuals);
  return metric_families(base::json_text(with_residuals), schema.ok() ? *schema : "");
}

}  // namespace

ContainerNames container_of(const std::string& cgroup) {
  constexpr size_t kIdDigits = 64, kUidLetters = 36;
  ContainerNames out;
  for (size_t begin = 0; begin < cgroup.size();) {  // words between what is no hexadecimal digit
    const size_t end = std::min(cgroup.find_first_not_of("0123456789abcdef", begin), cgroup.size());
    if (end - begin == kIdDigits) out.container_id = cgroup.substr(begin, kIdDigits);
    begin = end + 1;
  }
  if (cgroup.find("kubepods") == cgroup.npos) return out;
  for (size_t at = cgroup.find("pod"); at != cgroup.npos; at = cgroup.find("pod", at + 1)) {
    std::string uid = cgroup.substr(at + 3, kUidLetters);
    std::replace(uid.begin(), uid.end(), '_', '-');
    if (uid.size() == kUidLetters && uid.find_first_not_of("0123456789abcdef-") == uid.npos)
      out.pod_uid = uid;
  }
  return out;
}

std::vector<MetricFamily> metric_families(const std::string& state_text, const std::string& schema_text,
                                          const std::string& proc) {
  const json state = json::parse(state_text, nullptr, /*allow_exceptions=*/false),
             schema = json::parse(schema_text, nullptr, false);
  const bool up = state.is_object() && schema.is_object();
  std::vector<MetricFamily> out = {single("tessera_up", "1: tesserad answers", up)};
  if (!up) return out;
  const json daemon = state.value("daemon", json::object()), mps = state.value("mps", json::object()),
             clients = state.value("clients", json::array());
  out.push_back(
      single("tessera_uptime_seconds", "since tesserad started", number(daemon, "uptime_ns") * 1e-9));
  out.push_back(single("tessera_mps_active", "1: programs share by MPS, without fault isolation",
                       mps.value("active", false)));
  for (const Row& row : rows(schema, "daemon", "tessera_daemon_")) {
    out.push_back(family(row));
    out.back().metric.push_back(metric(number(daemon, row.key) * row.scale, row.grows, {}));
  }
  MetricFamily weights{
      "tessera_client_weight", "share among the clients of its level", MetricType::Gauge, {}};
  for (const json& client : clients)
    weights.metric.push_back(metric(number(client, "weight"), false, labels_of(client, proc)));
  out.push_back(std::move(weights));
  MetricFamily residuals{
      "tessera_client_memory_residual_bytes",
      "device memory that NVML counts and Tessera's books do not: contexts, code, local memory",
      MetricType::Gauge,
      {}};
  for (const json& client : clients)
    if (client.contains("memory_residual_bytes"))
      residuals.metric.push_back(
          metric(number(client, "memory_residual_bytes"), false, labels_of(client, proc)));
  if (!residuals.metric.empty()) out.push_back(std::move(residuals));
  if (MetricFamily requests = request_family(clients, proc); !requests.metric.empty())
    out.push_back(std::move(requests));
  add_slo_families(clients, proc, &out);
  for (const Row& row : rows(schema, "client", "tessera_client_")) {
    out.push_back(family(row));
    for (const json& client : clients)
      out.back().metric.push_back(
          metric(number(client, row.key) * row.scale, row.grows, labels_of(client, proc)));
  }
  return out;
}

int exporter(const ExporterOptions& options) {
  const auto path = resolve_socket(options.socket);
  if (!path) {
    fprintf(stderr, "tessera exporter: %s\n", path.error().text.c_str());
    return 1;
  }
  if (options.once) {
    const auto families = collect(*path);
    prometheus::TextSerializer().Serialize(std::cout, families);
    return families.size() > 1 ? 0 : 1;
  }
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  const base::ScopedFd stopped(signalfd(-1, &stop, SFD_CLOEXEC));
  MetricsServer server([&] {
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, collect(*path));
    return text.str();
  });
  if (const base::Status listens = server.listen(options.listen); !listens.ok()) {
    fprintf(stderr, "tessera exporter: cannot listen on %s (%s): choose another address with --listen\n",
            options.listen.c_str(), listens.error().text.c_str());
    return 1;
  }
  printf("http://%s/metrics\n", options.listen.c_str());
  fflush(stdout);
  while (server.turn(stopped.get(), -1)) continue;
  return 0;
}

}  // namespace tessera::cli
