// The daemon's answer to `tessera run --place`: who is on each GPU, and who was told to go there.
#include <nlohmann/json.hpp>

#include "ipc/abi/placement.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

constexpr uint64_t kGib = uint64_t(1) << 30;

struct Place : CoreTest {
  ipc::Packet question(uint32_t priority, uint64_t memory_bytes, std::vector<uint8_t> gpus,
                       uint64_t gpu_bytes = 80 * kGib) {
    abi::PlaceQuery q{};
    q.priority = priority;
    q.memory_bytes = memory_bytes;
    q.n_gpus = uint32_t(gpus.size());
    ipc::Packet p;
    p.bytes = sizeof q + gpus.size() * sizeof(abi::PlaceGpu);
    q.query = {ipc::make_header(abi::kQuery, p.bytes), abi::kQueryPlace, 0};
    std::memcpy(p.data, &q, sizeof q);
    for (size_t i = 0; i < gpus.size(); ++i) {
      abi::PlaceGpu gpu{.uuid = {gpus[i]}, .memory_bytes = gpu_bytes};
      std::memcpy(p.data + sizeof q + i * sizeof gpu, &gpu, sizeof gpu);
    }
    return p;
  }
  nlohmann::json answer(pid_t pid, const ipc::Packet& packet, uid_t uid = 1000) {
    const Connection c = connect(pid, uid);
    core_->received(c, packet, now_ns_);
    const auto* reply = peers_.last(c, abi::kReply);
    if (reply == nullptr) return {};
    return nlohmann::json::parse(reply->bytes.begin() + sizeof(abi::Reply), reply->bytes.end(), nullptr,
                                 false);
  }
  size_t chosen(pid_t pid, uint32_t priority = 0, uint64_t memory_bytes = 0) {
    return answer(pid, question(priority, memory_bytes, {1, 2, 3}))["chosen"];
  }
};

TEST_F(Place, ThoseWhoStartAtOnceGoToDifferentGpus) {
  EXPECT_EQ(chosen(1), 0u);
  EXPECT_EQ(chosen(2), 1u);
  EXPECT_EQ(chosen(3), 2u);
  EXPECT_EQ(chosen(4), 0u);
  EXPECT_EQ(chosen(2), 1u);  // it asks again: its old place is its own
}

TEST_F(Place, WhoHasArrivedCountsOnceAndLeavesItsPlaceWhenItGoes) {
  EXPECT_EQ(chosen(1, 0, 30 * kGib), 0u);
  Peer one = attach(1, 0, 1);
  EXPECT_EQ(answer(2, question(0, 0, {1, 2}))["gpus"][0]["programs"], 1u);
  EXPECT_EQ(answer(3, question(0, 60 * kGib, {1}))["gpus"][0]["memory_fits"], false);  // 30 + 60 > 80
  core_->disconnected(one.connection);
  run(ms(60'000));  // 2 and 3 have not come either
  const auto later = answer(4, question(0, 60 * kGib, {1}));
  EXPECT_EQ(later["gpus"][0]["programs"], 0u);
  EXPECT_EQ(later["gpus"][0]["memory_fits"], true);
}

TEST_F(Place, MemoryComesFirstThenWhatServicesCostEachOther) {
  Peer service = attach(1, 7, 1), trainer = attach(2, 0, 2);
  EXPECT_EQ(chosen(3, 7), 2u);
  EXPECT_EQ(chosen(4, 7), 1u);  // trainings make way, services do not
  EXPECT_EQ(answer(5, question(0, 100 * kGib, {1, 2, 3}))["gpus"][2]["memory_fits"], false);
}

TEST_F(Place, AServiceCountsByHowMuchOfTheTimeItWorks) {
  Peer idle = attach(1, 7, 1), busy = attach(2, 7, 2);
  busy.pulse().busy = 1;
  busy.pulse().busy_since_ns = now_ns_;
  busy.pulse().heartbeat_ns = now_ns_ + ms(20'000);
  now_ns_ += ms(20'000);
  const auto costs = answer(3, question(7, 0, {1, 2}));
  EXPECT_EQ(costs["chosen"], 0u);
  EXPECT_LT(double(costs["gpus"][0]["cost"]), 0.01);
}

TEST_F(Place, NonsenseIsMalformedAndAUserCannotFillTheNode) {
  for (uint32_t n : {0u, abi::kMostPlaceGpus + 1, 3u}) {
    ipc::Packet p = question(0, 0, {1, 2});
    reinterpret_cast<abi::PlaceQuery*>(p.data)->n_gpus = n;
    EXPECT_TRUE(answer(1, p).is_null()) << n;
  }
  ipc::Packet level = question(8, 0, {1});
  EXPECT_TRUE(answer(1, level).is_null());
  ipc::Packet end = question(0, 0, {1});
  end.bytes = sizeof(abi::Query);
  reinterpret_cast<abi::MessageHeader*>(end.data)->bytes = uint32_t(end.bytes);
  EXPECT_TRUE(answer(1, end).is_null());
  for (pid_t pid = 100; pid < 1100; ++pid) answer(pid, question(0, uint64_t(-1), {1}));
  EXPECT_LE(size_t(answer(5000, question(0, 0, {1}), 2000)["gpus"][0]["programs"]), 65u);
}

}  // namespace
}  // namespace tessera::core
