#include "cli/run/mps.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/units.h"
#include "cli/run/child_output.h"
#include "cli/run/run.h"
#include "ipc/channel/client.h"

namespace tessera::cli {
namespace {

constexpr uint32_t kAskMps = 2;  // ipc/abi/messages.h, Query::what

// One command to the control daemon; its answer.
base::Result<std::string> control(const MpsInfo& mps, const std::string& command) {
  const std::string line = command + "\n";
  const ChildOutput answer = output_of_child(
      [&] {
        setenv("CUDA_MPS_PIPE_DIRECTORY", mps.pipe_directory.c_str(), 1);
        execlp(mps.control_program.c_str(), mps.control_program.c_str(), nullptr);
      },
      &line);
  if (!answer.ended_well())
    return base::error(base::Code::kUnavailable, "`" + command + "` by " + mps.control_program + " failed");
  return answer.text;
}

std::vector<long> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<long> all;
  for (long n; in >> n;) all.push_back(n);
  return all;
}

base::Status terminate(const MpsInfo& mps, long pid) {
  auto servers = mps_servers(mps);
  if (!servers.ok()) return servers.error();
  for (long server : *servers) {
    auto clients = control(mps, "get_client_list " + std::to_string(server));
    if (!clients.ok()) return clients.error();
    const std::vector<long> pids = numbers(*clients);
    if (std::find(pids.begin(), pids.end(), pid) == pids.end()) continue;
    auto done = control(mps, "terminate_client " + std::to_string(server) + " " + std::to_string(pid));
    return done.ok() ? base::ok() : base::Status(done.error());
  }
  return base::error(base::Code::kNotFound, "process " + std::to_string(pid) +
                                                " is no client of MPS: `tessera ps` lists Tessera's, `kill " +
                                                std::to_string(pid) + "` ends it");
}

}  // namespace

base::Result<MpsInfo> ask_mps(const std::string& socket_path) {
  auto answer = ipc::query(socket_path, kAskMps);
  if (!answer.ok()) return answer.error();
  const auto json = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  MpsInfo info;
  const auto text = [&](const char* key, std::string* out) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_string()) *out = found->get<std::string>();
  };
  if (!json.is_object()) return base::error(base::Code::kInvalid, "tesserad sent no JSON");
  text("mode", &info.mode);
  text("reason", &info.reason);
  text("pipe_directory", &info.pipe_directory);
  text("log_directory", &info.log_directory);
  text("control_program", &info.control_program);
  if (const auto limit = json.find("memory_limit"); limit != json.end() && limit->is_number_unsigned())
    info.memory_limit_bytes = limit->get<uint64_t>();
  const auto active = json.find("active");
  info.active = active != json.end() && active->is_boolean() && active->get<bool>();
  return info;
}

base::Result<std::vector<long>> mps_servers(const MpsInfo& mps) {
  auto answer = control(mps, "get_server_list");
  if (!answer.ok()) return answer.error();
  return numbers(*answer);
}

std::vector<std::string> mps_environment(const MpsInfo& mps, bool best_effort, uint64_t memory_limit_bytes,
                                         size_t gpus) {
  if (!mps.active) return {};
  std::vector<std::string> out = {"CUDA_MPS_PIPE_DIRECTORY=" + mps.pipe_directory};
  if (!mps.log_directory.empty()) out.push_back("CUDA_MPS_LOG_DIRECTORY=" + mps.log_directory);
  // 0 normal, 1 below normal: CUDA MPS documentation, "Client priority".
  out.push_back(std::string("CUDA_MPS_CLIENT_PRIORITY=") + (best_effort ? "1" : "0"));
  // A GPU that the program does not see would end all its limits: NVIDIA's guide to MPS, "silent failures".
  std::string limits;
  for (size_t i = 0; memory_limit_bytes != 0 && i < gpus; ++i)
    limits += fmt::format("{}{}={}M", i == 0 ? "" : ",", i, memory_limit_bytes / base::kMiB);
  if (!limits.empty() && getenv(kMpsMemoryLimit) == nullptr)
    out.push_back(std::string(kMpsMemoryLimit) + "=" + limits);
  return out;
}

int stop(long pid, const std::string& socket) {
  const auto path = resolve_socket(socket);
  auto mps = path ? ask_mps(*path) : base::Result<MpsInfo>(path.error());
  if (!mps.ok()) {
    fprintf(stderr, "tessera stop: %s\n", mps.error().text.c_str());
    return 1;
  }
  if (!mps->active) {
    fprintf(stderr, "tessera stop: MPS is not in use here, a signal is safe: kill %ld\n", pid);
    return 1;
  }
  const base::Status done = terminate(*mps, pid);
  if (!done.ok()) {
    fprintf(stderr, "tessera stop: %s\n", done.error().text.c_str());
    return 1;
  }
  printf("process %ld is no client of MPS any more\n", pid);
  return 0;
}

}  // namespace tessera::cli
