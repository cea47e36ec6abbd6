#include "softgpu/timing/trace.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tessera::softgpu::timing {
namespace {

constexpr size_t kMaxSamples = 1 << 20;  // for the quantiles; later operations count in totals only
constexpr const char* kKinds[] = {"kernel", "copy", "action", "join"};

double quantile(std::vector<float> values, double q) {
  if (values.empty()) return 0;
  size_t at = std::min(values.size() - 1, size_t(q * double(values.size())));
  std::nth_element(values.begin(), values.begin() + ptrdiff_t(at), values.end());
  return values[at];
}

std::string csv_safe(std::string text) {
  for (char& c : text)
    if (c == ',' || c == '"' || c == '\n' || c == '\r') c = ';';
  return text;
}

}  // namespace

Trace::Trace(unsigned device, double stretch) : stretch_(stretch) {
  const char* folder = getenv("TESSERA_SOFTGPU_TRACE");
  if (!folder || !*folder) return;
  mkdir(folder, 0755);  // the last level, for convenience
  folder_ = folder;
  base_ = folder_ + "/softgpu-" + std::to_string(getpid());
  if (device > 0) base_ += "-device" + std::to_string(device);
}

uint64_t Trace::lag_ns(const TraceRecord& r) {
  uint64_t late = r.functional_end_ns > r.end_ns ? r.functional_end_ns - r.end_ns : 0;
  return late + r.stall_ns;
}

void Trace::add(TraceRecord r) {
  for (uint64_t* time : {&r.enqueued_ns, &r.start_ns, &r.end_ns, &r.functional_start_ns, &r.functional_end_ns,
                         &r.stall_ns, &r.completed_ns})
    *time = modelled_ns(*time);
  std::lock_guard lock(mutex_);
  uint64_t lag = lag_ns(r), duration = r.end_ns - r.start_ns;
  ++n_ops_;
  changed_ = true;
  bool timed = (r.kind == OpKind::kKernel || r.kind == OpKind::kCopy) && duration > 0;
  if (timed) {
    busy_.emplace_back(r.start_ns, r.end_ns);
    duration_total_ns_ += duration;
  }
  if (timed && r.functional_end_ns) {
    lag_total_ns_ += lag;
    stall_total_ns_ += r.stall_ns;
    lag_max_ns_ = std::max(lag_max_ns_, lag);
    if (lags_.size() < kMaxSamples) lags_.push_back(float(double(lag) / double(duration)));
  }
  uint64_t ready = std::max(r.end_ns, r.functional_end_ns);
  if (delivery_us_.size() < kMaxSamples && r.completed_ns >= ready)
    delivery_us_.push_back(float(double(r.completed_ns - ready) / 1e3));
  waiting_.push_back(std::move(r));
}

void Trace::flush() {
  if (!enabled()) return;
  std::lock_guard lock(mutex_);
  if (!changed_) return;
  changed_ = false;
  if (FILE* file = fopen((base_ + ".csv").c_str(), "ae")) {
    if (!header_written_)
      fputs(
          "kind,name,stream,enqueued_ns,start_ns,end_ns,functional_start_ns,functional_end_ns,lag_ns,lag_"
          "relative,"
          "stall_ns,delivery_ns,code,blocks,threads_per_block,registers_per_thread,shared_bytes_per_block,"
          "warp_instructions_per_block,global_bytes_per_block,tensor_operations_per_block,"
          "fp64_operations_per_block,fp32_operations_per_block,fp16_operations_per_block,image_hash,block_x,"
          "block_y,block_z,dynamic_shared_bytes,tag\n",
          file);
    header_written_ = true;
    for (const TraceRecord& r : waiting_) {
      uint64_t ready = std::max(r.end_ns, r.functional_end_ns), duration = r.end_ns - r.start_ns;
      fprintf(file, "%s,%s,%lu,%lu,%lu,%lu,%lu,%lu,%lu,%.6f,%lu,%ld,%d,", kKinds[int(r.kind)],
              csv_safe(r.name).c_str(), r.stream, r.enqueued_ns, r.start_ns, r.end_ns, r.functional_start_ns,
              r.functional_end_ns, lag_ns(r), duration ? double(lag_ns(r)) / double(duration) : 0.0,
              r.stall_ns, long(r.completed_ns - ready), r.code);
      const bool kernel = r.kind == OpKind::kKernel;  // the others leave these columns 0
      const BlockWork work = kernel ? r.work : BlockWork{};
      fprintf(file, "%lu,%u,%u,%u,%.17g,%.17g,%.17g,%.17g,%.17g,%.17g,0x%016lx,%u,%u,%u,%u,%lu\n",
              kernel ? r.n_blocks : 0, kernel ? r.threads_per_block : 0, kernel ? r.registers_per_thread : 0,
              kernel ? r.shared_bytes_per_block : 0, work.warp_instructions, work.global_bytes,
              work.tensor_operations, work.fp64_operations, work.fp32_operations, work.fp16_operations,
              r.image_hash, r.block[0], r.block[1], r.block[2], r.dynamic_shared_bytes, r.tag);
    }
    fclose(file);
  }
  waiting_.clear();
  // Union of the modelled intervals; they arrive nearly in order, so what is before the last flush is merged
  // away.
  std::sort(busy_.begin(), busy_.end());
  for (auto [start, end] : busy_) {
    start = std::max(start, busy_until_ns_);
    if (end <= start) continue;
    busy_ns_ += end - start;
    busy_until_ns_ = end;
  }
  busy_.clear();
  write_summary();
}

void Trace::write_summary() {
  std::string path = base_ + ".json", temporary = path + ".new";
  FILE* file = fopen(temporary.c_str(), "we");
  if (!file) return;
  float max = lags_.empty() ? 0 : *std::max_element(lags_.begin(), lags_.end());
  double p99 = quantile(lags_, 0.99);
  double total = duration_total_ns_ ? double(lag_total_ns_) / double(duration_total_ns_) : 0;
  fprintf(file,
          "{\"pid\": %d, \"stretch\": %.9g, \"ops\": %lu, \"timed_ops\": %zu, \"modelled_busy_ns\": %lu, "
          "\"lag_p50\": %.6f, "
          "\"lag_p99\": %.6f, \"lag_max\": %.6f, \"lag_max_ns\": %lu, \"lag_total\": %.6f, "
          "\"stall_total_ns\": %lu, "
          "\"delivery_p50_us\": %.1f, \"delivery_p99_us\": %.1f, \"valid\": %s}\n",
          int(getpid()), stretch_, n_ops_, lags_.size(), busy_ns_, quantile(lags_, 0.5), p99, double(max),
          lag_max_ns_, total, stall_total_ns_, quantile(delivery_us_, 0.5), quantile(delivery_us_, 0.99),
          p99 <= 0.05 ? "true" : "false");
  fclose(file);
  rename(temporary.c_str(), path.c_str());
}

}  // namespace tessera::softgpu::timing
