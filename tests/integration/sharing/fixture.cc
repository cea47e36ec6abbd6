#include "tests/integration/sharing/fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "base/clock.h"
#include "base/units.h"
#include "ipc/channel/client.h"

namespace tessera::test {

namespace fs = std::filesystem;

const std::string kBin = std::string(TESSERA_PREFIX) + "/bin/";

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool eventually(const std::function<bool()>& condition) {
  const uint64_t deadline = base::now_ns() + uint64_t(kPatience_s) * base::kNsPerS;
  while (!condition()) {
    if (base::now_ns() > deadline) return false;
    usleep(5'000);
  }
  return true;
}

void SharingFixture::SetUp() {
  ASSERT_NE(mkdtemp(scratch_), nullptr);
  // Two of these tests at once on a small machine would only wait for each other.
  lock_ = open("/tmp/tessera-integration-sharing.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ >= 0) flock(lock_, LOCK_EX);
}

void SharingFixture::TearDown() {
  daemon_.kill_now();
  if (HasFailure()) {
    for (const auto& file : fs::directory_iterator(scratch_))
      if (file.path().extension() == ".err")
        fprintf(stderr, "--- %s\n%s\n", file.path().c_str(), read_file(file.path()).c_str());
  }
  std::error_code ignored;
  fs::remove_all(scratch_, ignored);
  if (lock_ >= 0) close(lock_);
}

void SharingFixture::start_daemon(const std::string& config) {
  if (!config.empty()) std::ofstream(path("d.toml")) << config;
  std::vector<std::string> words = {kBin + "tesserad", "--socket", socket()};
  if (fs::exists(path("d.toml"))) words.insert(words.end(), {"--config", path("d.toml")});
  auto started = cli::Process::start(words, {}, path("d.out"), path("d.err"));
  ASSERT_TRUE(started.ok());
  daemon_ = std::move(*started);
  ASSERT_TRUE(eventually([&] { return ipc::query(socket()).ok(); })) << read_file(path("d.err"));
}

}  // namespace tessera::test
