// State per client, kept in the order of the observation: finding it costs a comparison, not a lookup.
// Clients that are gone lose their state, new ones start with a default one. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

template <class State>
class Slots {
 public:
  // Afterwards (*this)[i] belongs to clients[i]. A client that comes twice shares nothing with its double.
  void follow(const std::vector<ClientView>& clients) {
    size_t i = 0;
    const size_t n = clients.size();
    while (i < n && i < rows_.size() && rows_[i].id == clients[i].id) ++i;
    if (i == n && n == rows_.size()) return;
    std::unordered_map<uint64_t, State> kept;  // the list changed: rare
    for (size_t k = i; k < rows_.size(); ++k) kept.emplace(rows_[k].id, std::move(rows_[k].state));
    rows_.erase(rows_.begin() + std::ptrdiff_t(i), rows_.end());
    for (; i < n; ++i) {
      auto it = kept.find(clients[i].id);
      rows_.push_back({clients[i].id, it == kept.end() ? State{} : std::move(it->second)});
      if (it != kept.end()) kept.erase(it);
    }
  }
  State& operator[](size_t i) { return rows_[i].state; }
  const State& operator[](size_t i) const { return rows_[i].state; }
  size_t size() const { return rows_.size(); }
  const State* find(uint64_t id) const {  // for tests
    for (const auto& row : rows_)
      if (row.id == id) return &row.state;
    return nullptr;
  }

 private:
  struct Row {  // not a std::pair: clang asks that for constructors while State may still be incomplete
    uint64_t id;
    State state;
  };
  std::vector<Row> rows_;
};

}  // namespace tessera::policy
