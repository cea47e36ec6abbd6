#include "cli/trace/gpu_times.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;

constexpr int kRounds = 20;  // of dealing out: the twentieth changes nothing that microseconds show

using Pieces = std::vector<size_t>;  // indices of items: what went to the driver by itself

struct WatchedStream {
  Pieces open;  // no marker behind them yet
  std::vector<std::pair<uint64_t, Pieces>> marked;
  uint64_t known_ns = 0;  // when it was last seen to have reached a point
};

struct TimedPieces {  // these pieces ran then, one after the other
  Pieces pieces;
  uint64_t begin_ns, length_ns;
};

// Goes through a trace in the order of time and collects windows.
class Watcher {
 public:
  explicit Watcher(const Trace& trace) : trace_(trace) {}

  std::vector<TimedPieces> windows() {
    std::vector<std::pair<uint64_t, size_t>> order;  // when an item says something, and which
    for (size_t i = 0; i < trace_.items.size(); ++i) {
      const TraceItem& item = trace_.items[i];
      order.push_back({item.kind == abi::kTraceBurst ? item.end_ns : item.start_ns, i});
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& x, const auto& y) { return x.first < y.first; });
    for (const auto& [when, i] : order) see(i);
    return std::move(windows_);
  }

 private:
  void see(size_t i) {
    const TraceItem& item = trace_.items[i];
    if (is_piece(item)) stream_of(item).open.push_back(i);
    switch (item.kind) {
      case abi::kTraceCopy:
        if (item.detail == 0 && (item.c & abi::kTraceCopyEnded)) reached(stream_of(item), item.end_ns);
        break;
      case abi::kTraceMarker: {
        WatchedStream& stream = stream_of(item);
        stream.marked.emplace_back(item.a, std::move(stream.open));
        stream.open.clear();
        break;
      }
      case abi::kTraceDone:
        marker_reached(stream_of(item), item);
        break;
      case abi::kTraceRecord:
        records_[{item.client, item.a}] = {item.stream, item.start_ns};
        break;
      case abi::kTraceSync:
        if (item.detail == 0) waited(item);
        break;
      case abi::kTraceBurst:
        all_reached(item);
        break;
      default:
        break;
    }
  }

  WatchedStream& stream_of(const TraceItem& item) { return streams_[{item.client, item.stream}]; }

  void waited(const TraceItem& item) {
    if (item.stream != 0) return reached(stream_of(item), item.end_ns);
    if (item.b == 0) return all_reached(item);
    const auto record = records_.find({item.client, item.b});
    if (record == records_.end()) return;
    const auto [stream, until_ns] = record->second;
    reached(streams_[{item.client, stream}], item.end_ns, until_ns);
  }
  void all_reached(const TraceItem& item) {
    for (auto at = streams_.lower_bound({item.client, 0});
         at != streams_.end() && at->first.first == item.client; ++at)
      reached(at->second, item.end_ns);
  }
  // Everything that was enqueued until then.
  void reached(WatchedStream& stream, uint64_t now_ns, uint64_t until_ns = UINT64_MAX) {
    Pieces ended, later;
    for (auto& [number, pieces] : stream.marked) ended.insert(ended.end(), pieces.begin(), pieces.end());
    stream.marked.clear();
    for (const size_t i : stream.open) (trace_.items[i].start_ns <= until_ns ? ended : later).push_back(i);
    stream.open = std::move(later);
    close(stream, std::move(ended), now_ns);
  }
  void marker_reached(WatchedStream& stream, const TraceItem& done) {
    Pieces ended;
    auto at = stream.marked.begin();
    for (; at != stream.marked.end() && at->first <= done.a; ++at)
      ended.insert(ended.end(), at->second.begin(), at->second.end());
    stream.marked.erase(stream.marked.begin(), at);
    close(stream, std::move(ended), done.end_ns);
  }
  void close(WatchedStream& stream, Pieces ended, uint64_t now_ns) {
    if (!ended.empty()) {
      uint64_t first_ns = UINT64_MAX;
      for (const size_t i : ended) first_ns = std::min(first_ns, trace_.items[i].start_ns);
      const uint64_t begin_ns = std::max(first_ns, stream.known_ns);
      windows_.push_back({std::move(ended), begin_ns, now_ns - std::min(now_ns, begin_ns)});
    }
    stream.known_ns = std::max(stream.known_ns, now_ns);
  }

  const Trace& trace_;
  std::map<std::pair<uint32_t, uint64_t>, WatchedStream> streams_;  // client, stream
  std::map<std::pair<uint32_t, uint64_t>, std::pair<uint64_t, uint64_t>>
      records_;  // client, event: stream, when
  std::vector<TimedPieces> windows_;
};

