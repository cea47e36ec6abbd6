#include "cli/trace/chakra.h"

#include <algorithm>
#include <set>

#include "cli/trace/gpu_times.h"

namespace tessera::cli {
namespace {

namespace abi = ipc::abi;
namespace chakra = simulator::chakra;
using chakra::Node;
using chakra::NodeType;

constexpr char kSchemaVersion[] = "0.0.4";

void add_dependency(std::vector<uint64_t>* list, uint64_t id) {
  if (id != 0 && std::find(list->begin(), list->end(), id) == list->end()) list->push_back(id);
}

// Records one client.
class Recorder {
 public:
  Recorder(const Trace& trace, uint32_t client, const std::vector<uint64_t>& times_ns)
      : trace_(trace), client_(client), times_ns_(times_ns), origin_ns_(trace.items.front().start_ns) {
    for (size_t i = 0; i < trace_.items.size(); ++i) {
      const TraceItem& item = trace_.items[i];
      if (item.client != client_) continue;
      if (item.kind == abi::kTraceBurst) bursts_.push_back({item.start_ns, item.end_ns});
      if (was_cut(item)) cut_.insert(item.a);
      if (item.thread != 0) next_in_thread_[item.thread].push_back(item.start_ns);
    }
  }

  chakra::Trace record() {
    const TraceClient& client = trace_.clients.at(client_);
    out_.version = kSchemaVersion;
    out_.attributes = {{"tool", std::string("tessera")},
                       {"name", client.name},
                       {"pid", uint64_t(client.pid)},
                       {"priority", uint64_t(client.priority)},
                       {"gpu", client.gpu}};
    for (size_t i = 0; i < trace_.items.size(); ++i)
      if (trace_.items[i].client == client_ && trace_.items[i].detail == 0)
        see(trace_.items[i], times_ns_[i]);
    return std::move(out_);
  }

 private:
  void see(const TraceItem& item, uint64_t gpu_ns) {
    switch (item.kind) {
      case abi::kTraceLaunch:
      case abi::kTraceCopy:
        work(item, gpu_ns);
        if (item.kind == abi::kTraceCopy && (item.c & abi::kTraceCopyEnded))
          host(item, {last_of_[item.stream]});
        break;
      case abi::kTraceRecord:
        recorded_[item.a] = last_of_[item.stream];
        break;
      case abi::kTraceWait:
        if (const auto at = recorded_.find(item.a); at != recorded_.end())
          add_dependency(&waits_[item.stream], at->second);
        break;
      case abi::kTraceSync:
        host(item, waited_for(item));
        break;
      default:
        break;
    }
  }

  void work(const TraceItem& item, uint64_t gpu_ns) {
    Node node;
    node.name = item_title(trace_, item);
    node.type = item.kind == abi::kTraceLaunch ? NodeType::kCompute
                : item.c & abi::kTraceCopyOut  ? NodeType::kMemoryStore
                                               : NodeType::kMemoryLoad;
    add_dependency(&node.data_dependencies, last_of_[item.stream]);
    for (const uint64_t id : waits_[item.stream]) add_dependency(&node.data_dependencies, id);
    waits_[item.stream].clear();
    add_dependency(&node.control_dependencies, host_of_[item.thread]);
    const auto stream = streams_.try_emplace(item.stream, int64_t(streams_.size())).first->second;
    node.attributes = {{"is_cpu_op", false}, {"stream", stream}, {"tid", int64_t(item.thread)}};
    if (item.kind == abi::kTraceLaunch) {
      node.attributes.push_back({"blocks", item.b});
      node.attributes.push_back({"cut", cut_.contains(item.a)});
    } else {
      node.attributes.push_back({"tensor_size", item.b});
    }
    if (const size_t burst = burst_at(item.start_ns)) node.attributes.push_back({"burst", uint64_t(burst)});
    last_of_[item.stream] = append(std::move(node), item.start_ns, gpu_ns);
  }

