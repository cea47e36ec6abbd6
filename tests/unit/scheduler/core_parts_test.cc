// The parts of the daemon's core (scheduler_daemon/core), each without the others but for those that it is made of.
#include "ipc/abi/placement.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

class CoreParts : public ::testing::Test {
 protected:
  static constexpr uid_t kUid = 1000;

  Client& client(pid_t pid, uint32_t priority = 0, const char* name = "test") {
    auto made = std::make_unique<Client>();
    made->connection = made->id = uint32_t(pid);
    made->identity = {pid, kUid, kUid};
    made->name = name;
    made->priority = priority;
    made->memory = ipc::create_client_memory(1, made->id, priority, {}).value();
    return *common_.clients.emplace(made->connection, std::move(made)).first->second;
  }
  Client& on_gpu(pid_t pid, uint8_t gpu, uint32_t priority = 0) {
    Client& made = client(pid, priority);
    made.gpus.push_back({.uuid = {gpu}});
    gpus_.join(made, 100);
    return made;
  }

  FakePeers peers_;
  Common common_{{}, peers_, ms(1000), ms(1000)};
  Gpus gpus_{common_};
};

TEST_F(CoreParts, TracesTellWhoMayTraceAndEndWithTheLastTracer) {
  core::Traces traces(common_);
  Client& traced = client(7);
  traces.begin(100, {1, kUid + 1, kUid + 1}, 0);  // of another user
  EXPECT_EQ(peers_.count(100, abi::kTraced), 0u);
  EXPECT_FALSE(traced.trace.memory.valid());
  traces.begin(101, {1, kUid, kUid}, 7);
  EXPECT_EQ(peers_.count(101, abi::kTraced), 1u);
  EXPECT_TRUE(traced.trace.memory.valid());
  traces.end(100);
  EXPECT_TRUE(traced.trace.memory.valid());
  traces.end(101);
  EXPECT_FALSE(traced.trace.memory.valid());
  for (Connection tracer = 1; !traces.is_full(); ++tracer) traces.begin(tracer, {1, kUid, kUid}, 1);
  EXPECT_TRUE(traces.has(8));
  EXPECT_FALSE(traces.has(9));
}

TEST_F(CoreParts, AnEngineThatDoesNotSleepLeavesItsClientsToTheCheckpoint) {
  common_.settings.engines = {{"vllm", kUid, "http://127.0.0.1:1/sleep", "http://127.0.0.1:1/wake"}};
  core::Engines engines(common_);
  Client &one = client(1, 0, "vllm"), &two = client(2, 0, "vllm"), &other = client(3);
  EXPECT_FALSE(engines.ask(other, true));  // it has no engine
  EXPECT_TRUE(engines.ask(one, true)->ok());
  ASSERT_EQ(peers_.engine_requests.size(), 1u);
  EXPECT_TRUE(engines.falls_asleep(two));
  const uint64_t request = peers_.engine_requests[0].first;
  EXPECT_TRUE(engines.answered(request + 1, "late").empty());  // nobody asked that
  EXPECT_EQ(engines.answered(request, "refused"), (std::vector<Client*>{&one, &two}));
  EXPECT_FALSE(engines.falls_asleep(two));
}

TEST_F(CoreParts, APlacedProgramCountsUntilItArrivesAndThenAsItself) {
  core::Parking parking(common_);
  core::Memory memory(common_, parking);
  core::Placement placement(common_, memory);
  struct {
    abi::PlaceQuery query{};
    abi::PlaceGpu gpus[2]{{.uuid = {1}}, {.uuid = {2}}};
  } question;
  question.query.n_gpus = 2;
  ipc::Packet packet;
  packet.bytes = sizeof question;
  std::memcpy(packet.data, &question, sizeof question);
  const auto chosen = [&](pid_t pid) { return placement.answer({pid, kUid, kUid}, packet)->chosen; };
  EXPECT_EQ(chosen(1), 0u);
  EXPECT_EQ(chosen(2), 1u);
  Client& first = on_gpu(1, 1);
  placement.arrived(first, first.gpus[0]);
  EXPECT_EQ(chosen(3), 0u);  // one program on each: the first of equals
  common_.now_ns += ms(60'000);
  EXPECT_EQ(chosen(4), 1u);  // 2 and 3 never came
}

TEST_F(CoreParts, AGpuIsThereAsLongAsItHasClients) {
  Client &one = on_gpu(1, 1), &two = on_gpu(2, 1);
  EXPECT_EQ(gpus_.at({1}).clients().size(), 2u);
  EXPECT_EQ(gpus_.leave(one), std::vector<Gpu*>{&gpus_.at({1})});
  EXPECT_TRUE(gpus_.leave(two).empty());
  EXPECT_TRUE(gpus_.all().empty());
}

TEST_F(CoreParts, AGpuDecidesWhereSomethingHappened) {
  core::Gangs gangs(common_, gpus_);
  on_gpu(1, 1), on_gpu(2, 2);
  gpus_.at({1}).run(gangs, common_.now_ns);
  EXPECT_EQ(common_.counters.decisions, 1u);
  gpus_.at({1}).run(gangs, common_.now_ns);
  EXPECT_EQ(common_.counters.decisions, 1u);
  gpus_.at({1}).decide_soon();
  gpus_.at({1}).run(gangs, common_.now_ns);
  EXPECT_EQ(common_.counters.decisions, 2u);
}

TEST_F(CoreParts, MembersOfAGangWatchOnAllItsGpus) {
  core::Gangs gangs(common_, gpus_);
  Client &one = on_gpu(1, 1), &two = on_gpu(2, 2);
  gangs.join(one, "job");
  EXPECT_EQ(gangs.may_watch_on(one), std::vector<Gpu*>{&gpus_.at({1})});
  gangs.join(two, "job");
  EXPECT_EQ(gangs.may_watch_on(one), (std::vector<Gpu*>{&gpus_.at({1}), &gpus_.at({2})}));
  EXPECT_EQ(gangs.leave(two)->members, std::vector<Client*>{&one});
  EXPECT_EQ(gangs.leave(two), nullptr);
  EXPECT_EQ(gangs.leave(one), nullptr);  // nobody is left
}

TEST_F(CoreParts, AClientThatReadsSlowlyIsToldWhenItHasRead) {
  core::Gangs gangs(common_, gpus_);
  core::PeerPages pages(common_, gpus_, gangs);
  Client &service = on_gpu(1, 1, 5), &watcher = on_gpu(2, 1);
  service.pulse_sealed = true;
  peers_.deaf = watcher.connection;
  pages.share(gpus_.at({1}));
  EXPECT_EQ(watcher.behind_since_ns, common_.now_ns);
  peers_.deaf = 0;
  pages.bring_up_to_date(watcher);
  EXPECT_EQ(watcher.behind_since_ns, 0u);
  EXPECT_EQ(peers_.count(watcher.connection, abi::kPeerPulse), 1u);
}

}  // namespace
}  // namespace tessera::core
