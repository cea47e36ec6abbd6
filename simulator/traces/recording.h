// A recording is what profilers record of a program, whatever their format: launches with their shape, their host call and their time
// on the GPU; calls that wait; ranges. Readers (csv.cc, kineto.cc, nsight.cc) fill it in; workload.cc makes a program of
// the simulator of it. Plain data; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tessera::simulator::traces {

inline constexpr int64_t kNotRecorded = std::numeric_limits<int64_t>::min();
inline constexpr int32_t kNoStep = -1;
inline constexpr uint32_t kAnyDevice = UINT32_MAX;  // of a wait: nobody said for which
inline constexpr size_t kMostNameLength = 512;      // of a kernel's name, what is kept of it
inline constexpr size_t kMostEvents = 4'000'000;    // 0.5 GB; what comes after is left out, and that is said

enum class EventKind : uint8_t { kKernel, kCopy, kSet, kWait };

struct Event {
  EventKind kind = EventKind::kKernel;
  bool may_block = false;  // a copy whose call may return only after the copy
  uint32_t name = 0;       // of Recording::names
  int32_t step = kNoStep;  // of Recording::steps
  uint32_t device = 0;
  uint64_t stream = 0;
  uint64_t graph = 0;  // number of the graph launch that it belongs to; 0 = none
  int64_t call_ns = kNotRecorded, call_length_ns = 0;  // of the host
  int64_t start_ns = 0, length_ns = 0;                 // on the GPU; not of waits
  uint64_t blocks = 0;                                 // 0 = the format does not say
  uint32_t threads_per_block = 0, registers = 0;       // registers: per thread
  uint64_t shared_bytes = 0;                           // per block

  bool on_gpu() const { return kind != EventKind::kWait; }
  int64_t end_ns() const { return start_ns + length_ns; }
  int64_t call_end_ns() const { return call_ns + call_length_ns; }
};

struct Range {  // of the host, by name: a step of the profiler, what the program annotated
  std::string name;
  int64_t start_ns = 0, end_ns = 0;
};

struct Recording {
  std::string file, format;
  std::map<uint32_t, std::string> devices;  // names by number, as the file has them; may be empty
  std::vector<std::string> names;
  std::vector<std::string> steps;  // marks of iterations that the file has for single events
  std::vector<Event> events;
  std::vector<Range> ranges;
  std::vector<std::string> remarks;  // what was left out and why, for people
};

// Names by their text, once each.
class Names {
 public:
  explicit Names(std::vector<std::string>* out) : out_(out) {}
  uint32_t index(std::string_view text) {
    const auto [at, added] = known_.try_emplace(std::string(text), uint32_t(out_->size()));
    if (added) out_->push_back(at->first);
    return at->second;
  }

 private:
  std::map<std::string, uint32_t> known_;
  std::vector<std::string>* out_;
};

// Tells what a call of the runtime or the driver does, by its name.
inline bool call_waits(std::string_view call) {
  return call.find("Synchronize") != std::string_view::npos;
}
inline bool call_launches(std::string_view call) {
  for (const char* part : {"Launch", "emcpy", "emset"})
    if (call.find(part) != std::string_view::npos) return true;
  return false;
}
inline bool call_is_of_graph(std::string_view call) {
  return call.find("GraphLaunch") != std::string_view::npos;
}

// A copy of pageable memory, or by a call that is not asynchronous.
inline bool copy_may_block(std::string_view copy, std::string_view call) {
  const auto has = [](std::string_view text, const char* part) {
    return text.find(part) != std::string_view::npos;
  };
  if (has(copy, "DtoD") || has(copy, "Device-to-Device") || has(copy, "Pinned")) return false;
  return has(copy, "Pageable") || !has(call, "Async");
}

}  // namespace tessera::simulator::traces
