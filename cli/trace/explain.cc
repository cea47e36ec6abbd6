#include "cli/trace/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/client_table.h"

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;

struct Span {
  uint64_t start_ns, end_ns;
};

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

// Best-effort work of one client: from the call that started it to the marker that showed its end.
struct Work {
  uint32_t client;
  Span span;
};

// A marker covers what its stream got before it, and is reached when the event `done` with its number says so. Work
// without such a marker is not known to have run for longer than its call.
std::vector<Work> best_effort_work(const Trace& trace) {
  struct Stream {
    std::vector<size_t> open;  // in `out`: no marker yet
    std::vector<std::pair<uint64_t, std::vector<size_t>>> marked;
  };
  std::vector<Work> out;
  std::map<std::pair<uint32_t, uint64_t>, Stream> streams;
  for (const TraceItem& item : trace.items) {
    if (trace.clients.at(item.client).priority != 0) continue;
    Stream& stream = streams[{item.client, item.stream}];
    const bool sent = item.kind == abi::kTraceSlice || item.kind == abi::kTraceCopy ||
                      (item.kind == abi::kTraceLaunch && item.c == 0);  // of a cut launch the slices count
    if (sent && item.detail == 0) {
      stream.open.push_back(out.size());
      out.push_back({item.client, {item.start_ns, item.end_ns}});
    } else if (item.kind == abi::kTraceMarker) {
      stream.marked.emplace_back(item.a, std::move(stream.open));
      stream.open.clear();
    } else if (item.kind == abi::kTraceDone) {
      auto reached = stream.marked.begin();
      for (; reached != stream.marked.end() && reached->first <= item.a; ++reached)
        for (const size_t i : reached->second) out[i].span.end_ns = std::max(out[i].span.end_ns, item.end_ns);
      stream.marked.erase(stream.marked.begin(), reached);
    }
  }
  return out;
}

BurstParts parts_of(const TraceItem& burst, const Trace& trace, const std::vector<Work>& best_effort) {
  BurstParts parts{
      .client = burst.client, .start_ns = burst.start_ns, .end_ns = burst.end_ns, .launches = burst.a};
  const auto inside = [&](const Span& s) {
    return Span{std::max(s.start_ns, burst.start_ns), std::min(s.end_ns, burst.end_ns)};
  };
  std::vector<Span> taken;
  const auto take = [&](const std::vector<Span>& spans) {
    const uint64_t before = length_ns(taken);
    taken.insert(taken.end(), spans.begin(), spans.end());
    taken = united(std::move(taken));
    return length_ns(taken) - before;
  };
  const TraceClient& own = trace.clients.at(burst.client);
  std::vector<Span> in_flight, beside, calls;
  for (const Work& work : best_effort) {
    if (trace.clients.at(work.client).gpu != own.gpu) continue;
    (work.span.start_ns < burst.start_ns ? in_flight : beside).push_back(inside(work.span));
  }
  for (const TraceItem& item : trace.items) {
    if (item.client != burst.client) continue;
    if (item.kind == abi::kTraceLaunch) calls.push_back(inside({item.start_ns, item.end_ns}));
    if (item.kind == abi::kTraceHold && item.detail == abi::kTraceHeldByBurst &&
        item.end_ns <= burst.start_ns + 1000 && item.end_ns + 1'000'000 > burst.start_ns)
      parts.wait_ns = item.end_ns - item.start_ns;  // the burst began when the wait ended
  }
  parts.drain_ns = take(in_flight);
  parts.beside_ns = take(beside);
  parts.host_ns = take(calls);
  parts.own_ns = burst.end_ns - burst.start_ns - length_ns(taken);
  return parts;
}

}  // namespace

std::vector<BurstParts> slowest_bursts(const Trace& trace, size_t n) {
  std::vector<const TraceItem*> bursts;
  for (const TraceItem& item : trace.items)
    if (item.kind == abi::kTraceBurst) bursts.push_back(&item);
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

std::string explanation(const std::vector<BurstParts>& bursts, const Trace& trace) {
  if (bursts.empty())
    return "no burst of a protected client ended in this trace: take a longer one, or give a client a "
           "priority\n";
  const uint64_t origin_ns = trace.items.front().start_ns;
  std::string out = fmt::format("{:<20}{:>12}{:>9}{:>9}{:>7}{:>7}{:>7}{:>7}\n", "BURST OF", "AT", "LENGTH",
                                "OWN", "DRAIN", "BESIDE", "WAIT", "HOST");
  for (const BurstParts& b : bursts) {
    const auto share = [&](uint64_t ns) {
      return fmt::format("{:.0f}%", 100.0 * double(ns) / double(std::max<uint64_t>(1, b.length_ns())));
    };
    const TraceClient& client = trace.clients.at(b.client);
    out += fmt::format("{:<20.19}{:>9.3f} ms{:>9}{:>9}{:>7}{:>7}{:>7}{:>7}\n", client.name,
                       double(b.start_ns - std::min(b.start_ns, origin_ns)) / 1e6,
                       short_duration(double(b.length_ns())), share(b.own_ns), share(b.drain_ns),
                       share(b.beside_ns), share(b.wait_ns), share(b.host_ns));
  }
  out +=
      "OWN its own work; DRAIN best-effort work in flight when it began; BESIDE best-effort\n"
      "work that started later; WAIT for a burst that goes first; HOST in its launch calls\n";
  // Whatever could not be cut had to end before the burst could go on.
  for (const auto& [id, client] : trace.clients)
    if (!client.cutting.empty())
      out += wrapped(fmt::format("{} {}: {}", client.pid, client.name.substr(0, 15), client.cutting));
  if (trace.lost) out += fmt::format("{} events were lost: shares may be too small\n", trace.lost);
  return out;
}

}  // namespace tessera::cli
