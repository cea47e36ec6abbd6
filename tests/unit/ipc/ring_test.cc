#include "ipc/channel/ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace tessera::ipc {
namespace {

struct Ring {
  static constexpr uint32_t kSlots = 8;
  alignas(64) unsigned char memory[offsetof(abi::RecordRing, slots) + kSlots * sizeof(abi::Record)] = {};
  abi::RecordRing* get() { return reinterpret_cast<abi::RecordRing*>(memory); }
};

abi::Record numbered(uint64_t n) {
  return {.kind = abi::kRecordKernel,
          .resource_class = uint32_t(n & 3),
          .key = n,
          .duration_ns = n % 1000,
          .end_ns = n,
          .blocks = ~n};
}

TEST(Ring, KeepsOrderAcrossWraparoundAndDropsWhenFull) {
  Ring ring;
  RingWriter writer(ring.get(), Ring::kSlots);
  RingReader reader(ring.get(), Ring::kSlots);
  abi::Record r;
  EXPECT_EQ(reader.read(&r), RingRead::kEmpty);
  uint64_t written = 0, read = 0;
  for (int round = 0; round < 100; ++round) {
    for (unsigned i = 0; i < Ring::kSlots - unsigned(round % 3); ++i)
      ASSERT_TRUE(writer.write(numbered(written++)));
    if (round % 3 == 0) {
      ASSERT_FALSE(writer.write(numbered(999)));
    }
    while (reader.read(&r) == RingRead::kRecord) {
      EXPECT_EQ(r.key, read);
      EXPECT_EQ(r.blocks, ~read);
      ++read;
    }
    ASSERT_EQ(read, written);
  }
}

TEST(Ring, CountersWrapAroundTheEndOfTheirRange) {
  Ring ring;
  // A ring that has run for ever: differences stay right when head and tail overflow. Slots hold either way.
  ring.get()->head = ring.get()->tail = UINT64_MAX - 2;
  RingWriter writer(ring.get(), Ring::kSlots);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(writer.write(numbered(uint64_t(i))));
  EXPECT_EQ(ring.get()->head, 3u);
}

TEST(Ring, ImpossibleHeadsAreFound) {
  for (uint64_t head : {uint64_t(Ring::kSlots + 1), UINT64_MAX, uint64_t(1) << 63}) {
    Ring ring;
    RingReader reader(ring.get(), Ring::kSlots);
    ring.get()->head = head;
    abi::Record r;
    EXPECT_EQ(reader.read(&r), RingRead::kBadHead) << head;
  }
  Ring ring;  // running backwards
  RingWriter writer(ring.get(), Ring::kSlots);
  RingReader reader(ring.get(), Ring::kSlots);
  abi::Record r;
  for (int i = 0; i < 3; ++i) writer.write(numbered(1));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(reader.read(&r), RingRead::kRecord);
  ring.get()->head = 2;
  EXPECT_EQ(reader.read(&r), RingRead::kBadHead);
}

TEST(Ring, AHostileTailConfusesOnlyItsWriter) {
  Ring ring;
  RingWriter writer(ring.get(), Ring::kSlots);
  RingReader reader(ring.get(), Ring::kSlots);
  writer.write(numbered(5));
  ring.get()->tail = 77;  // the reader keeps its own
  abi::Record r;
  EXPECT_EQ(reader.read(&r), RingRead::kRecord);
  EXPECT_EQ(r.key, 5u);
  EXPECT_EQ(reader.read(&r), RingRead::kEmpty);
}

TEST(Ring, InvalidRecordsAreConsumedAndReported) {
  Ring ring;
  RingWriter writer(ring.get(), Ring::kSlots);
  RingReader reader(ring.get(), Ring::kSlots);
  std::vector<abi::Record> bad(4, numbered(1));
  bad[0].kind = 99;
  bad[1].resource_class = 4;
  bad[2].duration_ns = UINT64_MAX;
  bad[3].request_kind = abi::kRequestKinds;
  for (const abi::Record& b : bad) writer.write(b);
  writer.write(numbered(8));
  abi::Record r;
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_EQ(reader.read(&r), RingRead::kBadRecord) << i;
  EXPECT_EQ(reader.read(&r), RingRead::kRecord);
}

TEST(Ring, RandomContentNeverReadsOutsideOrForEver) {  // meaningful under ASan
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    auto ring = std::make_unique<Ring>();
    for (size_t i = 0; i < sizeof ring->memory; i += 8)
      *reinterpret_cast<uint64_t*>(ring->memory + i) = random() >> (random() % 64);
    RingReader reader(ring->get(), Ring::kSlots);
    abi::Record r;
    unsigned reads = 0;
    for (RingRead got; (got = reader.read(&r)) == RingRead::kRecord || got == RingRead::kBadRecord;)
      ASSERT_LE(++reads, Ring::kSlots);
  }
}

TEST(Ring, TwoThreads) {  // meaningful under TSan
  Ring ring;
  constexpr uint64_t kRecords = 20000;
  std::thread producer([&] {
    RingWriter writer(ring.get(), Ring::kSlots);
    for (uint64_t n = 0; n < kRecords;)
      if (writer.write(numbered(n)))
        ++n;
      else
        std::this_thread::yield();
  });
  RingReader reader(ring.get(), Ring::kSlots);
  bool intact = true;
  for (uint64_t n = 0; n < kRecords;) {
    abi::Record r;
    RingRead got = reader.read(&r);
    if (got == RingRead::kEmpty) {
      std::this_thread::yield();
      continue;
    }
    intact &= got == RingRead::kRecord && r.key == n && r.blocks == ~n && r.end_ns == n;
    ++n;
  }
  producer.join();
  EXPECT_TRUE(intact);
}

}  // namespace
}  // namespace tessera::ipc
