// The memory of a modelled GPU that holds fewer models than there are: a job needs its model there, loads one after the
// other, and idle models make room, the one first that was used least lately. Weights have a copy in the host's memory, so nothing
// is written back. What a job needs besides (activations, KV cache) counts as part of its model. Single thread;
// virtual time; owned by World.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::simulator {

class ModelMemory {
 public:
  // `capacity_bytes` 0 = no limit and no loading.
  ModelMemory(uint64_t capacity_bytes, double bytes_per_ns, const std::vector<uint64_t>& model_bytes);

  static constexpr uint64_t kNoRoom = UINT64_MAX;
  // A job of this model begins. When its model is there; kNoRoom: ask again after another job has ended.
  uint64_t begin(uint32_t model, uint64_t now_ns);
  void end(uint32_t model, uint64_t now_ns);
  uint64_t loads() const { return loads_; }

 private:
  struct Model {
    uint64_t bytes = 0, last_used_ns = 0;
    bool loaded = false, in_use = false;
  };
  bool make_room(uint64_t bytes);

  uint64_t capacity_bytes_, taken_bytes_ = 0;
  double bytes_per_ns_;
  std::vector<Model> models_;
  uint64_t loader_free_ns_ = 0, loads_ = 0;
};

}  // namespace tessera::simulator
