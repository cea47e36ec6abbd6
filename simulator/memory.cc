#include "simulator/memory.h"

#include <algorithm>

namespace tessera::simulator {

ModelMemory::ModelMemory(uint64_t capacity_bytes, const MemoryLink& link,
                         const std::vector<uint64_t>& model_bytes)
    : capacity_bytes_(capacity_bytes), link_(link), models_(model_bytes.size()) {
  for (size_t i = 0; i < models_.size(); ++i) models_[i].bytes = model_bytes[i];
}

void ModelMemory::use_link(uint64_t bytes, double bytes_per_ns) {
  link_free_ns_ += link_.move_ns + uint64_t(double(bytes) / bytes_per_ns);
}

// False, and nothing changes, if what is in use leaves too little.
bool ModelMemory::make_room(uint64_t bytes) {
  uint64_t idle_bytes = 0;
  for (const Model& m : models_)
    if (m.loaded && !m.in_use) idle_bytes += m.bytes;
  if (taken_bytes_ - idle_bytes + bytes > capacity_bytes_) return false;
  while (taken_bytes_ + bytes > capacity_bytes_) {
    Model* oldest = nullptr;
    for (Model& m : models_)
      if (m.loaded && !m.in_use && (oldest == nullptr || m.last_used_ns < oldest->last_used_ns)) oldest = &m;
    oldest->loaded = false;
    taken_bytes_ -= oldest->bytes;
    if (link_.park_bytes_per_ns != 0) use_link(oldest->bytes, link_.park_bytes_per_ns);
  }
  return true;
}

uint64_t ModelMemory::begin(uint32_t model, uint64_t now_ns) {
  if (capacity_bytes_ == 0) return now_ns;
  Model& m = models_[model];
  if (m.loaded) {
    m.in_use = true;
    return now_ns;
  }
  link_free_ns_ = std::max(now_ns, link_free_ns_);
  if (!make_room(m.bytes)) return kNoRoom;
  m.loaded = m.in_use = true;
  taken_bytes_ += m.bytes;
  use_link(m.bytes, link_.load_bytes_per_ns);
  ++loads_;
  return link_free_ns_;
}

void ModelMemory::end(uint32_t model, uint64_t now_ns) {
  models_[model].in_use = false;
  models_[model].last_used_ns = now_ns;
}

}  // namespace tessera::simulator
