// Damaged files, concurrent writers, bounds. What the preload library makes of it: tests/unit/interpose.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "kernels/cache/file.h"
#include "kernels/cache/never_cut.h"
#include "kernels/cache/proved.h"
#include "kernels/cache/rewritten.h"
#include "kernels/cache/store.h"

namespace tessera::cache {
namespace {

namespace fs = std::filesystem;

class Cache : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "tessera-cache-XXXXXX";
    ASSERT_NE(nullptr, mkdtemp(pattern.data()));
    root_ = pattern;
    directory_ = root_ + "/made/by/store";
  }
  void TearDown() override { fs::remove_all(root_); }

  Store store(uint64_t max_bytes = 1 << 20) const { return {directory_, max_bytes}; }
  std::string path_of(const Key& key) const { return directory_ + "/" + file_name(key); }
  size_t n_files() const {
    return size_t(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  std::string root_, directory_;
};

std::string payload_of(int i, size_t bytes = 1000) {
  return std::string(bytes, char('a' + i % 26));
}
Key key(int i) {
  return key_of("text " + std::to_string(i), 13000);
}

TEST_F(Cache, KeepsWhatWasSaved) {
  const Store cache = store();
  EXPECT_EQ(cache.load(key(1)).error().code, base::Code::kNotFound);
  ASSERT_TRUE(cache.save(key(1), "one").ok());
  ASSERT_TRUE(cache.save(key(2), "").ok());
  EXPECT_EQ(*cache.load(key(1)), "one");
  EXPECT_EQ(*cache.load(key(2)), "");
  ASSERT_TRUE(cache.save(key(1), "another").ok());
  EXPECT_EQ(*store().load(key(1)), "another");
  EXPECT_EQ(n_files(), 2u);
}

// As a host may have limited itself: an error, no signal, no part of a file.
TEST_F(Cache, TheLimitOnFilesIsAnErrorAndNoSignal) {
  ASSERT_TRUE(store().save(key(1), "small").ok());
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{512, 512};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(9);
    sigset_t waiting;
    const bool refused = !store().save(key(2), payload_of(2)).ok() && store().save(key(3), "small").ok();
    _exit(refused && sigpending(&waiting) == 0 && sigismember(&waiting, SIGXFSZ) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(n_files(), 2u);
}

TEST_F(Cache, KeysFollowTextAndDriver) {
  EXPECT_EQ(key_of("text", 13000), key_of("text", 13000));
  EXPECT_FALSE(key_of("text", 13000) == key_of("text", 12080));
  EXPECT_FALSE(key_of("text", 13000) == key_of("text ", 13000));
  EXPECT_FALSE(key_of("text", 13000) == key_of("text", 13000, true));
}

TEST_F(Cache, EveryDamageIsFoundAndRepaired) {
  const Store cache = store();
  const std::string whole = wrap(key(1), payload_of(1, 100));
  ASSERT_TRUE(cache.save(key(1), "x").ok());
  const auto load_of = [&](const std::string& bytes) {
    std::ofstream(path_of(key(1)), std::ios::binary | std::ios::trunc) << bytes;
    return cache.load(key(1));
  };
  ASSERT_TRUE(load_of(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(load_of(whole.substr(0, n)).ok()) << n;
  for (size_t bit = 0; bit < whole.size() * 8; bit += 5) {
    std::string flipped = whole;
    flipped[bit / 8] = char(flipped[bit / 8] ^ (1 << bit % 8));
    auto loaded = load_of(flipped);
    ASSERT_FALSE(loaded.ok()) << bit;
    EXPECT_NE(loaded.error().text.find(path_of(key(1))), std::string::npos);
  }
  EXPECT_FALSE(load_of(whole + "x").ok());
  EXPECT_FALSE(load_of(wrap(key(2), "of another key")).ok());
  ASSERT_TRUE(cache.save(key(1), "repaired").ok());
  EXPECT_EQ(*cache.load(key(1)), "repaired");
}

TEST_F(Cache, RemovesWhatWasNotUsedForLongest) {
  const Store cache = store(20'000);
  const timespec now[2] = {{}, {time(nullptr), 0}};
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(cache.save(key(i), payload_of(i)).ok());
    timespec used[2] = {now[1], {now[1].tv_sec - 1000 + i, 0}};
    ASSERT_EQ(0, utimensat(AT_FDCWD, path_of(key(i)).c_str(), used, 0));
  }
  ASSERT_TRUE(cache.load(key(0)).ok());  // the oldest, but used just now
  ASSERT_TRUE(cache.save(key(100), payload_of(0, 5000)).ok());
  ASSERT_TRUE(cache.save(key(101), payload_of(0, 5000)).ok());
  EXPECT_TRUE(cache.load(key(0)).ok());
  EXPECT_TRUE(cache.load(key(101)).ok());
  EXPECT_FALSE(cache.load(key(1)).ok());
  uint64_t sum = 0;
  for (const auto& file : fs::directory_iterator(directory_)) sum += file.file_size();
  EXPECT_LE(sum, 20'000u);
  EXPECT_EQ(cache.save(key(102), payload_of(0, 5001)).error().code, base::Code::kExhausted);
}

TEST_F(Cache, AWriterThatDiedLeavesNothingForEver) {
  const Store cache = store();
  ASSERT_TRUE(cache.save(key(1), "x").ok());
  for (const char* name : {"/old.tsr.1.0.part", "/new.tsr.1.0.part"})
    std::ofstream(directory_ + name) << "half";
  const timespec old[2] = {{}, {time(nullptr) - 86400, 0}};
  ASSERT_EQ(0, utimensat(AT_FDCWD, (directory_ + "/old.tsr.1.0.part").c_str(), old, 0));
  ASSERT_TRUE(cache.save(key(2), "y").ok());
  EXPECT_FALSE(fs::exists(directory_ + "/old.tsr.1.0.part"));
  EXPECT_TRUE(fs::exists(directory_ + "/new.tsr.1.0.part"));  // its writer may live
}

TEST_F(Cache, NothingOfOthersIsTrusted) {
  ASSERT_TRUE(store().save(key(1), "mine").ok());
  ASSERT_EQ(0, chmod(path_of(key(1)).c_str(), 0666));
  EXPECT_EQ(store().load(key(1)).error().code, base::Code::kPermission);
  ASSERT_EQ(0, chmod(directory_.c_str(), 0777));
  EXPECT_EQ(store().save(key(2), "x").error().code, base::Code::kPermission);
  ASSERT_EQ(0, chmod(directory_.c_str(), 0700));

  fs::remove(path_of(key(1)));
  std::ofstream(root_ + "/elsewhere") << wrap(key(1), "planted");
  fs::create_symlink(root_ + "/elsewhere", path_of(key(1)));
  EXPECT_FALSE(store().load(key(1)).ok());
  const Store not_a_folder(root_ + "/elsewhere", 1 << 20);
  EXPECT_FALSE(not_a_folder.save(key(1), "x").ok());
  EXPECT_FALSE(not_a_folder.load(key(1)).ok());
}

// Processes write and read few keys over and over under a small bound: whatever is read is whole and right.
TEST_F(Cache, ConcurrentProcesses) {
  constexpr int kProcesses = 4, kRounds = 150, kKeys = 6;
  std::vector<pid_t> children;
  for (int child = 0; child < kProcesses; ++child) {
    const pid_t pid = fork();
    if (pid == 0) {
      int hits = 0;
      std::minstd_rand random(unsigned(child) + 1);
      const Store cache = store(40'000);
      for (int round = 0; round < kRounds; ++round) {
        const int i = int(random() % kKeys);
        if (auto loaded = cache.load(key(i))) {
          if (*loaded != payload_of(i, 9000)) _exit(2);
          ++hits;
        } else if (loaded.error().code != base::Code::kNotFound) {
          _exit(3);
        }
        if (!cache.save(key(i), payload_of(i, 9000)).ok()) _exit(4);
      }
      _exit(hits > 0 ? 0 : 5);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  for (const auto& file : fs::directory_iterator(directory_))
    EXPECT_EQ(file.path().extension(), ".tsr") << file.path();
}

TEST(Rewritten, RoundTrip) {
  const Rewritten two = {.kernels = {{"first", slice::Refusal::kNone, 3, 24, 24, true, 12.5, 8},
                                     {"second", slice::Refusal::kInterBlockWait, 1, 8, 0, false, 1, 0}},
                         .text = ".version 9.0"};
  for (const Rewritten& r : {Rewritten{}, two}) {
    auto again = decode(encode(r));
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(*again == r);
  }
  const std::string bytes = encode(two);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode(bytes.substr(0, n)).ok()) << n;
  EXPECT_FALSE(decode(bytes + "x").ok());
  std::string many = bytes;
  many[7] = char(0x7f);  // number of kernels
  EXPECT_FALSE(decode(many).ok());
}

TEST(Proved, BehindThePtxThatTheyBelongTo) {
  ProvedVariants variants;
  std::mt19937 random(1);
  for (size_t i = 0; i < 40; i++) {
    ProvedVariant v{"kernel" + std::to_string(i), text_key(std::to_string(i)), ""};
    for (size_t n = random() % 3'000; n > 0; n--) v.code += char(random());
    variants.push_back(std::move(v));
  }
  const std::string ptx = ".version 8.0\n.target sm_80\n// a comment";
  const Key key = proved_key("machine code");
  for (size_t n : {size_t(0), size_t(1), size_t(2), variants.size()}) {
    const ProvedVariants some(variants.begin(), variants.begin() + std::ptrdiff_t(n));
    const std::string text = with_proved(ptx, key, some);
    EXPECT_TRUE(text.starts_with(ptx + "\n"));
    const auto back = proved_in(text, key);
    ASSERT_TRUE(back.ok()) << back.error().text;
    EXPECT_EQ(*back, some);
    EXPECT_FALSE(proved_in(text, proved_key("other machine code")).ok());
    EXPECT_EQ(proved_in(ptx, key).error().code, base::Code::kNotFound);
    for (size_t at = ptx.size() + 20; at < text.size(); at += 1 + text.size() / 200) {
      std::string damaged = text;
      damaged[at] = damaged[at] == 'A' ? 'B' : 'A';
      EXPECT_FALSE(proved_in(damaged, key).ok()) << at;
      EXPECT_FALSE(proved_in(text.substr(0, at), key).ok()) << at;
    }
  }
  EXPECT_FALSE(text_key("a") == proved_key("a"));
  EXPECT_FALSE(text_key("a") == text_key("b"));
}

TEST_F(Cache, KernelsThatAreNeverCut) {
  using Hashes = std::vector<uint64_t>;
  constexpr int kDriver = 13000;
  EXPECT_EQ(never_cut(store(), kDriver), Hashes());
  for (const uint64_t hash : {5, 7, 5}) EXPECT_TRUE(add_never_cut(store(), kDriver, hash).ok());
  EXPECT_EQ(never_cut(store(), kDriver), (Hashes{7, 5}));
  EXPECT_EQ(never_cut(store(), kDriver + 10), Hashes());
  fs::resize_file(fs::directory_iterator(directory_)->path(), 50);
  EXPECT_EQ(never_cut(store(), kDriver), Hashes());
}

}  // namespace
}  // namespace tessera::cache
