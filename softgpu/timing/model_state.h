// Private state of Model, shared by model.cc (operations, time) and model_device.cc (SMs, rates, slices).
#pragma once

#include <cmath>
#include <limits>

#include "softgpu/timing/model.h"

namespace tessera::softgpu::timing {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Model::Op {
  ModelOp spec;
  Client* client = nullptr;
  uint32_t deps_left = 0;
  std::vector<uint64_t> dependents;  // ids, same client
  bool started = false, model_ended = false, functional_done = false;
  bool known = false;  // cost of a block
  double start = 0, stall = 0;
  uint64_t sequence = 0;  // order of becoming ready

  // kernels (device-to-device copies are one "block" without an SM)
  uint64_t pending = 0, running = 0, finished = 0;  // blocks; pending + running + finished = n_blocks
  double debt = 0;  // blocks of work that finished blocks did too little (or, negative, too much)
  uint32_t threads = 0, registers = 0, shared_bytes = 0;        // one block on its SM
  uint32_t sm_begin = 0, sm_end = 0;                            // SMs it may use
  uint32_t per_sm = 1;                                          // how many fit on an empty SM
  double issue_ns = 0, tensor_ns = 0, bytes = 0, alone_ns = 1;  // of one block; the first two on a whole SM
  double device_ns = 0;                                         // lower bound per block with the whole device
};

struct Model::Client {
  ClientId id = 0;
  int priority = 0;
  Space* space = nullptr;
  uint64_t last_id = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Op>> ops;
  std::unordered_map<uint64_t, BlockWork> costs;  // by cost_key
};

struct Model::Sm {
  uint32_t threads = 0, blocks = 0, registers = 0, shared_bytes = 0;  // in use
};

struct Model::Group {
  Op* op = nullptr;
  int sm = -1;         // -1: a device-to-device copy
  uint32_t n = 0;      // blocks
  double left = 1;     // of each block, 1 = all of it
  double rate = 0;     // blocks per ns, of each block
  double stalled = 0;  // ns that it sat there with unknown cost
};

struct Model::Space {
  std::vector<Sm> sms;
  std::vector<Group> groups;
  std::vector<Op*> ready;    // kernels with pending blocks, in dispatch order
  uint32_t n_launching = 0;  // kernels in their launch overhead
  bool dirty = true;         // rates are out of date
  bool busy() const { return !groups.empty() || !ready.empty() || n_launching > 0; }
};

struct Model::Engine {
  std::deque<Op*> queue;  // front is running once `end` is set
  double bytes_per_ns = 1;
  double end = kNever;
};

struct Model::Delayed {
  double at;
  uint64_t sequence;
  Op* op;
  bool operator<(const Delayed& o) const {
    return at != o.at ? at > o.at : sequence > o.sequence;
  }  // min-heap
};

}  // namespace tessera::softgpu::timing
