// tessera-device-plugin: a node's shares of its GPU, as extended resources of Kubernetes. integrations/kubernetes/README.md.
// Tells the kubelet what there is, writes the CDI specification that its runtime reads, and looks once a second whether the
// kubelet was started anew and whether tesserad answers. Killed at any time, nothing that runs is hurt.
#include <signal.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <list>

#include "cli/run/cdi.h"
#include "integrations/kubernetes/resource.h"
#include "ipc/channel/client.h"

namespace tessera::kubernetes {
namespace {

struct Options {
  std::string prefix = "/usr/lib/tessera", kubelet = "/var/lib/kubelet/device-plugins", cdi = "/var/run/cdi";
  std::vector<std::string> shares = {"high=1", "best-effort=4"};
  bool without_cdi = false;
  cli::CdiOptions what;
};

int fail(const std::string& text) {
  fprintf(stderr, "tessera-device-plugin: %s\n", text.c_str());
  return 1;
}

// Runtimes read the folder whenever a container starts: they see the old one or the new one.
std::string write_specification(const std::string& folder, const std::string& text) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const std::string path = folder + "/tessera.json", made = path + ".new";
  std::ofstream file(made);
  file << text << '\n';
  file.close();
  if (file) std::filesystem::rename(made, path, failed);
  return file && !failed
             ? ""
             : path + " cannot be written: give --cdi a folder that the runtime reads, or --without-cdi";
}

// Says what has changed, not what lasts.
void say(std::string& said, const std::string& now, const char* well) {
  if (said == now) return;
  now.empty() ? spdlog::info("{}", well) : spdlog::warn("{}", now);
  said = now;
}

int run(const Options& options) {
  const auto text = cli::cdi_specification(options.what, cli::layout_below(options.prefix));
  if (!text) return fail(text.error().text);
  std::list<Resource> resources;
  for (const std::string& given : options.shares) {
    auto share = parse_share(given);
    if (!share) return fail(share.error().text);
    auto edits = edits_of(*text, share->level);
    if (!edits) return fail(edits.error().text);
    resources.emplace_back(options.kubelet, *share, *edits, !options.without_cdi);
  }
  if (!options.without_cdi)
    if (const std::string problem = write_specification(options.cdi, *text); !problem.empty())
      return fail(problem);

  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGTERM, SIGINT}) sigaddset(&ends, number);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before gRPC has threads
  std::string of_kubelet = "?", of_daemon = "?";
  const timespec second = {1, 0};
  do {
    const auto answer = ipc::query(options.what.socket);
    say(of_daemon, answer ? "" : answer.error().text + ": the shares are unhealthy until it answers",
        "tesserad answers, the shares are healthy");
    std::string problem;
    for (Resource& resource : resources) {
      resource.set_healthy(answer.ok());
      if (const std::string its = resource.ensure_registered(); !its.empty()) problem = its;
    }
    say(of_kubelet, problem, "registered with the kubelet");
  } while (sigtimedwait(&ends, nullptr, &second) < 0);
  return 0;
}

}  // namespace
}  // namespace tessera::kubernetes

int main(int argc, char** argv) try {
  tessera::kubernetes::Options options;
  CLI::App app("Offers shares of this node's GPU to Kubernetes, a resource per level: tessera.dev/high, ...");
  app.add_option("--share", options.shares, "LEVEL=COUNT, for each level that pods may ask for")
      ->capture_default_str();
  app.add_option("--prefix", options.prefix, "where Tessera is installed on the node")->capture_default_str();
  app.add_option("--socket", options.what.socket, "of tesserad, on the node")->capture_default_str();
  app.add_option("--gpu", options.what.gpu, "auto, or soft for the software GPU")->capture_default_str();
  app.add_option("--cdi", options.cdi, "folder of CDI specifications that the container runtime reads")
      ->capture_default_str();
  app.add_flag("--without-cdi", options.without_cdi, "hand out variables and mounts: Kubernetes before 1.31");
  app.add_option("--kubelet", options.kubelet, "the kubelet's folder of device plugins")
      ->capture_default_str();
  app.set_version_flag("--version", TESSERA_VERSION);
  CLI11_PARSE(app, argc, argv);
  return tessera::kubernetes::run(options);
} catch (const std::exception& problem) {  // no memory, no room
  return tessera::kubernetes::fail(problem.what());
}
