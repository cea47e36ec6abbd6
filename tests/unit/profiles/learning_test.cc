// The daemon's learning from records: condensed, bounded, kept in files, handed to the next client.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/kernel_key.h"
#include "ipc/channel/learnt.h"
#include "ipc/channel/map.h"
#include "profiles/folders.h"
#include "profiles/profile_file.h"
#include "scheduler_daemon/learning/store.h"
#include "tests/support/eventually.h"

namespace tessera::learning {
namespace {

using profiles::KernelKey;
using profiles::KernelProfile;
using profiles::Profile;
using test::eventually;

const UserGpu kMe{1000, "Test GPU", "CUDA 13.0"};

Seen seen(const std::string& name, uint64_t blocks = 100) {
  Seen s;
  s.image_hash = 7;
  s.name = name;
  s.blocks = blocks;
  s.block[0] = 128;
  s.key = base::launch_key(base::kernel_hash(7, name.data(), name.size()), base::grid_bucket(blocks), 128, 0);
  return s;
}

ipc::abi::Record record(uint64_t key, uint64_t duration_ns, uint64_t blocks) {
  ipc::abi::Record r{};
  r.kind = ipc::abi::kRecordKernel;
  r.key = key;
  r.duration_ns = duration_ns;
  r.blocks = blocks;
  return r;
}

const ipc::abi::LearntSlot* find(const std::vector<ipc::abi::LearntSlot>& slots, uint64_t key) {
  for (const auto& slot : slots)
    if (slot.key == key) return &slot;
  return nullptr;
}

TEST(Records, RecordsBecomeQuantilesUnderTheirNames) {
  Records records;
  const Seen k = seen("gemm");
  ASSERT_TRUE(records.record(kMe, record(k.key, 1'000'000, 100)));  // before it is known what the key means
  EXPECT_FALSE(records.fresh());
  records.seen(kMe, k);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(records.record(kMe, record(k.key, 2'000'000, 100)));
  ASSERT_TRUE(records.record(kMe, record(k.key, 500'000, 25)));  // a slice of a quarter: 2 ms for the launch
  auto taken = records.take();
  ASSERT_EQ(taken.size(), 1u);
  const auto& [key, learnt] = *taken.at(1000).kernels.begin();
  EXPECT_EQ(key.kernel, "gemm");
  EXPECT_EQ(key.origin, profiles::Origin::kOnline);
  EXPECT_EQ(key.gpu, "Test GPU");
  EXPECT_EQ(profiles::launch_key(key), k.key);
  EXPECT_EQ(learnt.duration.samples, 11u);
  EXPECT_EQ(learnt.duration.min_ns, 1'000'000u);
  EXPECT_NEAR(double(learnt.duration.quantile_ns(0.5)), 2e6, 0.03 * 2e6);
  EXPECT_DOUBLE_EQ(learnt.n_blocks, 100);
  EXPECT_TRUE(records.take().empty());
  // Still known after it was taken, and to its own user alone.
  const auto known = records.known(1000, "Test GPU");
  ASSERT_EQ(known.size(), 1u);
  EXPECT_NEAR(double(known[0].block_ps), 2e9 / 100, 0.03 * 2e7);
  EXPECT_TRUE(records.known(1001, "Test GPU").empty());
  EXPECT_TRUE(records.known(1000, "Another GPU").empty());
}

TEST(Records, WhatClientsSendIsBounded) {
  Records records({.keys = 64, .buckets = 16, .pending = 4, .devices = 2});
  for (uint64_t key = 1; key < 10'000; key += 2) records.record(kMe, record(key, 1000, 1));
  EXPECT_LE(records.keys(), 64u);
  const Seen k = seen("k");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(records.record(kMe, record(k.key, 1000, 100)), i < 4);
  records.seen(kMe, k);
  for (uint64_t ns = 100; ns < 10'000'000'000; ns += ns / 20) records.record(kMe, record(k.key, ns, 100));
  auto taken = records.take();
  const auto& histogram = taken.at(1000).kernels.begin()->second.duration;
  EXPECT_LE(histogram.buckets.size(), 16u);
  uint64_t sum = 0;
  for (auto [bucket, n] : histogram.buckets) sum += n;
  EXPECT_EQ(sum, histogram.samples);  // joined, not lost
  EXPECT_TRUE(records.record({1, "a", ""}, record(1, 1, 1)));
  EXPECT_FALSE(records.record({2, "a", ""}, record(1, 1, 1)));  // one device too many
  EXPECT_FALSE(records.record({1000, "", ""}, record(1, 1, 1)));
  for (auto bad : {record(0, 1, 1), record(1, 0, 1), record(1, 1, 0), record(1, 1, UINT64_MAX)})
    EXPECT_FALSE(records.record(kMe, bad));
}

TEST(Records, WhatCouldNotBeWrittenCountsAgain) {
  Records records;
  records.seen(kMe, seen("k"));
  records.record(kMe, record(seen("k").key, 5000, 100));
  auto taken = records.take();
  records.record(kMe, record(seen("k").key, 7000, 100));
  records.put_back(1000, taken.at(1000));
  EXPECT_EQ(records.take().at(1000).kernels.begin()->second.duration.samples, 2u);
}

KernelKey key_of(const std::string& name, profiles::Origin origin) {
  KernelKey key;
  key.image_hash = 7;
  key.kernel = name;
  key.block = {128, 1, 1};
  key.grid_bucket = base::grid_bucket(100);
  key.gpu = "Test GPU";
  key.origin = origin;
  return key;
}

TEST(ProfileIndex, JoinsClassesAndDurationsByKey) {
  Profile user, shipped;
  KernelProfile online, offline;
  online.duration.add(4'000'000, 10);
  online.n_blocks = 100;
  offline.duration.add(1'000'000, 10);
  offline.n_blocks = 100;
  offline.bound = profiles::Class::kMemory;
  user.kernels[key_of("copy", profiles::Origin::kOnline)] = online;
  shipped.kernels[key_of("copy", profiles::Origin::kCupti)] = offline;
  shipped.kernels[key_of("other", profiles::Origin::kCupti)] = offline;
  const ByGpu mine = known_of(user), theirs = known_of(shipped);
  const std::vector<ProfileIndex::Source> sources = {{1000, &mine}, {{}, &theirs}};
  const auto slots = ProfileIndex::slots(sources, 1000, "Test GPU", 100);
  const auto* copy = find(slots, seen("copy").key);
  ASSERT_NE(copy, nullptr);
  EXPECT_NEAR(double(copy->block_ps), 4e7, 0.03 * 4e7);  // the user's own, not the shipped one
  const auto* kernel = find(slots, base::kernel_hash(7, "copy", 4));
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->resource_class, uint32_t(ipc::abi::kResourceMemory));
  EXPECT_NEAR(double(find(slots, seen("other").key)->block_ps), 1e7, 0.03 * 1e7);
  // Another user gets what was shipped, not what this one's programs said.
  const auto others = ProfileIndex::slots(sources, 1001, "Test GPU", 100);
  EXPECT_NEAR(double(find(others, seen("copy").key)->block_ps), 1e7, 0.03 * 1e7);
  EXPECT_EQ(ProfileIndex::slots(sources, 1000, "Test GPU", 2).size(), 2u);
  EXPECT_TRUE(ProfileIndex::slots(sources, 1000, "Another", 2).empty());
}

TEST(LearntTable, EveryEntryIsFoundAndNothingElse) {
  std::vector<ipc::abi::LearntSlot> entries;
  for (uint64_t i = 0; i < 5000; ++i) entries.push_back({base::mix64(i + 1) | 1, i + 1, uint32_t(i % 4), {}});
  auto file = ipc::create_learnt(entries);
  ASSERT_TRUE(file.ok()) << file.error().text;
  auto mapped = ipc::map_shared(file->fd.get(), file->bytes, ipc::Access::kReadOnly);
  ASSERT_TRUE(mapped.ok());
  auto table = ipc::check_learnt(mapped->data(), mapped->bytes());
  ASSERT_TRUE(table.ok()) << table.error().text;
  for (const auto& entry : entries) {
    const auto* slot = table->find(entry.key);
    ASSERT_NE(slot, nullptr);
    EXPECT_EQ(slot->block_ps, entry.block_ps);
  }
  EXPECT_EQ(table->find(base::mix64(9999) | 1), nullptr);
  EXPECT_EQ(table->find(0), nullptr);
  EXPECT_FALSE(ipc::check_learnt(mapped->data(), mapped->bytes() - 32).ok());
  EXPECT_FALSE(ipc::check_learnt(mapped->data(), 8).ok());
  EXPECT_LT(::write(file->fd.get(), "x", 1), 0);  // sealed
}

class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    char folder[] = "/tmp/tessera-learning-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  ~StoreTest() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Store> open(uint64_t interval_ms = 3'600'000) {
    StoreOptions options;
    options.folder = folder_ + "/user";
    options.shared = {folder_ + "/shared"};
    options.interval_ms = interval_ms;
    options.log = [this](bool, const std::string& line) { log_ += line + "\n"; };
    auto store = Store::open(options);
    EXPECT_TRUE(store.ok()) << store.error().text;
    return std::move(*store);
  }
  uint64_t known_ps(Store& store, const UserGpu& who, uint64_t key) {
    auto file = store.table(who);
    EXPECT_TRUE(file.ok());
    if (!file->fd.valid()) return 0;
    auto mapped = ipc::map_shared(file->fd.get(), file->bytes, ipc::Access::kReadOnly);
    auto table = ipc::check_learnt(mapped->data(), mapped->bytes());
    const auto* slot = table.ok() ? table->find(key) : nullptr;
    return slot ? slot->block_ps : 0;
  }
  std::string folder_, log_;
};

TEST_F(StoreTest, TheNextDaemonTeachesWhatThisOneLearnt) {
  {
    auto store = open();
    EXPECT_EQ(known_ps(*store, kMe, seen("k").key), 0u);
    store->record(kMe, record(seen("k").key, 1'000'000, 100));
    store->seen(kMe, seen("k"));
    EXPECT_NE(known_ps(*store, kMe, seen("k").key), 0u);  // at once, without a file
  }                                                       // a daemon that ends writes what it has
  auto store = open();
  EXPECT_NEAR(double(known_ps(*store, kMe, seen("k").key)), 1e7, 0.03 * 1e7);
  EXPECT_EQ(known_ps(*store, {1001, "Test GPU", ""}, seen("k").key), 0u);  // another user's
  EXPECT_EQ(store->counters().files.load(), 1u);
}

TEST_F(StoreTest, FilesThatAppearAreUsedAndBrokenOnesLeftAlone) {
  auto store = open();
  Profile profile;
  profile.kernels[key_of("k", profiles::Origin::kSoftwareGpu)].duration.add(2'000'000, 5);
  ASSERT_TRUE(profiles::save_profile(profile, folder_ + "/user/installed.json").ok());
  EXPECT_TRUE(eventually([&] { return known_ps(*store, kMe, seen("k").key) != 0; }));
  std::ofstream(folder_ + "/user/broken.json") << "{";
  EXPECT_TRUE(eventually([&] { return store->counters().broken_files.load() == 1; }));
  EXPECT_NE(known_ps(*store, kMe, seen("k").key), 0u);
  std::filesystem::remove(folder_ + "/user/installed.json");
  EXPECT_TRUE(eventually([&] { return known_ps(*store, kMe, seen("k").key) == 0; }));
  store.reset();
  EXPECT_THAT(log_, testing::HasSubstr("broken.json: is not JSON"));
  std::ifstream broken(folder_ + "/user/broken.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(broken), {}), "{");
}

// The daemon's own count of what must be in the file outlives it: what was recorded before a write began is
// there once that write has ended.
TEST_F(StoreTest, AKilledDaemonLosesAtMostTheLastIntervalAndNeverAFile) {
  const std::string file = folder_ + "/user/online-1000.json";
  auto* durable = static_cast<std::atomic<uint64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(durable, MAP_FAILED);
  uint64_t before = 0;
  for (int round = 0; round < 8; ++round) {
    durable->store(0);
    int started[2];
    ASSERT_EQ(pipe(started), 0);
    const pid_t daemon = fork();
    if (daemon == 0) {
      auto store = open(/*interval_ms=*/1);  // writes nearly all the time
      for (int i = 0; i < 200; ++i) store->seen(kMe, seen("kernel_" + std::to_string(i)));
      uint64_t writes = 0, recorded = 0;  // at the last look
      for (uint64_t n = 0;; ++n) {
        // Two writes later, one of them began after that look.
        if (const uint64_t now = store->counters().writes.load(); now >= writes + 2) {
          if (durable->exchange(recorded) == 0 && recorded > 0) (void)!write(started[1], "x", 1);
          writes = now, recorded = n;
        }
        store->record(kMe, record(seen("kernel_" + std::to_string(n % 200)).key, 1000 + n % 50, 100));
        if (n % 100 == 0) sched_yield();
      }
    }
    close(started[1]);
    char one;
    ASSERT_EQ(read(started[0], &one, 1), 1);
    close(started[0]);
    poll(nullptr, 0, 1 + round);  // anywhere in a write
    kill(daemon, SIGKILL);
    waitpid(daemon, nullptr, 0);
    auto profile = profiles::load_profile(file);
    ASSERT_TRUE(profile.ok()) << profile.error().text;
    uint64_t samples = 0;
    for (const auto& [key, kernel] : profile->kernels) samples += kernel.duration.samples;
    // Earlier daemons' writings are still there, and this one's, but for the last interval.
    ASSERT_GT(durable->load(), 0u);
    EXPECT_GE(samples, before + durable->load());
    before = samples;
  }
  munmap(durable, 4096);
  open();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/user"))
    EXPECT_EQ(entry.path().string().find(".new."), std::string::npos) << entry.path();  // swept up
}

TEST_F(StoreTest, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(folder_ + "/file") << "";
  StoreOptions options;
  options.folder = folder_ + "/file/below";
  auto store = Store::open(options);
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(store.error().text, testing::HasSubstr(options.folder));
}

TEST(Folders, TheEnvironmentDecides) {
  setenv("TESSERA_PROFILES", "/somewhere", 1);
  EXPECT_EQ(profiles::user_folder(), "/somewhere");
  EXPECT_TRUE(profiles::shared_folders().empty());
  setenv("TESSERA_PROFILES", "/a:/b:/c", 1);
  EXPECT_EQ(profiles::user_folder(), "/a");
  EXPECT_EQ(profiles::shared_folders(), (std::vector<std::string>{"/b", "/c"}));
  setenv("TESSERA_PROFILES", "off", 1);
  EXPECT_EQ(profiles::user_folder(), "");
  unsetenv("TESSERA_PROFILES");
  setenv("XDG_DATA_HOME", "/data", 1);
  EXPECT_EQ(profiles::user_folder(), "/data/tessera/profiles");
}

}  // namespace
}  // namespace tessera::learning
