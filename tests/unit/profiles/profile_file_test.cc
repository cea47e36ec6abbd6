// Profile files: nothing is lost, nothing half-written, nothing believed.
#include "profiles/profile_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tessera::profiles {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ProfileFile : public testing::Test {
 protected:
  ProfileFile() {
    char folder[] = "/tmp/tessera-profile-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/p.json";
  }
  ~ProfileFile() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& text) { std::ofstream(path_) << text; }
  std::string read() {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  size_t n_files() {
    size_t n = 0;
    for ([[maybe_unused]] auto& entry : std::filesystem::directory_iterator(folder_)) ++n;
    return n;
  }
  std::string folder_, path_;
};

KernelKey key(const std::string& name, uint64_t blocks = 100) {
  KernelKey k;
  k.image_hash = 0xfedcba9876543210;
  k.kernel = name;
  k.block = {64, 2, 1};
  k.grid_bucket = grid_bucket(blocks);
  k.dynamic_shared_bytes = 1024;
  k.gpu = "GPU \"quoted\"";
  k.driver = "13.0";
  k.origin = Origin::kSoftwareGpu;
  return k;
}

KernelProfile record(uint64_t ns, uint64_t n = 5) {
  KernelProfile r;
  r.duration.add(ns, n);
  r.registers_per_thread = 40;
  r.shared_bytes_per_block = 2048;
  r.occupancy = 0.5;
  for (uint64_t i = 0; i < n; ++i) add_work(r, 100, double(ns) * 4, 300, {{"fp32", 1000}});
  r.bound = Class::kMemory;
  r.bound_reason = "memory at 90 %";
  r.cut = Cut::kNo;
  r.cut_reason = "uses grid barriers";
  return r;
}

Profile profile(const std::string& name, uint64_t ns, uint64_t n = 5) {
  Profile p;
  p.kernels[key(name)] = record(ns, n);
  return p;
}

TEST(DurationHistogram, BucketsAreNarrowAndInOrder) {
  uint32_t last = 0;
  for (uint64_t ns : {0ull, 1ull, 63ull, 64ull, 65ull, 1000ull, 123456ull, 1ull << 40, ~0ull}) {
    const uint32_t bucket = duration_bucket(ns);
    EXPECT_LE(duration_bucket_begin_ns(bucket), ns);
    EXPECT_LE(double(ns - duration_bucket_begin_ns(bucket)), double(ns) / 32) << ns;
    EXPECT_GE(bucket, last);
    EXPECT_LE(bucket, kMaxDurationBucket);
    last = bucket;
  }
  for (uint32_t b = 0; b < kMaxDurationBucket; ++b)
    EXPECT_EQ(duration_bucket(duration_bucket_begin_ns(b)), b);
}

TEST(DurationHistogram, QuantilesOfMergedPartsAreThoseOfTheWhole) {
  DurationHistogram whole, even, odd;
  for (uint64_t i = 1; i <= 1000; ++i) {
    whole.add(i * 1000);
    (i % 2 ? odd : even).add(i * 1000);
  }
  even.merge(odd);
  EXPECT_EQ(even.buckets, whole.buckets);
  EXPECT_EQ(even.samples, 1000u);
  EXPECT_EQ(even.min_ns, 1000u);
  EXPECT_EQ(even.max_ns, 1000000u);
  EXPECT_DOUBLE_EQ(even.total_ns, 500500e3);
  for (double q : {0.5, 0.9, 0.99}) EXPECT_NEAR(double(even.quantile_ns(q)), q * 1e6, q * 1e6 * 0.02);
  EXPECT_EQ(even.quantile_ns(1), 1000000u);
  EXPECT_EQ(DurationHistogram().quantile_ns(0.5), 0u);
}

TEST_F(ProfileFile, RoundTrip) {
  Profile p = profile("gemm<float, 2>", 123456);
  p.kernels[key("other")] = KernelProfile{};
  ASSERT_TRUE(save_profile(p, path_).ok());
  auto back = load_profile(path_);
  ASSERT_TRUE(back.ok()) << back.error().text;
  EXPECT_EQ(format_profile(*back), format_profile(p));
  const KernelProfile& r = back->kernels.at(key("gemm<float, 2>"));
  EXPECT_EQ(r.duration.samples, 5u);
  EXPECT_EQ(r.duration.min_ns, 123456u);
  EXPECT_EQ(r.bound, Class::kMemory);
  EXPECT_EQ(r.cut, Cut::kNo);
  EXPECT_EQ(r.cut_reason, "uses grid barriers");
  EXPECT_DOUBLE_EQ(r.operations.at("fp32"), 1000);
  EXPECT_EQ(n_files(), 1u);  // no temporary left
}

