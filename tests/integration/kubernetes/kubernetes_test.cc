// tessera-device-plugin, a real process beside a real tesserad, below a kubelet that speaks the protocol of
// integrations/kubernetes/device_plugin.proto. A pod is a process with what was handed out to it.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "integrations/kubernetes/device_plugin.grpc.pb.h"
#include "integrations/kubernetes/shares.h"
#include "ipc/channel/client.h"
#include "tests/integration/sharing/fixture.h"

namespace tessera {
namespace {

using test::eventually;
using test::kBin;
using test::kPatienceS;
using test::read_file;
using Words = std::vector<std::string>;

// As the kubelet does it: forgets all when it starts, empties its folder, and watches whoever registers.
class Kubelet final : public v1beta1::Registration::Service {
 public:
  explicit Kubelet(std::string folder) : folder_(std::move(folder)) {
    for (const auto& file : std::filesystem::directory_iterator(folder_)) std::filesystem::remove(file);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + folder_ + "/kubelet.sock", grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Kubelet() override {
    server_->Shutdown(std::chrono::system_clock::now());
    {
      const std::lock_guard lock(mutex_);
      for (auto& watch : watches_) watch->context.TryCancel();
    }
    for (auto& watch : watches_) watch->thread.join();
  }
  // Devices of a resource that are healthy; -1: it is not registered, or its plugin is gone.
  int healthy(const std::string& resource) {
    const std::lock_guard lock(mutex_);
    const auto found = healthy_.find(resource);
    return found == healthy_.end() ? -1 : found->second;
  }
  size_t registrations() {
    const std::lock_guard lock(mutex_);
    return watches_.size();
  }
  grpc::Status allocate(const std::string& level, const Words& devices,
                        v1beta1::ContainerAllocateResponse* given) {
    v1beta1::AllocateRequest request;
    auto* container = request.add_container_requests();
    for (const std::string& id : devices) container->add_devices_ids(id);
    v1beta1::AllocateResponse response;
    grpc::ClientContext context;
    auto status = plugin("tessera-" + level + ".sock")->Allocate(&context, request, &response);
    if (status.ok()) *given = response.container_responses(0);
    return status;
  }

 private:
  struct Watch {
    grpc::ClientContext context;
    std::thread thread;
  };

  std::unique_ptr<v1beta1::DevicePlugin::Stub> plugin(const std::string& endpoint) const {
    return v1beta1::DevicePlugin::NewStub(
        grpc::CreateChannel("unix:" + folder_ + "/" + endpoint, grpc::InsecureChannelCredentials()));
  }
  grpc::Status Register(grpc::ServerContext*, const v1beta1::RegisterRequest* request,
                        v1beta1::Empty*) override {
    if (request->version() != "v1beta1") return {grpc::StatusCode::INVALID_ARGUMENT, "version"};
    const std::lock_guard lock(mutex_);
    watches_.push_back(std::make_unique<Watch>());
    Watch* watch = watches_.back().get();
    watch->thread =
        std::thread([this, watch, endpoint = request->endpoint(), resource = request->resource_name()] {
          const auto its = plugin(endpoint);
          auto reader = its->ListAndWatch(&watch->context, {});
          v1beta1::ListAndWatchResponse all;
          while (reader->Read(&all)) {
            int healthy = 0;
            for (const auto& device : all.devices()) healthy += device.health() == "Healthy";
            const std::lock_guard guard(mutex_);
            healthy_[resource] = healthy;
          }
          reader->Finish();
          const std::lock_guard guard(mutex_);
          healthy_.erase(resource);
        });
    return grpc::Status::OK;
  }

  const std::string folder_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Watch>> watches_;
  std::map<std::string, int> healthy_;
};

class DevicePlugin : public test::SharingFixture {
 protected:
  void SetUp() override {
    SharingFixture::SetUp();
    std::filesystem::create_directory(path("kubelet"));
  }
  void TearDown() override {
    plugin_.kill_now();
    kubelet_.reset();
    SharingFixture::TearDown();
  }
  // `more`: options and their values; those that are given already are replaced.
  Words command(const Words& more) const {
    Words words = {
        TESSERA_DEVICE_PLUGIN, "--prefix",      TESSERA_PREFIX, "--gpu",     "soft",    "--socket", socket(),
        "--kubelet",           path("kubelet"), "--cdi",        path("cdi"), "--share", "high=1",   "--share",
        "best-effort=4"};
    for (size_t i = 0; i < more.size(); i += 2) {
      const auto given = more[i] == "--share" ? words.end() : std::find(words.begin(), words.end(), more[i]);
      if (given == words.end())
        words.insert(words.end(), more.begin() + ptrdiff_t(i),
                     more.begin() + ptrdiff_t(std::min(i + 2, more.size())));
      else
        given[1] = more[i + 1];
    }
    return words;
  }
  void start_plugin(const Words& more = {}) {
    auto started = cli::Process::start(command(more), {}, path("plugin.out"), path("plugin.err"));
    ASSERT_TRUE(started.ok());
    plugin_ = std::move(*started);
  }
  bool offers(int high, int best_effort) {
    return eventually([&] {
      return kubelet_->healthy("tessera.dev/high") == high &&
             kubelet_->healthy("tessera.dev/best-effort") == best_effort;
    });
  }
  // Variables that a runtime which reads CDI sets: those of the device, then those of the response.
  Words variables(const v1beta1::ContainerAllocateResponse& given) const {
    Words out;
    for (const auto& device : given.cdi_devices()) {
      const auto edits = kubernetes::edits_of(read_file(path("cdi/tessera.json")), device.name().substr(16));
      EXPECT_TRUE(edits.ok()) << device.name();
      for (const auto& [name, value] : edits->variables) out.push_back(name + "=" + value);
    }
    for (const auto& [name, value] : given.envs()) out.push_back(name + "=" + value);
    // Nothing is mounted here: paths of the container become this machine's.
    const std::string inside = "/usr/lib/tessera";
    std::istringstream libraries(read_file(TESSERA_PREFIX "/lib/ld.so.preload"));
    out.push_back("LD_PRELOAD=");
    for (std::string library; std::getline(libraries, library);) out.back() += library + ":";
    for (std::string& variable : out)
      for (size_t at; (at = variable.find(inside)) != std::string::npos;)
        variable.replace(at, inside.size(), TESSERA_PREFIX);
    return out;
  }
  cli::Process pod(const std::string& name, const v1beta1::ContainerAllocateResponse& given, Words program) {
    Words all = variables(given);
    all.insert(all.end(), {"TESSERA_NAME=" + name, "TESSERA_SOFTGPU_DIR=" + path("gpu")});
    program[0] = kBin + program[0];
    auto started = cli::Process::start(program, all, path(name + ".out"), path(name + ".err"));
    EXPECT_TRUE(started.ok());
    return std::move(*started);
  }
  v1beta1::ContainerAllocateResponse allocated(const std::string& level, const Words& devices) {
    v1beta1::ContainerAllocateResponse given;
    const auto status = kubelet_->allocate(level, devices, &given);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return given;
  }
  void start_all() {
    start_daemon();
    kubelet_ = std::make_unique<Kubelet>(path("kubelet"));
    start_plugin();
    ASSERT_TRUE(offers(1, 4)) << read_file(path("plugin.err"));
  }

