#include "cli/look/request_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/look/client_table.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

// Each is an array of its own in the answer: [end of the bucket in ns, count], null as the end of the last one.
void add_bucket(const json& pair, RequestHistogram* h) {
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_unsigned()) return;
  const uint64_t end_ns = pair[0].is_number_unsigned() ? pair[0].get<uint64_t>() : UINT64_MAX;
  const uint64_t n = pair[1].get<uint64_t>();
  h->counts[base::latency_bucket(end_ns - (end_ns != 0))] += n;
  h->count += n;
}

void subtract(const RequestHistogram& before, RequestHistogram* now) {
  now->count = 0;
  for (uint32_t i = 0; i < base::kLatencyBuckets; i++) {
    now->counts[i] -= std::min(before.counts[i], now->counts[i]);
    now->count += now->counts[i];
  }
  now->sum_ns -= std::min(before.sum_ns, now->sum_ns);
  now->within_slo -= std::min(before.within_slo, now->within_slo);
}

const json* same_client(const json& answer, uint64_t id) {
  const auto clients = answer.find("clients");
  if (clients == answer.end()) return nullptr;
  for (const json& client : *clients)
    if (count_in(client, "id") == id) return &client;
  return nullptr;
}

// As in "  98.2% in 30 ms"; "" without an SLO. Beyond the columns of the others: few have one.
std::string attainment(const RequestHistogram& h) {
  if (h.slo_ns == 0) return "";
  return fmt::format("  {:.1f}% in {}", 100.0 * double(std::min(h.within_slo, h.count)) / double(h.count),
                     short_duration(double(h.slo_ns)));
}

std::string duration(uint64_t ns) {
  return ns == UINT64_MAX ? "> 69 s" : short_duration(double(ns));
}

}  // namespace

std::vector<RequestHistogram> requests_of(const json& client) {
  std::vector<RequestHistogram> out;
  for (const json& row : list_in(client, "requests")) {
    RequestHistogram& h = out.emplace_back();
    h.kind = text_in(row, "kind");
    h.sum_ns = count_in(row, "sum_ns");
    h.slo_ns = count_in(row, "slo_ns");
    h.within_slo = count_in(row, "within_slo");
    for (const json& pair : list_in(row, "buckets")) add_bucket(pair, &h);
  }
  return out;
}

std::string request_table(const json& now, const json& before, size_t most) {
  static constexpr char kLine[] = "{:<8} {:<15} {:<19} {:>6} {:>7} {:>7} {:>7}{}\n";
  std::string out;
  size_t lines = 0;
  for (const json& client : list_in(now, "clients")) {
    const json* const earlier = same_client(before, count_in(client, "id"));
    const auto old = earlier ? requests_of(*earlier) : std::vector<RequestHistogram>();
    for (RequestHistogram& h : requests_of(client)) {
      const auto same = std::ranges::find(old, h.kind, &RequestHistogram::kind);
      if (same != old.end()) subtract(*same, &h);
      if (h.count == 0 || ++lines > most) continue;
      if (out.empty())
        out = fmt::format(kLine, "PID", "NAME", "REQUEST", "COUNT", "MEAN", "P50 <", "P99 <", "  SLO");
      out += fmt::format(kLine, std::to_string(count_in(client, "pid")).substr(0, 8),
                         text_in(client, "name").substr(0, 15), h.kind.substr(0, 19),
                         short_count(double(h.count)), duration(h.sum_ns / h.count),
                         duration(h.below_ns(0.5)), duration(h.below_ns(0.99)), attainment(h));
    }
  }
  if (lines > most) out += fmt::format("... and {} more\n", lines - most);
  return out;
}

}  // namespace tessera::cli