// Groups pieces that are alike.
class Kinds {
 public:
  size_t of(const TraceItem& item) {
    return numbers_.try_emplace({item.client, item.kind == abi::kTraceCopy, item.a, item.b}, numbers_.size())
        .first->second;
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::map<std::tuple<uint32_t, bool, uint64_t, uint64_t>, size_t> numbers_;
};

double sum_of(const TimedPieces& window, const std::vector<double>& expected_ns,
              const std::vector<size_t>& kind) {
  double sum = 0;
  for (const size_t i : window.pieces) sum += expected_ns[kind[i]];
  return sum;
}

// The time of one piece of each kind, so that sums fit the windows as well as they can. Multiplicative updates keep
// shares positive.
std::vector<double> expected_times(const std::vector<TimedPieces>& windows, const std::vector<size_t>& kind,
                                   size_t n_kinds) {
  std::vector<double> expected_ns(n_kinds, 1000);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> ratios(n_kinds), counts(n_kinds);
    for (const TimedPieces& window : windows) {
      const double ratio = double(window.length_ns) / sum_of(window, expected_ns, kind);
      for (const size_t i : window.pieces) ratios[kind[i]] += ratio, counts[kind[i]] += 1;
    }
    for (size_t k = 0; k < n_kinds; ++k)
      if (counts[k] > 0) expected_ns[k] = std::max(1.0, expected_ns[k] * ratios[k] / counts[k]);
  }
  return expected_ns;
}

// Slices of a launch lie inside its call, in its thread.
void add_slices_to_launches(const Trace& trace, std::vector<uint64_t>* times) {
  std::map<std::pair<uint32_t, uint32_t>, size_t> launch;  // client, thread: the latest cut launch
  for (size_t i = 0; i < trace.items.size(); ++i) {
    const TraceItem& item = trace.items[i];
    if (was_cut(item) && item.detail == 0) launch[{item.client, item.thread}] = i;
    if (item.kind != abi::kTraceSlice) continue;
    const auto at = launch.find({item.client, item.thread});
    if (at != launch.end() && item.end_ns <= trace.items[at->second].end_ns)
      (*times)[at->second] += (*times)[i];
  }
}

}  // namespace

std::vector<GpuSpan> gpu_spans(const Trace& trace) {
  const std::vector<TimedPieces> windows = Watcher(trace).windows();
  Kinds kinds;
  std::vector<size_t> kind(trace.items.size());
  std::vector<bool> timed;  // by kind
  for (size_t i = 0; i < trace.items.size(); ++i)
    if (is_piece(trace.items[i])) kind[i] = kinds.of(trace.items[i]);
  const std::vector<double> expected_ns = expected_times(windows, kind, kinds.size());
  timed.resize(kinds.size());
  std::vector<GpuSpan> spans(trace.items.size());
  for (const TimedPieces& window : windows) {
    const double ratio = double(window.length_ns) / sum_of(window, expected_ns, kind);
    uint64_t begin_ns = window.begin_ns;
    for (const size_t i : window.pieces) {
      const uint64_t took_ns = std::max<uint64_t>(1, uint64_t(expected_ns[kind[i]] * ratio));
      spans[i] = {begin_ns, begin_ns + took_ns};
      begin_ns += took_ns;
      timed[kind[i]] = true;
    }
  }
  for (size_t i = 0; i < trace.items.size(); ++i) {
    const TraceItem& item = trace.items[i];
    if (!is_piece(item) || spans[i].end_ns != 0) continue;
    const uint64_t took_ns =
        timed[kind[i]] ? uint64_t(expected_ns[kind[i]]) : std::max<uint64_t>(1, item.end_ns - item.start_ns);
    spans[i] = {item.start_ns, item.start_ns + took_ns};
  }
  return spans;
}

std::vector<uint64_t> gpu_times_ns(const Trace& trace) {
  std::vector<uint64_t> times;
  for (const GpuSpan& span : gpu_spans(trace)) times.push_back(span.end_ns - span.start_ns);
  add_slices_to_launches(trace, &times);
  return times;
}

}  // namespace tessera::cli
