// The search for the driver: order, duplicates, folders that are not there, and a cache file full of garbage.
#include "driver_api/find_driver.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace tessera::driver_api {
namespace {

namespace fs = std::filesystem;

class FindDriver : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tessera_find_XXXXXX";
    root_ = mkdtemp(name);
    places_.cache_file = nullptr;
    places_.default_folders.clear();
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string driver_in(const std::string& folder, const std::string& name = "libcuda.so.1") {
    fs::create_directories(root_ + "/" + folder);
    const std::string path = root_ + "/" + folder + "/" + name;
    std::ofstream(path) << "x";
    return path;
  }
  std::string folder(const std::string& name) { return root_ + "/" + name; }

  std::string root_;
  SearchPlaces places_;
};

TEST_F(FindDriver, LibraryPathComesBeforeDefaultFoldersInItsOwnOrder) {
  const std::string a = driver_in("a"), b = driver_in("b"), d = driver_in("d");
  const std::string path = folder("missing") + ":" + folder("b") + ";" + folder("a") + ":" + folder("b");
  places_.library_path = path.c_str();
  places_.default_folders = {folder("d"), folder("a")};
  EXPECT_EQ(driver_candidates(places_), (std::vector<std::string>{b, a, d}));
}

TEST_F(FindDriver, ExplicitPathIsAloneAsFileOrFolder) {
  const std::string a = driver_in("a"), odd = driver_in("b", "my_driver.so");
  places_.default_folders = {folder("a")};
  places_.explicit_path = odd.c_str();
  EXPECT_EQ(driver_candidates(places_), std::vector<std::string>{odd});
  const std::string as_folder = folder("a");
  places_.explicit_path = as_folder.c_str();
  EXPECT_EQ(driver_candidates(places_), std::vector<std::string>{a});
  const std::string wrong = folder("nowhere");
  places_.explicit_path = wrong.c_str();
  EXPECT_TRUE(driver_candidates(places_).empty())
      << "a wrong explicit path must not fall back to another driver";
  places_.explicit_path = "";
  EXPECT_EQ(driver_candidates(places_), std::vector<std::string>{a}) << "empty means not set";
}

TEST_F(FindDriver, EmptyElementIsTheCurrentFolder) {
  const std::string a = driver_in("a");
  const fs::path before = fs::current_path();
  fs::current_path(folder("a"));
  places_.library_path = ":/nonexistent";
  const std::vector<std::string> found = driver_candidates(places_);
  fs::current_path(before);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(fs::equivalent(found[0], a));
  EXPECT_EQ(found[0][0], '/');
}

TEST_F(FindDriver, FoldersOfThatNameAreNotFiles) {
  fs::create_directories(folder("a") + "/libcuda.so.1");
  places_.default_folders = {folder("a")};
  EXPECT_TRUE(driver_candidates(places_).empty());
}

TEST_F(FindDriver, ToolkitStubIsKnownByItsFolderAlsoBehindALink) {
  const std::string stub = driver_in("cuda/lib64/stubs", "libcuda.so");
  EXPECT_TRUE(is_toolkit_stub(stub));
  fs::create_directories(folder("elsewhere"));
  fs::create_symlink(stub, folder("elsewhere") + "/libcuda.so.1");
  EXPECT_TRUE(is_toolkit_stub(folder("elsewhere") + "/libcuda.so.1"));
  EXPECT_FALSE(is_toolkit_stub(driver_in("lib")));
}

// A cache in glibc's new format: header of 48 bytes, entries of 24, strings.
std::string cache_of(const std::vector<std::pair<std::string, std::string>>& entries,
                     uint32_t flags = base::kLoaderCacheFlags) {
  const uint32_t n = static_cast<uint32_t>(entries.size());
  std::string head(48 + 24 * n, '\0'), strings;
  std::memcpy(head.data(), "glibc-ld.so.cache1.1", 20);
  std::memcpy(head.data() + 20, &n, 4);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t key = static_cast<uint32_t>(head.size() + strings.size());
    strings += entries[i].first + '\0';
    const uint32_t value = static_cast<uint32_t>(head.size() + strings.size());
    strings += entries[i].second + '\0';
    std::memcpy(head.data() + 48 + 24 * i, &flags, 4);
    std::memcpy(head.data() + 48 + 24 * i + 4, &key, 4);
    std::memcpy(head.data() + 48 + 24 * i + 8, &value, 4);
  }
  return head + strings;
}

TEST(LoaderCache, ListsThePathsOfOneName) {
  const std::string cache = cache_of({{"libc.so.6", "/lib/libc.so.6"},
                                      {"libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"},
                                      {"libcuda.so.1", "/opt/libcuda.so.1"}});
  EXPECT_EQ(cached_paths(cache, "libcuda.so.1"),
            (std::vector<std::string>{"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/opt/libcuda.so.1"}));
  EXPECT_TRUE(cached_paths(cache, "libnothing.so").empty());
  EXPECT_TRUE(
      cached_paths(cache_of({{"libcuda.so.1", "/lib32/libcuda.so.1"}}, 0x0803), "libcuda.so.1").empty())
      << "32-bit entries are somebody else's";
}

TEST(LoaderCache, SkipsTheOldFormatInFrontOfTheNew) {
  std::string old = "ld.so-1.7.0";
  old.resize(16, '\0');
  const uint32_t n = 3;
  std::memcpy(old.data() + 12, &n, 4);
  old.resize(16 + 12 * n, '\1');
  old.resize((old.size() + 7) / 8 * 8, '\0');
  const std::string cache = old + cache_of({{"libcuda.so.1", "/x/libcuda.so.1"}});
  EXPECT_EQ(cached_paths(cache, "libcuda.so.1"), std::vector<std::string>{"/x/libcuda.so.1"});
}

TEST(LoaderCache, GarbageGivesNothingAndReadsInsideItsBounds) {
  const std::string good =
      cache_of({{"libcuda.so.1", "/x/libcuda.so.1"}, {"libcuda.so.1", "/y/libcuda.so.1"}});
  for (size_t n = 0; n < good.size(); ++n) {
    // A copy on the heap of exactly this size, so that a sanitizer sees one byte too many.
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n));
    const std::vector<std::string> found = cached_paths({cut.data(), cut.size()}, "libcuda.so.1");
    EXPECT_LT(found.size(), 2u);
  }
  uint64_t random = 88172645463325252u;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (int k = 0; k < 4; ++k) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      bad[20 + random % (bad.size() - 20)] = static_cast<char>(random >> 32);
    }
    const std::vector<char> copy(bad.begin(), bad.end());
    EXPECT_LE(cached_paths({copy.data(), copy.size()}, "libcuda.so.1").size(), 2u);
  }
}

TEST(LoaderCache, ThisMachinesOwnCacheListsTheCLibrary) {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  if (!file) GTEST_SKIP() << "no /etc/ld.so.cache here";
  const std::string cache((std::istreambuf_iterator<char>(file)), {});
  const std::vector<std::string> found = cached_paths(cache, "libc.so.6");
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(fs::exists(found[0]));
}

}  // namespace
}  // namespace tessera::driver_api
