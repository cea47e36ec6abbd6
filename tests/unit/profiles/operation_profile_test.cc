// Counts of library calls: the table as a program leaves it, and its place in a profile file.
#include "profiles/operation_profile.h"

#include <stdlib.h>
#include <string.h>

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operations/table.h"
#include "profiles/kernel_profile.h"

namespace tessera::profiles {
namespace {

using operations::Entry;
using operations::TableHeader;
using operations::TableSlot;
using testing::HasSubstr;

class OperationTable : public testing::Test {
 protected:
  OperationTable() {
    char folder[] = "/tmp/tessera-operations-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    const std::string path = folder_ + "/table";
    EXPECT_TRUE(make_operation_table(path).ok());
    auto empty = read_operation_table(path, nullptr);
    EXPECT_TRUE(empty.ok() && empty->operations.empty() && empty->further_calls == 0);
    EXPECT_FALSE(read_operation_table(folder_, nullptr).ok());
    bytes_.resize(operations::kTableBytes);
    TableHeader header{};
    memcpy(header.magic, operations::kTableMagic, sizeof header.magic);
    header.version = operations::kTableVersion;
    header.slots = operations::kTableSlots;
    put_header(header);
    gpu_.peak.fp32 = 1e12;
    gpu_.memory.bytes_per_s = 1e11;
  }
  ~OperationTable() override { std::filesystem::remove_all(folder_); }

  void put_header(const TableHeader& header) { memcpy(bytes_.data(), &header, sizeof header); }
  void put(uint32_t at, const TableSlot& slot) {
    memcpy(bytes_.data() + sizeof(TableHeader) + at * sizeof slot, &slot, sizeof slot);
  }
  static TableSlot slot(Entry entry = Entry::cublasSgemm_v2) {
    TableSlot out{};
    out.state = operations::kSlotReady;
    out.entry = uint32_t(entry);
    out.dims[0] = 64, out.dims[1] = 32, out.dims[2] = 16, out.n_dims = 3;
    out.count = 1;
    out.flop = 2'000'000, out.bytes = 100'000, out.calls = 5;
    return out;
  }
  base::Result<OperationCounts> parse() { return parse_operation_table(bytes_, "t", &gpu_); }

