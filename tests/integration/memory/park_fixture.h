// Programs that leave their GPU and come back, as real processes on a software GPU of 256 MiB.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/units.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera::test {

namespace fs = std::filesystem;
inline constexpr unsigned kManyRounds = 1'000'000;
// The driver lets no process checkpoint itself.
inline constexpr char kRefusesOwnCheckpoints[] =
    "TESSERA_SOFTGPU_FAULTS=cuCheckpointProcessGetState@*=801,cuCheckpointProcessLock@*=801,"
    "cuCheckpointProcessCheckpoint@*=801,cuCheckpointProcessRestore@*=801,cuCheckpointProcessUnlock@*=801";
// Child of the daemon; 0: none runs.
inline pid_t child_of(pid_t parent) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    if (!isdigit(entry.path().filename().native()[0])) continue;
    const std::string text = read_file(entry.path() / "stat");
    const size_t name_end = text.rfind(')');
    int ppid = 0;
    char state = 0;
    if (name_end == text.npos || sscanf(text.c_str() + name_end + 1, " %c %d", &state, &ppid) != 2) continue;
    if (ppid == parent && state != 'Z') return pid_t(std::stoi(entry.path().filename()));
  }
  return 0;
}

class Parking : public SharingFixture {
 protected:
  void SetUp() override {
    SharingFixture::SetUp();
    describe_gpu("8");
  }
  // As test4, with less memory, another link, and perhaps another name and attributes.
  void describe_gpu(const std::string& link_gb_per_s, const std::string& name = "",
                    const std::string& attributes = "") const {
    std::istringstream lines(read_file(TESSERA_SOURCE_DIR "/profiles/gpus/test4.toml"));
    std::ofstream gpu(path("gpu.toml"));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("bytes = 2147483648")) line = "bytes = 268435456";
      if (line.starts_with("name = ") && !name.empty()) line = "name = \"" + name + '"';
      if (line.starts_with("h2d_gb_per_s")) line = "h2d_gb_per_s = " + link_gb_per_s;
      if (line.starts_with("d2h_gb_per_s")) line = "d2h_gb_per_s = " + link_gb_per_s;
      gpu << line << '\n';
    }
    if (!attributes.empty()) gpu << "[attributes]\n" << attributes << '\n';
  }
  // TESSERA_PARK_BY=parker: a parker process makes the driver's checkpoint calls, and the driver refuses them to the programs.
  static bool by_parker() {
    const char* by = getenv("TESSERA_PARK_BY");
    return by && std::string(by) == "parker";
  }
  pid_t parker() const { return child_of(daemon_.pid()); }
  // True: there was one.
  bool kill_parker() const {
    const pid_t pid = parker();
    return pid != 0 && kill(pid, SIGKILL) == 0;
  }
  // A driver for the parker process.
  std::vector<std::string> environment_of_daemon(const std::string& devices = "1") const {
    return {"LD_LIBRARY_PATH=" TESSERA_PREFIX "/lib/softgpu", "TESSERA_SOFTGPU_DIR=" + path("gpu"),
            "TESSERA_SOFTGPU_GPU=" + path("gpu.toml"), "TESSERA_SOFTGPU_DEVICES=" + devices};
  }
  void start_patient_daemon(const std::string& more = by_parker() ? "[park]\nby = \"parker\"\n" : "",
                            const std::string& devices = "1") {
    start_daemon("[daemon]\nanswer_within_ms = 60000\n" + more, environment_of_daemon(devices));
  }
  cli::Process program(const std::string& name, unsigned mib, unsigned rounds,
                       std::vector<std::string> more = {}, std::vector<std::string> options = {"--parkable"},
                       std::vector<std::string> environment = {}) {
    std::vector<std::string> words = {kBin + "memory_parked", std::to_string(mib), std::to_string(rounds),
                                      path(name + ".steps")};
    words.insert(words.end(), more.begin(), more.end());
    environment.push_back("TESSERA_SOFTGPU_GPU=" + path("gpu.toml"));
    if (by_parker()) environment.push_back(kRefusesOwnCheckpoints);
    return run(name, "best-effort", options, words, environment);
  }
  void pause(const std::string& name) const { std::ofstream(path(name + ".steps.pause")).flush(); }
  void go_on(const std::string& name) const { fs::remove(path(name + ".steps.pause")); }
  // Once it is a client, and stands still.
  bool rests(const std::string& name) const {
    return eventually([&] { return !client(name).empty() && steps(name) > 0; });
  }
  std::string state(const std::string& name) const {
    return client(name).value("park", nlohmann::json::object()).value("state", "?");
  }
  uint64_t parks(const std::string& name) const {
    return client(name).value("park", nlohmann::json::object()).value("parks", uint64_t(0));
  }
  std::pair<int, std::string> tessera(std::vector<std::string> words) const {
    const std::string said = path(words[0] + ".said");
    words.insert(words.begin(), kBin + "tessera");
    words.insert(words.end(), {"--socket", socket()});
    auto started = cli::Process::start(words, {}, said, said + "2");
    if (!started.ok()) return {-1, ""};
    auto end = started->wait(kPatienceS);
    return {end.ok() ? *end : -1, read_file(said) + read_file(said + "2")};
  }
  // `tessera park NAME`: what it said, and its status.
  std::pair<int, std::string> tessera(const std::string& command, const std::string& name,
                                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {command, name, "--seconds", std::to_string(int(kPatienceS))};
    words.insert(words.end(), more.begin(), more.end());
    return tessera(words);
  }
  // On its only GPU, in bytes.
  uint64_t memory(const std::string& name, const char* figure) const {
    for (const auto& row : client(name).value("memory", nlohmann::json::array()))
      return row.value(figure, uint64_t(0));
    return 0;
  }
  uint64_t waits(const std::string& name) const { return memory(name, "waits"); }
  uint64_t used(const std::string& name) const { return memory(name, "used"); }
  // Bytes that the GPU itself lacks for its return.
  uint64_t lacks(const std::string& name) const {
    return client(name).value("park", nlohmann::json::object()).value("lacks", uint64_t(0));
  }
  size_t refusals(const std::string& name) const { return read_file(path(name + ".steps.refused")).size(); }
  // Does not wait until it is done.
  bool ask(const std::string& command, const std::string& name) const {
    auto asked =
        cli::Process::start({kBin + "tessera", command, name, "--seconds", "0.001", "--socket", socket()}, {},
                            path("asked"), path("asked"));
    return asked.ok() && asked->wait(kPatienceS).ok();
  }
  // Seen on its way, or a slow machine has seen it there. The program rests: else it may be back before anybody looks.
  bool is_on_its_way(const std::string& command, const std::string& name) const {
    const bool leaves = command == "park";
    return ask(command, name) && eventually([&] {
             const std::string now = state(name);
             return leaves ? now == "parking" || now == "parked" : now == "returning" || now.empty();
           });
  }
  // The program rests, or is parked before it is asked to come back; then it is on its way.
  bool is_caught_at(const std::string& command, const std::string& name) {
    if (!rests(name) || (command == "unpark" && tessera("park", name).first != 0)) return false;
    return is_on_its_way(command, name);
  }
  void ends_well(cli::Process& process, const std::string& name) const {
    auto end = process.wait(kPatienceS);
    EXPECT_TRUE(end.ok() && *end == 0) << name << read_file(path(name + ".err")) << clients().dump();
  }
};

}  // namespace tessera::test