TEST_F(ProfileFile, MergeKeepsBothSides) {
  Profile a = profile("k", 1000, 1);
  merge(a, profile("k", 3000, 3));
  merge(a, profile("l", 10));
  ASSERT_EQ(a.kernels.size(), 2u);
  const KernelProfile& r = a.kernels.at(key("k"));
  EXPECT_EQ(r.duration.samples, 4u);
  EXPECT_DOUBLE_EQ(r.duration.total_ns, 10000);
  EXPECT_EQ(r.work_samples, 4u);
  EXPECT_NEAR(r.memory_bytes, (4000 + 3 * 12000) / 4.0, 1e-6);
  // Parts that the newer side does not know stay.
  Profile bare;
  bare.kernels[key("k")].duration.add(5);
  merge(a, bare);
  EXPECT_EQ(a.kernels.at(key("k")).bound, Class::kMemory);
  EXPECT_EQ(a.kernels.at(key("k")).registers_per_thread, 40u);
  EXPECT_EQ(a.kernels.at(key("k")).duration.min_ns, 5u);
  EXPECT_EQ(a.kernels.at(key("k")).work_samples, 4u);
  // Another GPU or origin is another record.
  Profile other = profile("k", 1000);
  auto node = other.kernels.extract(key("k"));
  node.key().origin = Origin::kCupti;
  other.kernels.insert(std::move(node));
  merge(a, other);
  EXPECT_EQ(a.kernels.size(), 3u);
}

