#include "cli/trace/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "cli/look/client_table.h"
#include "cli/look/cut_launches.h"
#include "cli/trace/gpu_times.h"

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;

using Span = GpuSpan;

// Sorted, without overlap.
std::vector<Span> united(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& x, const Span& y) { return x.start_ns < y.start_ns; });
  std::vector<Span> out;
  for (const Span& s : spans) {
    if (s.end_ns <= s.start_ns) continue;
    if (!out.empty() && s.start_ns <= out.back().end_ns)
      out.back().end_ns = std::max(out.back().end_ns, s.end_ns);
    else
      out.push_back(s);
  }
  return out;
}

uint64_t length_ns(const std::vector<Span>& spans) {
  uint64_t sum = 0;
  for (const Span& s : united(spans)) sum += s.end_ns - s.start_ns;
  return sum;
}

// Best-effort work, as it ran on the GPU.
struct Work {
  const TraceItem* item;
  Span ran;
};

// In the order in which it began.
std::vector<Work> best_effort_work(const Trace& trace) {
  const std::vector<Span> spans = gpu_spans(trace);
  std::vector<Work> out;
  for (size_t i = 0; i < spans.size(); ++i)
    if (spans[i].end_ns != 0 && trace.clients.at(trace.items[i].client).priority == 0)
      out.push_back({&trace.items[i], spans[i]});
  std::sort(out.begin(), out.end(),
            [](const Work& x, const Work& y) { return x.ran.start_ns < y.ran.start_ns; });
  return out;
}

Span inside(const Span& s, const TraceItem& burst) {
  return {std::max(s.start_ns, burst.start_ns), std::min(s.end_ns, burst.end_ns)};
}

BurstParts parts_of(const TraceItem& burst, const Trace& trace, const std::vector<Work>& best_effort) {
  const bool is_burst = burst.kind == abi::kTraceBurst;
  BurstParts parts{.client = burst.client,
                   .request = is_burst ? "" : item_title(trace, burst),
                   .start_ns = burst.start_ns,
                   .end_ns = burst.end_ns,
                   .launches = is_burst ? burst.a : 0};
  std::vector<Span> taken;
  const auto take = [&](const std::vector<Span>& spans) {
    const uint64_t before = length_ns(taken);
    taken.insert(taken.end(), spans.begin(), spans.end());
    taken = united(std::move(taken));
    return length_ns(taken) - before;
  };
  const TraceClient& own = trace.clients.at(burst.client);
  std::vector<Span> in_flight, beside, calls, waits;
  for (const Work& work : best_effort) {
    if (trace.clients.at(work.item->client).gpu != own.gpu) continue;
    (work.item->start_ns < burst.start_ns ? in_flight : beside).push_back(inside(work.ran, burst));
  }
  for (const TraceItem& item : trace.items) {
    if (item.client != burst.client) continue;
    if (item.kind == abi::kTraceLaunch) calls.push_back(inside({item.start_ns, item.end_ns}, burst));
    if (item.kind != abi::kTraceHold || item.detail != abi::kTraceHeldByBurst) continue;
    if (!is_burst)
      waits.push_back(inside({item.start_ns, item.end_ns}, burst));
    else if (item.end_ns <= burst.start_ns + 1000 && item.end_ns + 1'000'000 > burst.start_ns)
      parts.wait_ns = item.end_ns - item.start_ns;  // the burst began when the wait ended
  }
  parts.wait_ns += take(waits);
  parts.drain_ns = take(in_flight);
  parts.beside_ns = take(beside);
  parts.host_ns = take(calls);
  parts.own_ns = burst.end_ns - burst.start_ns - length_ns(taken);
  return parts;
}

}  // namespace

std::vector<BurstParts> slowest_bursts(const Trace& trace, size_t n) {
  std::set<uint32_t> with_requests;
  for (const TraceItem& item : trace.items)
    if (item.kind == abi::kTraceRequest) with_requests.insert(item.client);
  std::vector<const TraceItem*> bursts;
  for (const TraceItem& item : trace.items)
    if (item.kind == (with_requests.contains(item.client) ? abi::kTraceRequest : abi::kTraceBurst))
      bursts.push_back(&item);
  n = std::min(n, bursts.size());
  std::partial_sort(bursts.begin(), bursts.begin() + long(n), bursts.end(),
                    [](const TraceItem* x, const TraceItem* y) {
                      return x->end_ns - x->start_ns > y->end_ns - y->start_ns;
                    });
  const std::vector<Work> work = best_effort_work(trace);
  std::vector<BurstParts> out;
  for (size_t i = 0; i < n; ++i) out.push_back(parts_of(*bursts[i], trace, work));
  return out;
}

