// The memory of a modelled GPU that holds fewer models than there are: a job needs its model there, and idle models make room, the
// one first that was used least lately. They are forgotten, where the host has a copy of all that is in them, or parked: written
// to the host. What goes and what comes follow one another, as room has to be made first. What a job needs besides
// (activations, KV cache) counts as part of its model. Single thread; virtual time; owned by World.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::simulator {

struct MemoryLink {
  double load_bytes_per_ns = 20;  // a model into the GPU's memory; 1 = 1 GB/s
  double park_bytes_per_ns = 0;   // an idle one out of it; 0: the host has a copy, nothing is written
  uint64_t move_ns = 0;           // what each of both takes besides, as a checkpoint and its restore do
};

class ModelMemory {
 public:
  // `capacity_bytes` 0 = no limit and no loading.
  ModelMemory(uint64_t capacity_bytes, const MemoryLink& link, const std::vector<uint64_t>& model_bytes);

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
  void use_link(uint64_t bytes, double bytes_per_ns);

  uint64_t capacity_bytes_, taken_bytes_ = 0;
  MemoryLink link_;
  std::vector<Model> models_;
  uint64_t link_free_ns_ = 0, loads_ = 0;
};

}  // namespace tessera::simulator