  std::unique_ptr<Kubelet> kubelet_;
  cli::Process plugin_;
};

TEST_F(DevicePlugin, TwoPodsShareTheGpuAndAKilledOneLeavesNothing) {
  start_all();
  const auto alone = [&](const std::string& name, const Words& program) {
    auto job = run(name, "best-effort", {}, program, {});
    return job.wait(kPatienceS);
  };
  ASSERT_TRUE(alone("trainer_alone", {kBin + "batch_trainer", "--steps", "3", "--checksum-steps", "3"}).ok());
  ASSERT_TRUE(alone("service_alone", {kBin + "latency_service", "--rate", "50", "--requests", "20"}).ok());
  const Words train = {"batch_trainer", "--seconds", "3600", "--checksum-steps", "3"};
  auto trainer = pod("trainer", allocated("best-effort", {"best-effort-0", "best-effort-3"}), train);
  ASSERT_TRUE(eventually([&] { return client("trainer").value("launches", 0) > 0; })) << ask().dump();
  EXPECT_EQ(client("trainer").value("priority", -1), 0);
  EXPECT_EQ(client("trainer").value("weight", 0), 200);  // two shares
  auto service =
      pod("service", allocated("high", {"high-0"}), {"latency_service", "--rate", "5", "--requests", "20"});
  EXPECT_TRUE(eventually([&] { return client("service").value("priority", -1) == 5; })) << ask().dump();
  // The trainer waits for the service, never the service for it.
  EXPECT_TRUE(eventually([&] {
    return client("trainer").value("holds", 0) > 0 && client("service").value("holds", -1) == 0;
  })) << ask().dump();
  const auto end = service.wait(kPatienceS);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, 0) << read_file(path("service.err"));
  const auto trained = trainer.stop(kPatienceS);
  ASSERT_TRUE(trained.ok());
  for (const std::string job : {"trainer", "service"}) {
    EXPECT_EQ(checksum(job).size(), 16u) << checksum(job);
    EXPECT_EQ(checksum(job), checksum(job + "_alone"));
  }