  std::string folder_, bytes_;
  GpuDescription gpu_;
};

TEST_F(OperationTable, CallsBecomeRecordsByShapeAndType) {
  put(0, slot());
  put(4095, slot());  // two threads took a slot for the same shape
  TableSlot batch = slot(Entry::cublasGemmStridedBatchedEx);
  batch.count = 8;
  batch.types[0] = batch.types[1] = batch.computed_as = 2;  // CUDA_R_16F
  put(7, batch);
  TableSlot groups = slot(Entry::cublasSgemmGroupedBatched);
  groups.dims[0] = groups.dims[1] = groups.dims[2] = 0, groups.n_dims = 0, groups.count = 3;
  put(8, groups);
  TableSlot unfinished = slot();
  unfinished.state = operations::kSlotWriting;
  put(9, unfinished);
  auto counts = parse();
  ASSERT_TRUE(counts.ok()) << counts.error().text;
  ASSERT_EQ(counts->operations.size(), 3u);
  const OperationProfile& one = counts->operations.at({"cublasSgemm_v2", "64x32x16", "f32"});
  EXPECT_EQ(one.calls, 10u);
  EXPECT_EQ(one.flop, 20'000'000u);
  EXPECT_EQ(one.bytes, 1'000'000u);
  EXPECT_EQ(one.bound, Class::kCompute);
  EXPECT_DOUBLE_EQ(one.at_least_ns, 20'000);
  // Nothing is known of half precision on this GPU.
  const OperationProfile& half =
      counts->operations.at({"cublasGemmStridedBatchedEx", "64x32x16 * 8", "f16,f16,f32"});
  EXPECT_EQ(half.bound, Class::kUnknown);
  EXPECT_EQ(half.at_least_ns, 0);
  EXPECT_EQ(counts->operations.count({"cublasSgemmGroupedBatched", "3 groups", "f32"}), 1u);
}

// Calls that were captured count with the launches of their graph, also where none was made otherwise.
TEST_F(OperationTable, LaunchesBelowCallsAddTimeAndCalls) {
  TableSlot captured = slot(Entry::cublasDgemm_v2);
  captured.calls = 0;
  put(0, slot());
  put(1, captured);
  Launches launches;
  add_launch(launches, 0, 7);  // below no call
  add_launch(launches, 1, 10);
  for (int i = 0; i < 3; i++) {
    add_launch(launches, 2 | operations::kTagOfNode, 100);
    add_launch(launches, 2, 1);  // another kernel of that call
  }
  auto counts = parse_operation_table(bytes_, "t", &gpu_, launches);
  ASSERT_TRUE(counts.ok()) << counts.error().text;
  const OperationProfile& one = counts->operations.at({"cublasSgemm_v2", "64x32x16", "f32"});
  EXPECT_EQ(one.calls, 5u);
  EXPECT_EQ(one.gpu_ns, 10);
  const OperationProfile& graph = counts->operations.at({"cublasDgemm_v2", "64x32x16", "f32"});
  EXPECT_EQ(graph.calls, 3u);
  EXPECT_EQ(graph.flop, 6'000'000u);
  EXPECT_EQ(graph.gpu_ns, 303);
}

// The same product, by way of TF32: another pipe, another class.
TEST_F(OperationTable, TheTypeThatComputesSaysTheClass) {
  gpu_.peak.tensor_tf32 = 1e15;
  TableSlot converted = slot();
  converted.computed_as = int32_t(operations::Type::kTF32);
  put(0, slot());
  put(1, converted);
  auto counts = parse();
  ASSERT_TRUE(counts.ok()) << counts.error().text;
  EXPECT_EQ(counts->operations.at({"cublasSgemm_v2", "64x32x16", "f32"}).bound, Class::kCompute);
  EXPECT_EQ(counts->operations.at({"cublasSgemm_v2", "64x32x16", "f32 as tf32"}).bound, Class::kMemory);
}

TEST_F(OperationTable, SumsStopAtTheMostThatFits) {
  TableSlot most = slot();
  most.flop = most.bytes = most.calls = UINT64_MAX;
  put(0, most);
  put(1, most);
  auto counts = parse();
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->operations.begin()->second.flop, UINT64_MAX);
  EXPECT_EQ(counts->operations.begin()->second.calls, UINT64_MAX);
}

TEST_F(OperationTable, WhatIsNoTableIsRefused) {
  TableHeader header;
  memcpy(&header, bytes_.data(), sizeof header);
  const auto refused = [&](const char* why) {
    auto counts = parse();
    ASSERT_FALSE(counts.ok());
    EXPECT_THAT(counts.error().text, testing::StartsWith("t: "));
    EXPECT_THAT(counts.error().text, HasSubstr(why));
  };
  TableHeader other = header;
  other.version++;
  put_header(other);
  refused("of this release");
  put_header(header);
  for (const int kind : {0, 1, 2, 3}) {
    TableSlot bad = slot();
    if (kind == 0) bad.entry = operations::kEntries;
    if (kind == 1) bad.n_dims = operations::kMostDims + 1;
    if (kind == 2) bad.dims[0] = -1;
    if (kind == 3) bad.count = -1;
    put(3, bad);
    refused("slot 3 is garbled");
  }
  put(3, slot());
  EXPECT_TRUE(parse().ok());
  bytes_.pop_back();
  refused("bytes");
}

TEST_F(OperationTable, ProfilesKeepOperations) {
  put(0, slot());
  TableSlot larger = slot();
  larger.dims[0] = 128, larger.flop *= 3;
  put(1, larger);
  auto counts = parse();
  ASSERT_TRUE(counts.ok());
  Profile profile;
  profile.operations = counts->operations;
  auto again = parse_profile(format_profile(profile), "p");
  ASSERT_TRUE(again.ok()) << again.error().text;
  ASSERT_EQ(again->operations.size(), 2u);
  const OperationKey key{"cublasSgemm_v2", "64x32x16", "f32"};
  EXPECT_EQ(again->operations.at(key).flop, 10'000'000u);
  EXPECT_EQ(again->operations.at(key).bound, Class::kCompute);
  EXPECT_THAT(format_profile(*again), HasSubstr("\"share\": 0.25"));
  merge(*again, profile);
  EXPECT_EQ(again->operations.at(key).calls, 10u);
  EXPECT_THAT(format_profile(*again), HasSubstr("\"share\": 0.25"));
  // A profile without operations says nothing of them, as before.
  EXPECT_EQ(format_profile({}).find("operations\""), std::string::npos);
}

TEST(OperationRecords, UnknownFieldsAreKeptAndBadOnesNamed) {
  const std::string head = R"({"tessera_profile_version": 1, "kernels": [], "operations": )";
  auto read = parse_profile(
      head + R"([{"name": "f", "shape": "1x1x1", "type": "f32", "calls": 1, "flop": 2, "bytes": 3,
                                      "colour": "red"}]})",
      "p");
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_THAT(format_profile(*read), HasSubstr("\"colour\": \"red\""));
  for (const char* bad :
       {"7", R"([{"name": "f", "shape": "1x1x1", "type": "f32", "flop": 2, "bytes": 3}])",
        R"([{"name": "f", "shape": 1, "type": "f32", "calls": 1, "flop": 2, "bytes": 3}])",
        R"([{"name": "f", "shape": "1", "type": "f32", "calls": -1, "flop": 2, "bytes": 3}])"}) {
    auto refused = parse_profile(head + bad + "}", "p");
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.error().text, HasSubstr("operations"));
  }
}

}  // namespace
}  // namespace tessera::profiles
