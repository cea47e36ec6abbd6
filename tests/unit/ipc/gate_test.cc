// The word of the gate on the device: what passes it, and that no closing is lost.
#include "ipc/channel/gate.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/units.h"

namespace tessera::ipc {
namespace {

using base::ms, base::us;

struct Page : abi::GatePage {
  Page() : abi::GatePage{} {
    for (uint32_t byte = 0; byte < abi::kGateOverrideByte; byte++) set(byte, abi::kGateByteOpen);
  }
  void set(uint32_t byte, uint8_t value) { gate_byte(*this, byte).store(value); }
  uint8_t get(uint32_t byte) { return gate_byte(*this, byte).load(); }
};

TEST(GateWord, ANewPageIsClosed) {
  abi::GatePage page{};
  EXPECT_FALSE(gate_is_open(page));
}

TEST(GateWord, OpenTakesEveryByte) {
  Page page;
  EXPECT_TRUE(gate_is_open(page));
  EXPECT_EQ(page.word, abi::kGateOpen);
  for (uint32_t byte = 0; byte < abi::kGateOverrideByte; byte++) {
    for (uint32_t value = 0; value < abi::kGateByteOpen; value++) {
      page.set(byte, uint8_t(value));
      EXPECT_FALSE(gate_is_open(page)) << byte << " " << value;
    }
    page.set(byte, abi::kGateByteOpen);
  }
  EXPECT_TRUE(gate_is_open(page));
}

TEST(GateWord, ByteZeroSaysHowLongWorkMayBe) {
  Page page;
  for (uint32_t longest = 0; longest < abi::kGateClasses; longest++) {
    set_gate_turn(page, abi::gate_class(longest));
    for (uint32_t of = 0; of < abi::kGateClasses; of++) {
      EXPECT_EQ(passes_gate(page.word, of), of <= longest) << longest << " " << of;
      page.set(1, 1);
      EXPECT_FALSE(passes_gate(page.word, of)) << "a busy client closes for all";
      page.set(1, abi::kGateByteOpen);
    }
  }
  set_gate_turn(page, 0);
  EXPECT_FALSE(passes_gate(page.word, 0));
}

TEST(LengthClass, HoldsWhatEndsInTime) {
  for (const uint64_t ns : {uint64_t(1), us(20), us(20) + 1, us(300), ms(5), ms(500)}) {
    EXPECT_GE(base::kLongestOfClass[base::length_class(ns)], ns);
    const uint32_t within = base::class_within(ns);
    EXPECT_TRUE(within == 0 || base::kLongestOfClass[within] <= ns);
  }
  EXPECT_EQ(base::length_class(ms(500)), base::kLongestClass);
  EXPECT_LT(base::class_within(ms(500)), base::kLongestClass);
}

TEST(GateWord, TheOverrideOpensWhateverElseStandsThere) {
  for (const auto who : {abi::kGateOwnerOpens, abi::kGateDaemonOpens}) {
    Page page;
    for (uint32_t byte = 0; byte < abi::kGateOverrideByte; byte++) page.set(byte, uint8_t(byte * 37));
    EXPECT_FALSE(gate_is_open(page));
    override_gate(page, who, true);
    EXPECT_TRUE(gate_is_open(page));
    override_gate(page, who, false);
    EXPECT_FALSE(gate_is_open(page));
  }
  Page both;
  override_gate(both, abi::kGateOwnerOpens, true);
  override_gate(both, abi::kGateDaemonOpens, true);
  override_gate(both, abi::kGateDaemonOpens, false);
  both.set(3, 1);
  EXPECT_TRUE(gate_is_open(both)) << "what one of them wants the other cannot take back";
}

TEST(GateWord, ABurstIsOpenedByItsOwnNumberOnly) {
  Page page;
  close_gate(page, 2, 300);
  const auto seen = uint8_t(300 & abi::kGateBurstMask);
  EXPECT_EQ(page.get(2), seen);
  close_gate(page, 2, 301);  // another one has begun
  EXPECT_FALSE(reopen_gate(page, 2, seen));
  EXPECT_FALSE(gate_is_open(page));
  EXPECT_TRUE(reopen_gate(page, 2, uint8_t(301 & abi::kGateBurstMask)));
  EXPECT_TRUE(gate_is_open(page));
  EXPECT_FALSE(reopen_gate(page, 2, abi::kGateByteOpen));
}

TEST(GateWord, NoNumberOfABurstReadsAsOpenOrUnmapped) {
  for (uint64_t burst = 0; burst < 1000; burst++) {
    Page page;
    close_gate(page, 1, burst);
    EXPECT_NE(page.get(1), abi::kGateByteOpen);
    EXPECT_NE(page.get(1), abi::kGateUnmapped);
  }
}

// Each client stores its own byte, and nobody's store takes another's along.
TEST(GateWord, ClientsDoNotDisturbEachOther) {
  Page page;
  std::thread clients[abi::kGatePeers];
  for (uint32_t i = 0; i < abi::kGatePeers; i++) {
    clients[i] = std::thread([&page, byte = abi::kGateFirstPeer + i] {
      for (uint64_t burst = 0; burst < 20'000; burst++) {
        close_gate(page, byte, burst);
        EXPECT_FALSE(gate_is_open(page));
        EXPECT_TRUE(reopen_gate(page, byte, uint8_t(burst & abi::kGateBurstMask)));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(page.word, abi::kGateOpen);
}

}  // namespace
}  // namespace tessera::ipc
