#include "tests/integration/sharing/fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "base/units.h"
#include "ipc/channel/client.h"

namespace tessera::test {

namespace fs = std::filesystem;

const std::string kBin = std::string(TESSERA_PREFIX) + "/bin/";

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();  // what throws nothing where a process has ended that the file is of
  return text.str();
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

void SharingFixture::start_daemon(const std::string& config, const std::vector<std::string>& environment) {
  if (!config.empty()) std::ofstream(path("d.toml")) << config;
  std::vector<std::string> words = {kBin + "tesserad", "--socket", socket()};
  if (fs::exists(path("d.toml"))) words.insert(words.end(), {"--config", path("d.toml")});
  auto started = cli::Process::start(words, environment, path("d.out"), path("d.err"));
  ASSERT_TRUE(started.ok());
  daemon_ = std::move(*started);
  ASSERT_TRUE(eventually([&] { return ipc::query(socket()).ok(); })) << read_file(path("d.err"));
}

cli::Process SharingFixture::run(const std::string& name, const std::string& priority,
                                 const std::vector<std::string>& options,
                                 const std::vector<std::string>& program,
                                 std::vector<std::string> environment) const {
  std::vector<std::string> words = {kBin + "tessera", "run",    "--gpu", "soft",       "--socket",
                                    socket(),         "--name", name,    "--priority", priority};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.insert(words.end(), program.begin(), program.end());
  environment.push_back("TESSERA_SOFTGPU_DIR=" + path("gpu"));
  auto started = cli::Process::start(words, environment, path(name + ".out"), path(name + ".err"));
  EXPECT_TRUE(started.ok());
  return std::move(*started);
}

size_t SharingFixture::steps(const std::string& name) const {
  std::error_code none;
  const auto n = fs::file_size(path(name + ".steps"), none);
  return none ? 0 : size_t(n);
}

bool SharingFixture::gate_is_on_device() {
  const char* gate = getenv("TESSERA_GATE");
  return gate != nullptr && std::string(gate) == "device";
}
bool SharingFixture::steps_grow(const std::string& name, size_t by) const {
  const size_t before = steps(name);
  return eventually([&] { return steps(name) >= before + by; });
}

std::string SharingFixture::checksum(const std::string& name) const {
  const std::string text = read_file(path(name + ".out"));
  const size_t at = text.find("checksum=");
  return at == std::string::npos ? "none in: " + text : text.substr(at + 9, 16);
}

nlohmann::json SharingFixture::ask() const {
  auto answer = ipc::query(socket());
  return answer ? nlohmann::json::parse(*answer, nullptr, false) : nlohmann::json::object();
}

nlohmann::json SharingFixture::client(const std::string& name) const {
  for (const nlohmann::json& one : clients())
    if (one.value("name", "") == name) return one;
  return nlohmann::json::object();
}

}  // namespace tessera::test
