// The collector behind our record interface, and CUPTI's records in front of it: synthetic buffers of every
// kind, dropped records, any order, kinds nobody knows.
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>

#include "profiles/collector/collector.h"
#include "profiles/collector/cupti_api.h"
#include "profiles/collector/cupti_decode.h"
#include "profiles/profile_file.h"

namespace tessera::profiles {
namespace {

constexpr auto kFuture = CUpti_ActivityKind(CUPTI_ACTIVITY_KIND_COUNT + 5);

// A buffer as CUPTI fills it, and its walk: records of different length one behind the other.
class Buffer {
 public:
  template <class Record>
  void add(const Record& record) {
    sizes_.push_back(sizeof record);
    const auto* at = reinterpret_cast<const uint8_t*>(&record);
    bytes_.insert(bytes_.end(), at, at + sizeof record);
    bytes_.resize((bytes_.size() + 7) / 8 * 8);
  }
  uint8_t* data() {
    current_ = this;
    return bytes_.data();
  }
  size_t bytes() const { return bytes_.size(); }
  static CUptiResult next(uint8_t* buffer, size_t valid_bytes, CUpti_Activity** record) {
    size_t at = 0;
    for (size_t size : current_->sizes_) {
      if (at >= valid_bytes) break;
      auto* here = reinterpret_cast<CUpti_Activity*>(buffer + at);
      at += (size + 7) / 8 * 8;
      if (*record && here <= *record) continue;
      *record = here;
      return CUPTI_SUCCESS;
    }
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
  }

 private:
  inline static Buffer* current_ = nullptr;
  std::vector<uint8_t> bytes_;
  std::vector<size_t> sizes_;
};

CUpti_ActivityKernel10 kernel(const char* name, uint64_t start, uint64_t end, uint32_t device = 0) {
  CUpti_ActivityKernel10 k{};
  k.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  k.name = name;
  k.start = start;
  k.end = end;
  k.deviceId = device;
  k.gridX = 10, k.gridY = 2, k.gridZ = 1;
  k.blockX = 128, k.blockY = 2, k.blockZ = 1;
  k.registersPerThread = 32;
  k.staticSharedMemory = 1024;
  k.dynamicSharedMemory = 2048;
  return k;
}

template <class Record>
Record transfer(CUpti_ActivityKind kind, uint64_t bytes) {
  Record r{};
  r.kind = kind;
  r.bytes = bytes;
  r.start = 100;
  r.end = 200;
  return r;
}

Collector collector() {
  Collector out;
  DeviceFacts facts{"Some GPU", "CUDA 13.0", Origin::kCupti, {}};
  facts.limits.sm = {
      .count = 4, .max_threads = 2048, .max_blocks = 32, .registers = 65536, .shared_bytes = 233472};
  out.device(0, facts);
  facts.gpu = "Another GPU";
  out.device(1, facts);
  return out;
}

void fill(Buffer& buffer) {
  for (uint64_t i = 0; i < 5; ++i) buffer.add(kernel("gemm", 1000 * i, 1000 * i + 500));
  auto serial = kernel("gemm", 9000, 9500);
  serial.kind = CUPTI_ACTIVITY_KIND_KERNEL;
  buffer.add(serial);
  buffer.add(kernel("gemm", 100, 400, 1));  // the same kernel on the other GPU
  buffer.add(kernel("untimed", 0, 0));      // CUPTI had no timestamps
  buffer.add(kernel("backwards", 500, 400));
  buffer.add(transfer<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY, 1 << 20));
  buffer.add(transfer<CUpti_ActivityMemcpyPtoP4>(CUPTI_ACTIVITY_KIND_MEMCPY2, 1 << 10));
  buffer.add(transfer<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET, 64));
  CUpti_ActivityGraphTrace2 graph{};
  graph.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
  graph.start = 10;
  graph.end = 5010;
  buffer.add(graph);
  CUpti_ActivityKernel10 future{};
  future.kind = kFuture;
  buffer.add(future);
  CUpti_ActivityContext3 context{};  // a kind that exists and is not ours
  context.kind = CUPTI_ACTIVITY_KIND_CONTEXT;
  buffer.add(context);
}

TEST(Collector, EveryKindOfActivityRecord) {
  Buffer buffer;
  fill(buffer);
  Collector c = collector();
  EXPECT_EQ(
      for_each_activity(&Buffer::next, buffer.data(), buffer.bytes(), [&](const Activity& a) { c.add(a); }),
      15u);
  c.dropped(3);
  ASSERT_EQ(c.profile().kernels.size(), 2u);  // one per GPU
  const auto& [key, record] = *std::find_if(c.profile().kernels.begin(), c.profile().kernels.end(),
                                            [](const auto& k) { return k.first.gpu == "Some GPU"; });
  EXPECT_EQ(key.kernel, "gemm");
  EXPECT_EQ(key.block, (std::array<uint32_t, 3>{128, 2, 1}));
  EXPECT_EQ(key.grid_bucket, grid_bucket(20));
  EXPECT_EQ(key.dynamic_shared_bytes, 2048u);
  EXPECT_EQ(key.origin, Origin::kCupti);
  EXPECT_EQ(record.duration.samples, 6u);
  EXPECT_DOUBLE_EQ(record.duration.total_ns, 3000);
  EXPECT_EQ(record.registers_per_thread, 32u);
  EXPECT_EQ(record.shared_bytes_per_block, 3072u);
  EXPECT_DOUBLE_EQ(record.occupancy, 1.0);
  EXPECT_EQ(c.untimed(), 2u);
  EXPECT_EQ(c.unknown(), 2u);
  EXPECT_EQ(c.dropped(), 3u);
  EXPECT_EQ(c.totals(ActivityKind::kCopy).count, 2u);
  EXPECT_EQ(c.totals(ActivityKind::kCopy).bytes, (1u << 20) + (1u << 10));
  EXPECT_EQ(c.totals(ActivityKind::kSet).bytes, 64u);
  EXPECT_DOUBLE_EQ(c.totals(ActivityKind::kGraph).total_ns, 5000);
  // Facts that are not about kernels are in the file too, and survive.
  const std::string text = format_profile(c.with_totals());
  auto back = parse_profile(text, "x");
  ASSERT_TRUE(back.ok()) << back.error().text;
  EXPECT_THAT(back->unknown_fields, testing::HasSubstr("\"dropped\":3"));
  EXPECT_EQ(format_profile(*back), text);
}

