// Traces operations and the lateness of their functional execution: one CSV line per operation and a JSON summary per
// process, in the folder that TESSERA_SOFTGPU_TRACE names. Off without it. Written by the engine's threads; own lock;
// nothing is written on the path of an operation, flush() does that once a second and at the end.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/timing/work.h"

namespace tessera::softgpu::timing {

struct TraceRecord {
  OpKind kind = OpKind::kJoin;
  std::string name;
  uint64_t stream = 0;
  uint64_t enqueued_ns = 0, start_ns = 0, end_ns = 0;       // CLOCK_MONOTONIC, as all times here
  uint64_t functional_start_ns = 0, functional_end_ns = 0;  // 0: no body
  uint64_t stall_ns = 0;                                    // the model waited for the cost of a block
  uint64_t completed_ns = 0;                                // when the process knew
  int code = 0;
  // Kernels: the launch, and its mean work per block as executed.
  uint64_t n_blocks = 0;
  uint32_t threads_per_block = 0, registers_per_thread = 0, shared_bytes_per_block = 0;
  BlockWork work;
  uint64_t image_hash = 0;
  std::array<uint32_t, 3> block{};
  uint32_t dynamic_shared_bytes = 0;
  uint64_t tag = 0;
};

class Trace {
 public:
  // Reads TESSERA_SOFTGPU_TRACE. `device`: its number in the file's name. What is written is modelled time: a
  // device that is stretched leaves the same trace.
  explicit Trace(unsigned device = 0, double stretch = 1);
  bool enabled() const { return !folder_.empty(); }
  void add(TraceRecord record);
  void flush();

  // Lag: what functional execution exceeded the modelled end by (and what the model waited for it). 0 is
  // good.
  static uint64_t lag_ns(const TraceRecord& record);

 private:
  void write_summary();

  uint64_t modelled_ns(uint64_t real_ns) const { return uint64_t(double(real_ns) / stretch_); }

  const double stretch_;
  std::string folder_, base_;
  std::mutex mutex_;  // guards everything below
  std::vector<TraceRecord> waiting_;
  bool header_written_ = false, changed_ = false;
  std::vector<float> lags_;  // relative, of operations with a body and a modelled duration
  std::vector<float> delivery_us_;
  std::vector<std::pair<uint64_t, uint64_t>> busy_;  // modelled intervals not merged yet
  uint64_t n_ops_ = 0, lag_total_ns_ = 0, duration_total_ns_ = 0, lag_max_ns_ = 0, busy_ns_ = 0,
           busy_until_ns_ = 0;
  uint64_t stall_total_ns_ = 0;
};

}  // namespace tessera::softgpu::timing