  // The thread's time from the return of a call that waited to its next call.
  void host(const TraceItem& item, const std::vector<uint64_t>& waited_for) {
    Node node;
    node.name = "host after " + item_title(trace_, item);
    node.type = NodeType::kCompute;
    for (const uint64_t id : waited_for) add_dependency(&node.data_dependencies, id);
    add_dependency(&node.control_dependencies, host_of_[item.thread]);
    node.attributes = {{"is_cpu_op", true}, {"tid", int64_t(item.thread)}};
    const auto& calls = next_in_thread_[item.thread];
    const auto next = std::lower_bound(calls.begin(), calls.end(), item.end_ns);
    uint64_t until_ns = next == calls.end() ? item.end_ns : *next;
    if (const size_t burst = burst_at(item.start_ns))  // between bursts it waits for its users
      until_ns = std::clamp(until_ns, item.end_ns, std::max(item.end_ns, bursts_[burst - 1].second));
    host_of_[item.thread] = append(std::move(node), item.end_ns, until_ns - item.end_ns);
  }

  std::vector<uint64_t> waited_for(const TraceItem& item) const {
    const auto value = [](const std::map<uint64_t, uint64_t>& map, uint64_t key) {
      const auto at = map.find(key);
      return at == map.end() ? 0 : at->second;
    };
    if (item.stream != 0) return {value(last_of_, item.stream)};
    if (item.b != 0) return {value(recorded_, item.b)};
    std::vector<uint64_t> all;
    for (const auto& [stream, id] : last_of_) all.push_back(id);
    return all;
  }

  uint64_t append(Node node, uint64_t start_ns, uint64_t duration_ns) {
    node.id = out_.nodes.size() + 1;  // 0: none
    start_ns -= std::min(start_ns, origin_ns_);
    node.start_us = start_ns / 1000;
    node.duration_us = duration_ns / 1000;
    node.attributes.push_back({"start_ns", start_ns});
    node.attributes.push_back({"duration_ns", duration_ns});
    out_.nodes.push_back(std::move(node));
    return out_.nodes.back().id;
  }

  size_t burst_at(uint64_t ns) const {  // from 1 on; 0: none
    const auto after = std::upper_bound(bursts_.begin(), bursts_.end(), ns,
                                        [](uint64_t at, const auto& burst) { return at < burst.first; });
    return after != bursts_.begin() && ns <= std::prev(after)->second ? size_t(after - bursts_.begin()) : 0;
  }

  const Trace& trace_;
  const uint32_t client_;
  const std::vector<uint64_t>& times_ns_;
  const uint64_t origin_ns_;
  std::vector<std::pair<uint64_t, uint64_t>> bursts_;         // from, to; by start
  std::set<uint64_t> cut_;                                    // functions
  std::map<uint32_t, std::vector<uint64_t>> next_in_thread_;  // starts of calls
  std::map<uint64_t, uint64_t> last_of_;                      // stream: node
  std::map<uint64_t, std::vector<uint64_t>> waits_;           // stream: nodes
  std::map<uint64_t, uint64_t> recorded_;                     // event: node
  std::map<uint32_t, uint64_t> host_of_;                      // thread: node
  std::map<uint64_t, int64_t> streams_;                       // numbers, as they come
  chakra::Trace out_;
};

}  // namespace

std::vector<chakra::Trace> to_chakra(const Trace& trace) {
  std::set<uint32_t> launching;
  for (const TraceItem& item : trace.items)
    if (item.kind == abi::kTraceLaunch) launching.insert(item.client);
  if (launching.empty()) return {};
  const std::vector<uint64_t> times_ns = gpu_times_ns(trace);
  std::vector<chakra::Trace> out;
  for (const uint32_t client : launching) out.push_back(Recorder(trace, client, times_ns).record());
  return out;
}

}  // namespace tessera::cli
