// Measures profiles in three places: records that the daemon condenses per second, one lookup of a launch in the learnt
// table, loading a profile of 100,000 kernels.
#include <cstdlib>
#include <string>

#include "base/kernel_key.h"
#include "ipc/channel/learnt.h"
#include "ipc/channel/map.h"
#include "profiles/kernel_profile.h"
#include "scheduler_daemon/learning/records.h"
#include "tests/bench/timing.h"

using namespace tessera;

namespace {

constexpr uint64_t kShapes = 1000;

uint64_t key_of(uint64_t i, std::string* name) {
  *name = "kernel_" + std::to_string(i);
  return base::launch_key(base::kernel_hash(7, name->data(), name->size()), base::grid_bucket(100), 128, 0);
}

double records_per_s(uint64_t n) {
  learning::Records records;
  const learning::UserGpu from{1000, "GPU", "driver"};
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < kShapes; ++i) {
    learning::Seen seen;
    seen.key = key_of(i, &seen.name);
    seen.image_hash = 7;
    seen.blocks = 100;
    seen.block[0] = 128;
    records.seen(from, seen);
    keys.push_back(seen.key);
  }
  ipc::abi::Record record{};
  record.kind = ipc::abi::kRecordKernel;
  record.blocks = 100;
  const uint64_t start_ns = base::now_ns();
  for (uint64_t i = 0; i < n; ++i) {
    record.key = keys[base::mix64(i) % kShapes];
    record.duration_ns = 10'000 + base::mix64(i) % 5000;
    records.record(from, record);
  }
  return double(n) * 1e9 / double(base::now_ns() - start_ns);
}

double lookup_ns(uint64_t n) {
  std::vector<ipc::abi::LearntSlot> slots;
  std::string name;
  for (uint64_t i = 0; i < kShapes; ++i) slots.push_back({key_of(i, &name), 1000 + i, 0, {}});
  auto file = ipc::create_learnt(slots);
  auto mapped = ipc::map_shared(file->fd.get(), file->bytes, ipc::Access::kReadOnly);
  auto table = ipc::check_learnt(mapped->data(), mapped->bytes());
  uint64_t sum = 0;
  const uint64_t start_ns = base::now_ns();
  for (uint64_t i = 0; i < n; ++i) sum += table->find(slots[base::mix64(i) % kShapes].key)->block_ps;
  const double ns = double(base::now_ns() - start_ns) / double(n);
  if (sum == 0) std::abort();  // keeps the loop
  return ns;
}

double load_ms(uint64_t kernels) {
  profiles::Profile profile;
  for (uint64_t i = 0; i < kernels; ++i) {
    profiles::KernelKey key;
    key.image_hash = 7;
    key.kernel = "kernel_" + std::to_string(i);
    key.gpu = "GPU";
    profiles::KernelProfile& record = profile.kernels[key];
    for (uint64_t s = 0; s < 8; ++s) record.duration.add(10'000 + base::mix64(i * 8 + s) % 2000);
  }
  const std::string text = profiles::format_profile(profile);
  const uint64_t start_ns = base::now_ns();
  const auto loaded = profiles::parse_profile(text, "bench");
  if (!loaded || loaded->kernels.size() != kernels) std::abort();
  return double(base::now_ns() - start_ns) / 1e6;
}

}  // namespace

int main() {
  bench::Report report;
  report.add("profiles.records_per_s", records_per_s(2'000'000));
  report.add("profiles.lookup_ns", lookup_ns(20'000'000));
  report.add("profiles.load_ms_100k_kernels", load_ms(100'000));
  report.print();
  return 0;
}