std::vector<KernelInTheWay> kernels_in_the_way(const Trace& trace, size_t n) {
  const std::vector<Work> work = best_effort_work(trace);
  uint64_t longest_ns = 0;
  for (const Work& w : work) longest_ns = std::max(longest_ns, w.ran.end_ns - w.ran.start_ns);
  std::map<std::pair<uint32_t, uint64_t>, KernelInTheWay> kernels;  // by client and function
  for (const TraceItem& burst : trace.items) {
    if (burst.kind != abi::kTraceBurst) continue;
    std::map<std::pair<uint32_t, uint64_t>, std::vector<Span>> met;
    auto w = std::lower_bound(work.begin(), work.end(), burst.start_ns - std::min(burst.start_ns, longest_ns),
                              [](const Work& x, uint64_t ns) { return x.ran.start_ns < ns; });
    for (; w != work.end() && w->ran.start_ns < burst.end_ns; ++w)
      if (w->item->kind != abi::kTraceCopy && w->ran.end_ns > burst.start_ns &&
          trace.clients.at(w->item->client).gpu == trace.clients.at(burst.client).gpu)
        met[{w->item->client, w->item->a}].push_back(inside(w->ran, burst));
    for (const auto& [key, spans] : met) {
      KernelInTheWay& kernel = kernels[key];
      const uint64_t ns = length_ns(spans);
      kernel.bursts++;
      kernel.waited_ns += ns;
      kernel.longest_ns = std::max(kernel.longest_ns, ns);
    }
  }
  // As its launches say it, the latest one last.
  for (const TraceItem& item : trace.items)
    if (const auto at = kernels.find({item.client, item.a}); at != kernels.end() && *outcome_of(item))
      at->second.outcome = outcome_of(item);
  std::vector<KernelInTheWay> out;
  for (auto& [key, kernel] : kernels) {
    std::tie(kernel.client, kernel.function) = key;
    out.push_back(kernel);
  }
  std::stable_sort(out.begin(), out.end(), [](const KernelInTheWay& x, const KernelInTheWay& y) {
    return x.waited_ns > y.waited_ns;
  });
  out.resize(std::min(n, out.size()));
  return out;
}

std::string told(const std::vector<KernelInTheWay>& kernels, const Trace& trace) {
  if (kernels.empty()) return "";
  static constexpr char kLine[] = "{:<32.31}{:<17.16}{:>7}{:>11}{:>11}\n";
  std::string out = fmt::format(kLine, "BURSTS WAITED FOR", "OF", "BURSTS", "SUM", "LONGEST");
  for (const KernelInTheWay& k : kernels) {
    const TraceItem launch{.client = k.client, .kind = abi::kTraceLaunch, .a = k.function};
    out += fmt::format(kLine, item_title(trace, launch), trace.clients.at(k.client).name, k.bursts,
                       short_duration(double(k.waited_ns)), short_duration(double(k.longest_ns)));
    if (!k.outcome.empty()) out += wrapped("    " + shortens(k.outcome));
  }
  return out;
}

std::string explanation(const std::vector<BurstParts>& bursts, const Trace& trace) {
  if (bursts.empty())
    return "no burst of a protected client ended in this trace: take a longer one, or give a client a "
           "priority\n";
  const uint64_t origin_ns = trace.items.front().start_ns;
  std::string out = fmt::format("{:<20}{:>12}{:>9}{:>9}{:>7}{:>7}{:>7}{:>7}\n", "BURST OF, REQUEST", "AT",
                                "LENGTH", "OWN", "DRAIN", "BESIDE", "WAIT", "HOST");
  for (const BurstParts& b : bursts) {
    const auto share = [&](uint64_t ns) {
      return fmt::format("{:.0f}%", 100.0 * double(ns) / double(std::max<uint64_t>(1, b.length_ns())));
    };
    const TraceClient& client = trace.clients.at(b.client);
    out += fmt::format("{:<20.19}{:>9.3f} ms{:>9}{:>9}{:>7}{:>7}{:>7}{:>7}\n",
                       b.request.empty() ? client.name : b.request + " of " + client.name,
                       double(b.start_ns - std::min(b.start_ns, origin_ns)) / 1e6,
                       short_duration(double(b.length_ns())), share(b.own_ns), share(b.drain_ns),
                       share(b.beside_ns), share(b.wait_ns), share(b.host_ns));
  }
  out +=
      "OWN its own work; DRAIN best-effort work in flight when it began; BESIDE best-effort\n"
      "work that started later; WAIT for a burst that goes first; HOST in its launch calls\n";
  // Whatever could not be cut had to end before the burst could go on.
  for (const auto line : {&TraceClient::gang, &TraceClient::cutting})
    for (const auto& [id, client] : trace.clients)
      if (!(client.*line).empty())
        out += wrapped(fmt::format("{} {}: {}", client.pid, client.name.substr(0, 15), client.*line));
  if (trace.lost) out += fmt::format("{} events were lost: shares may be too small\n", trace.lost);
  return out;
}

}  // namespace tessera::cli