TEST_F(ProfileFile, SlowdownsClassWhatWasNeverCounted) {
  const auto timed = [](uint64_t ns, uint64_t n) {
    Profile p;
    p.kernels[key("k")].duration.add(ns, n);
    return p;
  };
  Profile alone = timed(10'000, 5);
  note_slowdowns(alone, timed(18'000, 5), Neighbour::kMemory);
  classify_uncounted(alone);
  EXPECT_EQ(alone.kernels.at(key("k")).bound, Class::kUnknown);  // one neighbour says nothing
  note_slowdowns(alone, timed(11'000, 2), Neighbour::kCompute);
  EXPECT_EQ(alone.kernels.at(key("k")).slowdown_beside_compute, 0);  // too few
  note_slowdowns(alone, timed(11'000, 3), Neighbour::kCompute);
  ASSERT_TRUE(merge_into_file(alone, path_).ok());
  auto back = merge_into_file(timed(10'000, 1), path_);  // what only the file knows stays
  ASSERT_TRUE(back.ok()) << back.error().text;
  const KernelProfile& r = back->kernels.at(key("k"));
  EXPECT_NEAR(r.slowdown_beside_memory, 1.8, 0.06);
  EXPECT_NEAR(r.slowdown_beside_compute, 1.1, 0.04);
  EXPECT_EQ(r.bound, Class::kMemory);
  EXPECT_NE(r.bound_reason.find("beside memory work"), std::string::npos);

  Profile counted = profile("k", 1000);  // counters outrank slowdowns
  counted.kernels.at(key("k")).slowdown_beside_memory = 1;
  counted.kernels.at(key("k")).slowdown_beside_compute = 3;
  classify_uncounted(counted);
  EXPECT_EQ(counted.kernels.at(key("k")).bound, Class::kMemory);
}

TEST_F(ProfileFile, UnknownFieldsSurviveReadingMergingWriting) {
  json text = json::parse(format_profile(profile("k", 1000)));
  text["from_the_future"] = {{"a", {1, 2, 3}}};
  text["kernels"][0]["l2_hit_rate"] = 0.75;
  write(text.dump());
  auto merged = merge_into_file(profile("k", 2000), path_);
  ASSERT_TRUE(merged.ok()) << merged.error().text;
  const json back = json::parse(read());
  EXPECT_EQ(back["from_the_future"]["a"], json({1, 2, 3}));
  EXPECT_EQ(back["kernels"][0]["l2_hit_rate"], 0.75);
  EXPECT_EQ(back["kernels"][0]["duration"]["samples"], 10);
}

TEST_F(ProfileFile, BadFilesAreNamedAndLeftAlone) {
  const json good = json::parse(format_profile(profile("k", 1000)));
  const auto changed = [&](const char* pointer, const json& value) {
    json text = good;
    text[json::json_pointer(pointer)] = value;
    return text.dump();
  };
  const std::string whole = good.dump();
  const struct {
    std::string text;
    const char* message;
  } rows[] = {
      {"", "is not JSON"},
      {whole.substr(0, whole.size() / 2), "cut off"},
      {"[]", "no object"},
      {"{}", "tessera_profile_version"},
      {changed("/tessera_profile_version", 2), "has version 2, this program reads version 1"},
      {changed("/kernels", 7), "no array 'kernels'"},
      {changed("/kernels/0", "x"), "kernels[0] is not an object"},
      {changed("/kernels/0/kernel", 7), "'kernel' must be a text"},
      {changed("/kernels/0/image_hash", "123"), "'image_hash' must be 0x and 16"},
      {changed("/kernels/0/image_hash", "0xFEDCBA987654321g"), "'image_hash' must be 0x and 16"},
      {changed("/kernels/0/block_threads", {1, 2}), "'block_threads' must be [x, y, z]"},
      {changed("/kernels/0/grid_bucket", 65), "'grid_bucket' must be a whole number from 0 to 64"},
      {changed("/kernels/0/class", "fast"), "'class' must be one of: unknown, compute"},
      {changed("/kernels/0/occupancy", -1), "'occupancy' must be a number"},
      {changed("/kernels/0/duration/samples", 99), "contradicts itself"},
      {changed("/kernels/0/duration/buckets", {{1920, 5}}), "'bucket' must be"},
      {changed("/kernels/0/duration/buckets", {{1, ~0ull}, {2, 7}}), "'count of a bucket' must be"},
      {changed("/kernels/0/work/operations_per_launch", {{"fp32", "many"}}), "'fp32' must be a number"},
      {changed("/kernels/0/slowdown", {{"beside_memory", -1}}), "'beside_memory' must be a number"},
      {changed("/kernels/0/x", json::parse(std::string(40, '[') + std::string(40, ']'))), "nests deeper"},
  };
  for (const auto& row : rows) {
    write(row.text);
    auto merged = merge_into_file(profile("k", 5), path_);
    ASSERT_FALSE(merged.ok()) << row.message;
    EXPECT_THAT(merged.error().text, HasSubstr(path_)) << row.message;
    EXPECT_THAT(merged.error().text, HasSubstr(row.message));
    EXPECT_EQ(read(), row.text);
  }
  write(changed("/tessera_profile_version", 2));
  EXPECT_EQ(load_profile(path_).error().code, base::Code::kVersion);
  EXPECT_EQ(load_profile(folder_).error().code, base::Code::kInvalid);
  EXPECT_EQ(load_profile(folder_ + "/none").error().code, base::Code::kNotFound);
}

TEST_F(ProfileFile, WhatIsWrittenCanBeReadWhateverTheFigures) {
  Profile p = profile("k", 1000);
  KernelProfile& r = p.kernels.begin()->second;
  r.compute_utilisation = INFINITY;
  r.memory_bytes = NAN;
  r.duration.total_ns = INFINITY;
  p.kernels[key("not \xff utf-8")] = record(1);
  auto back = parse_profile(format_profile(p), "x");
  EXPECT_TRUE(back.ok()) << back.error().text;
}

TEST_F(ProfileFile, WritersLoseNothingToEachOther) {
  constexpr int kProcesses = 3, kThreads = 2, kRounds = 8;
  std::vector<pid_t> children;
  for (int c = 0; c < kProcesses; ++c) {
    const pid_t child = fork();
    if (child == 0) {
      int failures = 0;
      for (int i = 0; i < kRounds; ++i)
        failures += !merge_into_file(profile("child" + std::to_string(c), 100, 1), path_).ok() +
                    !merge_into_file(profile("shared", 100, 1), path_).ok();
      _exit(failures ? 1 : 0);
    }
    children.push_back(child);
  }
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        failures += !merge_into_file(profile("shared", 100, 1), path_).ok();
        auto seen = load_profile(path_);  // never part of a file
        failures += !seen.ok();
      }
    });
  for (std::thread& t : threads) t.join();
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(failures, 0);
  auto end = load_profile(path_);
  ASSERT_TRUE(end.ok()) << end.error().text;
  EXPECT_EQ(end->kernels.at(key("shared")).duration.samples, uint64_t(kRounds) * (kProcesses + kThreads));
  for (int c = 0; c < kProcesses; ++c)
    EXPECT_EQ(end->kernels.at(key("child" + std::to_string(c))).duration.samples, uint64_t(kRounds));
  EXPECT_EQ(n_files(), 2u);  // the file and its lock
}

TEST_F(ProfileFile, ClassifiesAnewAfterMerging) {
  GpuDescription gpu;
  gpu.name = key("k").gpu;
  gpu.sm.count = 1;
  gpu.sm.clock_hz = 1e9;
  gpu.memory.bytes_per_s = 4e9;  // record(): 4 bytes per ns, the full bandwidth
  gpu.peak.fp32 = 1e12;
  Profile p = profile("k", 100000);
  p.kernels.begin()->second.bound = Class::kUnknown;
  auto merged = merge_into_file(p, path_, {gpu});
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->kernels.begin()->second.bound, Class::kMemory);
  EXPECT_NEAR(merged->kernels.begin()->second.memory_utilisation, 1.0, 1e-6);
}

}  // namespace
}  // namespace tessera::profiles
