// Random API programs (api_program.h) on the software GPU: bare, and as a best-effort program whose long
// kernels are cut beside a protected neighbour. What the programs see must not depend on it.
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "cli/demo/process.h"
#include "ipc/channel/client.h"
#include "tests/attack/attack.h"
#include "tests/support/daemon_process.h"

namespace tessera::attack {
namespace {

using test::DaemonProcess;
using test::eventually;

constexpr double kPatienceS = 240;  // beyond its time: only tells a hang from slowness
const std::string kPrefix = TESSERA_PREFIX;
const std::string kGpu = TESSERA_GPUS "/test4.toml";  // small: what fills it is cut

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Starts the child, bare if `words` is empty, and takes its findings over. `look` is called now and then
// while it runs.
void one_child(Run& run, Folder& folder, const std::string& name, std::vector<std::string> words,
               const std::vector<std::string>& environment, double seconds,
               const std::function<void()>& look) {
  const std::string report = folder.path(name + ".json");
  const std::vector<std::string> child = {TESSERA_API_PROGRAMS,
                                          "--seconds",
                                          std::to_string(seconds),
                                          "--seed",
                                          std::to_string(run.random()()),
                                          "--json",
                                          report};
  words.insert(words.end(), child.begin(), child.end());
  auto process =
      cli::Process::start(words, environment, folder.path(name + ".out"), folder.path(name + ".err"));
  const auto problem = [&](const std::string& what) {
    run.found(name + ": " + what + "\n" + read(folder.path(name + ".out")) +
              read(folder.path(name + ".err")));
  };
  if (!process.ok()) return problem("does not start");
  int polls = 0;
  const bool ended = eventually(
      [&] {
        if (polls++ % 64 == 0) look();
        return !process->running();
      },
      static_cast<int>((seconds + kPatienceS) * 1000));
  if (!ended) return problem("hangs");
  const auto status = process->wait(1);
  if (!status.ok()) return problem("has no status");
  const auto json = nlohmann::json::parse(read(report), nullptr, false);
  if (*status > 1 || json.is_discarded()) return problem("ended with status " + std::to_string(*status));
  for (const auto& finding : json["findings"]) run.found(name + ": " + finding.get<std::string>());
  for (uint64_t n = json["runs"]; n; --n) run.ran();
}

void attack(Run& run) {
  Folder folder;
  const std::string socket = folder.path("d.sock");
  std::ofstream(folder.path("d.toml")) << "[policy]\nslice_us = 10\nquantum_us = 1000\n";
  std::unique_ptr<DaemonProcess> daemon;
  const auto next_daemon = [&] {  // in the place of one that is killed
    daemon.reset();
    daemon = std::make_unique<DaemonProcess>(
        socket, std::vector<std::string>{"--config", folder.path("d.toml"), "--log-level", "error"});
    if (!daemon->listens()) run.found("the daemon does not start: " + daemon->errors());
    return daemon->listens();
  };
  if (!next_daemon()) return;
  const auto under_tessera = [&](const std::string& name, const std::string& priority) {
    return std::vector<std::string>{kPrefix + "/bin/tessera",
                                    "run",
                                    "--gpu",
                                    "soft",
                                    "--socket",
                                    socket,
                                    "--name",
                                    name,
                                    "--priority",
                                    priority,
                                    "--"};
  };
  const std::vector<std::string> device = {"TESSERA_SOFTGPU_DIR=" + folder.path("gpu"),
                                           "TESSERA_SOFTGPU_GPU=" + kGpu, "TESSERA_SOFTGPU_STRICT=1"};
  std::vector<std::string> words = under_tessera("neighbour", "5");
  for (const char* word : {TESSERA_SHARING_LOAD, "compute", "4", "50", "3", "0", "2000"})
    words.push_back(word);
  auto neighbour = cli::Process::start(words, device, folder.path("n.out"), folder.path("n.err"));
  if (!neighbour.ok()) return run.found("the neighbour does not start");
  const auto clients = [&] {
    auto text = ipc::query(socket);
    return text.ok() ? nlohmann::json::parse(*text, nullptr, false).value("clients", nlohmann::json::array())
                     : nlohmann::json::array();
  };
  if (!eventually([&] { return !clients().empty(); }))
    return run.found("the neighbour does not attach: " + read(folder.path("n.err")));

  // Work waits on the device or in its thread, or the daemon is killed meanwhile.
  uint32_t turn = 0;
  double slices = 0, boundaries = 0;  // of one child, as last seen
  const double each_s = std::min(20.0, run.seconds_left() / 2);
  do {
    one_child(run, folder, "bare", {},
              {"LD_LIBRARY_PATH=" + kPrefix + "/lib/softgpu", "LD_PRELOAD", "TESSERA_SOFTGPU_LOCAL=" + kGpu,
               "TESSERA_SOFTGPU_STRICT=1"},
              std::min(each_s, std::max(run.seconds_left(), 0.1)), [] {});
    if (!run.goes_on()) break;
    const uint32_t way = turn++ % 3;
    auto environment = device;
    environment.push_back(way == 1 ? "TESSERA_GATE=thread" : "TESSERA_GATE=device");
    std::vector<std::string> cut = under_tessera("cut", "best-effort");
    if (way == 1)
      cut.insert(cut.end() - 1, {"--memory-limit", "256MiB"});  // none has as much, unless books leak
    one_child(run, folder, "cut", cut, environment, std::min(each_s, std::max(run.seconds_left(), 0.1)), [&] {
      for (const auto& client : clients())
        if (client.value("name", "") == "cut") {
          slices = std::max(slices, client.value("slices", 0.0));
          boundaries = std::max(boundaries, client.value("gate_boundaries", 0.0));
        }
      if (way == 2) (void)next_daemon();
    });
  } while (run.goes_on());
  run.note("slices", slices);
  run.note("boundaries", boundaries);
  (void)neighbour->stop(60);
}

}  // namespace
}  // namespace tessera::attack

int main(int argc, char** argv) {
  tessera::attack::Run run("api_programs", argc, argv);
  tessera::attack::attack(run);
  return run.finish();
}
