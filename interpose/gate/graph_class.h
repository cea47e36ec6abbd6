// Classes of executable graphs, for the pulse of a protected program: those of the graphs made last, by handle. Any thread
// may call it; a torn or overwritten entry is an unknown class.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "base/hash.h"

namespace tessera::gate {

// Handle with the class in its two lowest bits, which are zero in every handle (they are pointers to more than a byte).
inline constexpr uint32_t kGraphClasses = 1024;
extern constinit std::atomic<uint64_t> g_graph_classes[kGraphClasses];

inline std::atomic<uint64_t>& graph_class_of(uint64_t graph) {
  return g_graph_classes[base::slot_of(graph, 10)];
}

inline void note_graph_class(uint64_t graph, uint32_t resource_class) {
  graph_class_of(graph).store((graph & ~3ull) | (resource_class & 3u), std::memory_order_relaxed);
}

inline uint32_t graph_class(uint64_t graph) {  // 0 = not known
  const uint64_t noted = graph_class_of(graph).load(std::memory_order_relaxed);
  return (noted & ~3ull) == graph ? uint32_t(noted & 3u) : 0;
}

// The class that has most of something; 0 = nothing has a known one.
template <class T>
uint32_t leading_class(const T (&by_class)[4]) {
  const auto known = std::span(by_class).subspan(1);
  const auto most = std::ranges::max_element(known);
  return *most == 0 ? 0 : uint32_t(most - known.begin()) + 1;
}

}  // namespace tessera::gate