TEST(Collector, OrderDoesNotMatter) {
  std::vector<Activity> all;
  Buffer buffer;
  fill(buffer);
  for_each_activity(&Buffer::next, buffer.data(), buffer.bytes(), [&](Activity a) { all.push_back(a); });
  Collector forward = collector();
  for (const Activity& a : all) forward.add(a);
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    Collector shuffled = collector();
    for (const Activity& a : all) shuffled.add(a);
    EXPECT_EQ(format_profile(shuffled.with_totals()), format_profile(forward.with_totals()));
  }
}

TEST(Collector, AShortBufferAndAnUnknownGpuAreNoTrouble) {
  Buffer buffer;
  fill(buffer);
  Collector c;
  EXPECT_EQ(for_each_activity(&Buffer::next, buffer.data(), 0, [&](const Activity& a) { c.add(a); }), 0u);
  for_each_activity(&Buffer::next, buffer.data(), buffer.bytes(), [&](const Activity& a) { c.add(a); });
  ASSERT_EQ(c.profile().kernels.size(), 1u);
  EXPECT_EQ(c.profile().kernels.begin()->first.gpu, "");
  EXPECT_EQ(c.profile().kernels.begin()->second.occupancy, 0);
}

// The toolkit's library has everything that we call, and walks a buffer as our stand-in does.
TEST(Cupti, TheToolkitsLibraryHasWhatWeCall) {
  CuptiApi api;
  std::string why_not;
  if (!open_cupti(&api, &why_not)) GTEST_SKIP() << why_not;
  Buffer buffer;
  fill(buffer);
  CUpti_Activity* record = nullptr;
  uint8_t* data = buffer.data();
  ASSERT_EQ(api.cuptiActivityGetNextRecord(data, sizeof(CUpti_ActivityKernel10), &record), CUPTI_SUCCESS);
  EXPECT_EQ(decode(*record).name, "gemm");
}

// The notes of the library in a program of its own, whose driver starts it twice. If asked for, also its learnt
// profile, which takes a program that ends by exit().
std::string notes_of_injected(const char* cupti, Profile* learnt = nullptr) {
  char folder[] = "/tmp/tessera-inject-XXXXXX";
  EXPECT_NE(mkdtemp(folder), nullptr);
  const pid_t program = fork();
  if (program == 0) {
    setenv("TESSERA_PROFILE_DIR", folder, 1);
    if (cupti) setenv("TESSERA_CUPTI", cupti, 1);
    void* library = dlopen(TESSERA_INJECTION, RTLD_NOW | RTLD_LOCAL);
    auto* start = library ? reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection")) : nullptr;
    const int result = start && start() == 1 && start() == 1 ? 0 : 1;  // else the driver fails the first call
    if (learnt) exit(result);
    _exit(result);
  }
  int status = -1;
  EXPECT_EQ(waitpid(program, &status, 0), program);
  EXPECT_EQ(status, 0);
  std::stringstream note;
  note << std::ifstream(std::string(folder) + "/note-" + std::to_string(program) + ".txt").rdbuf();
  if (auto read = load_profile(std::string(folder) + "/collected-" + std::to_string(program) + ".json");
      learnt && read.ok())
    *learnt = *read;
  std::filesystem::remove_all(folder);
  return note.str();
}

TEST(Injection, WithoutADriverOrCuptiItSaysSo) {
  EXPECT_THAT(notes_of_injected(nullptr), testing::AnyOf(testing::HasSubstr("nothing was collected"),
                                                         testing::HasSubstr("TESSERA_CUPTI")));
}

TEST(Injection, WritesWhatItSawWhenTheProgramEnds) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a forked child of this program that ends by exit() would be searched for leaks";
#endif
  Profile learnt;
  EXPECT_THAT(notes_of_injected(TESSERA_RECORDING_CUPTI, &learnt),
              testing::HasSubstr("no durations of copies between GPUs"));
  ASSERT_EQ(learnt.kernels.size(), 1u);
  const auto& [key, record] = *learnt.kernels.begin();
  EXPECT_EQ(key.kernel, "recorded");
  EXPECT_EQ(record.duration.samples, 20u);
  EXPECT_EQ(record.duration.quantile_ns(0.5), 500u);
  EXPECT_THAT(learnt.unknown_fields, testing::HasSubstr("\"dropped\":6"));
}

TEST(Injection, StandsAsideForAnotherSubscriber) {
  EXPECT_THAT(notes_of_injected(TESSERA_BUSY_CUPTI),
              testing::AllOf(testing::HasSubstr("another profiler is attached to this program"),
                             testing::HasSubstr("nothing was collected here; run it without the other one")));
}

}  // namespace
}  // namespace tessera::profiles
