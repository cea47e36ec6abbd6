// A model in virtual time on a small device with round figures, and short ways to give it work. For model
// tests only.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "profiles/gpu_description.h"
#include "softgpu/timing/model.h"

namespace tessera::softgpu::timing {

// 2 SMs, each 1 warp instruction per ns, one warp can fill it; memory 1 byte per ns; 4 blocks and 1024
// threads per SM.
inline profiles::GpuDescription small_gpu() {
  profiles::GpuDescription gpu;
  gpu.name = "small";
  gpu.sm.count = 2;
  gpu.sm.clock_hz = 1e9;
  gpu.sm.issue_per_clock = 1;
  gpu.sm.warp_issue_per_clock = 1;
  gpu.sm.bytes_per_clock = 1000;
  gpu.sm.max_threads = 1024;
  gpu.sm.max_blocks = 4;
  gpu.sm.registers = 65536;
  gpu.sm.shared_bytes = 65536;
  gpu.block.reserved_shared_bytes = 0;
  gpu.memory.bytes_per_s = 1e9;
  gpu.transfer.h2d_bytes_per_s = gpu.transfer.d2h_bytes_per_s = 1e9;
  gpu.peak.tensor_fp16 = 2e12;  // 1000 per ns and SM
  gpu.time.timeslice_ns = 2e6;
  gpu.time.switch_ns = 1e5;
  return gpu;
}

inline profiles::GpuDescription shipped_gpu(const std::string& name) {
  auto gpu = profiles::load_gpu_description(TESSERA_SOURCE_DIR "/profiles/gpus/" + name + ".toml");
  EXPECT_TRUE(gpu.ok()) << gpu.error().text;
  return *gpu;
}

struct Interval {
  uint64_t start = 0, end = 0, stall = 0;
  uint64_t duration() const { return end - start; }
};

class Device {
 public:
  explicit Device(Mode mode, const profiles::GpuDescription& gpu = small_gpu()) : model(gpu, mode, 0) {}

  ModelOp kernel(uint64_t blocks, uint32_t threads, BlockWork work, int priority = 0) {
    ModelOp op;
    op.kind = OpKind::kKernel;
    op.n_blocks = blocks;
    op.threads_per_block = threads;
    op.registers_per_thread = 0;
    op.work_known = true;
    op.work = work;
    op.priority = priority;
    return op;
  }
  ModelOp copy(uint64_t bytes, CopyDirection direction) {
    ModelOp op;
    op.kind = OpKind::kCopy;
    op.bytes = bytes;
    op.direction = direction;
    return op;
  }
  uint64_t submit(ClientId client, ModelOp op, std::vector<uint64_t> deps = {}) {
    op.id = ++last_[client];
    op.deps = std::move(deps);
    EXPECT_TRUE(model.submit(client, op));
    return op.id;
  }
  uint64_t submit_at(uint64_t time, ClientId client, ModelOp op, std::vector<uint64_t> deps = {}) {
    model.advance_to(time);
    return submit(client, std::move(op), std::move(deps));
  }
  // Runs until nothing more can happen.
  void run() {
    for (uint64_t wake; (wake = model.next_wake_ns()) != UINT64_MAX;) model.run_until(wake);
    collect();
  }
  bool ended(ClientId client, uint64_t op) {
    collect();
    return ends_.count({client, op}) > 0;
  }
  Interval of(ClientId client, uint64_t op) {
    collect();
    auto found = ends_.find({client, op});
    EXPECT_NE(found, ends_.end()) << "operation " << op << " of client " << client << " has not ended";
    return found == ends_.end() ? Interval{} : found->second;
  }
  const std::map<std::pair<ClientId, uint64_t>, Interval>& all() {
    collect();
    return ends_;
  }

  Model model;

 private:
  void collect() {
    for (const Ended& e : model.take_ended()) ends_[{e.client, e.op}] = {e.start_ns, e.end_ns, e.stall_ns};
  }
  std::map<ClientId, uint64_t> last_;
  std::map<std::pair<ClientId, uint64_t>, Interval> ends_;
};

}  // namespace tessera::softgpu::timing