  auto killed = pod("killed", allocated("best-effort", {"best-effort-1"}), train);
  ASSERT_TRUE(eventually([&] { return !client("killed").empty(); }));
  killed.kill_now();
  EXPECT_TRUE(eventually([&] { return clients().empty(); })) << ask().dump();
}

TEST_F(DevicePlugin, RegistersAgainWithEveryKubelet) {
  start_daemon();
  start_plugin();  // before there is one
  EXPECT_TRUE(
      eventually([&] { return read_file(path("plugin.out")).find("is not there") != std::string::npos; }));
  for (int i = 0; i < 3; i++) {
    kubelet_.reset();
    kubelet_ = std::make_unique<Kubelet>(path("kubelet"));
    ASSERT_TRUE(offers(1, 4)) << i << read_file(path("plugin.out"));
    EXPECT_EQ(allocated("high", {"high-0"}).cdi_devices(0).name(), "tessera.dev/gpu=high");
  }
}

TEST_F(DevicePlugin, ServesAgainWhenItsSocketVanishes) {
  start_all();
  ASSERT_TRUE(std::filesystem::remove(path("kubelet/tessera-high.sock")));
  EXPECT_TRUE(eventually([&] { return kubelet_->registrations() == 3; }));
  EXPECT_TRUE(offers(1, 4));
  EXPECT_EQ(allocated("high", {"high-0"}).envs().at("TESSERA_WEIGHT"), "100");
}

TEST_F(DevicePlugin, ComesBackAfterItWasKilled) {
  start_all();
  plugin_.kill_now();
  EXPECT_TRUE(offers(-1, -1));
  start_plugin();  // over the sockets of the dead one
  EXPECT_TRUE(offers(1, 4)) << read_file(path("plugin.out"));
}

TEST_F(DevicePlugin, SharesAreHealthyWhileTheDaemonAnswers) {
  start_all();
  daemon_.kill_now();
  EXPECT_TRUE(offers(0, 0));
  start_daemon();
  EXPECT_TRUE(offers(1, 4));
}

TEST_F(DevicePlugin, WithoutCdiItHandsOutVariablesAndMounts) {
  start_daemon();
  kubelet_ = std::make_unique<Kubelet>(path("kubelet"));
  start_plugin({"--without-cdi"});
  ASSERT_TRUE(offers(1, 4)) << read_file(path("plugin.err"));
  const auto given = allocated("best-effort", {"best-effort-0"});
  EXPECT_EQ(given.cdi_devices_size(), 0);
  ASSERT_EQ(given.mounts_size(), 3);
  EXPECT_EQ(given.mounts(0).container_path(), "/etc/ld.so.preload");
  EXPECT_EQ(given.mounts(0).host_path(), TESSERA_PREFIX "/lib/ld.so.preload");
  EXPECT_TRUE(given.mounts(0).read_only());
  auto trainer = pod("trainer", given, {"batch_trainer", "--steps", "2"});
  const auto end = trainer.wait(kPatienceS);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, 0) << read_file(path("trainer.err"));
  EXPECT_FALSE(std::filesystem::exists(path("cdi")));
}

TEST_F(DevicePlugin, BadRequestsNameTheRemedy) {
  start_all();
  v1beta1::ContainerAllocateResponse given;
  const auto status = kubelet_->allocate("best-effort", {"best-effort-4"}, &given);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("best-effort-0 to best-effort-3"), std::string::npos)
      << status.error_message();

  const std::pair<Words, const char*> cases[] = {
      {{"--share", "fast=1"}, "level 'fast' is none of: best-effort, high"},
      {{"--share", "high"}, "is not LEVEL=COUNT"},
      {{"--share", "high=0"}, "a count from 1 to 100"},
      {{"--share", "high=2x"}, "is not LEVEL=COUNT"},
      {{"--cdi", "/proc/none"}, "--without-cdi"},
      {{"--prefix", "/nowhere"}, "/nowhere/lib/softgpu"},
  };
  for (const auto& [words, text] : cases) {
    auto started = cli::Process::start(command(words), {}, path("bad.out"), path("bad.err"));
    ASSERT_TRUE(started.ok());
    const auto end = started->wait(kPatienceS);
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, 1);
    EXPECT_NE(read_file(path("bad.err")).find(text), std::string::npos) << read_file(path("bad.err"));
  }
}

}  // namespace
}  // namespace tessera
