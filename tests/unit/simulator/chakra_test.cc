// Execution traces of Chakra: their bytes, and the workloads that they make.
#include "simulator/chakra_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::simulator {
namespace {

using chakra::Attribute;
using chakra::Node;
using chakra::NodeType;
using testing::HasSubstr;

constexpr uint32_t kSms = 4;
constexpr uint64_t kMs = 1'000'000;

Node node(uint64_t id, NodeType type, std::vector<uint64_t> depends_on, uint64_t start_us,
          uint64_t duration_us, std::vector<Attribute> attributes = {}) {
  return {id,          "n" + std::to_string(id), type, {}, std::move(depends_on), start_us,
          duration_us, std::move(attributes)};
}
Node kernel(uint64_t id, std::vector<uint64_t> depends_on, uint64_t start_us, uint64_t duration_us,
            std::vector<Attribute> attributes = {}) {
  return node(id, NodeType::kCompute, std::move(depends_on), start_us, duration_us, std::move(attributes));
}
Node host(uint64_t id, std::vector<uint64_t> depends_on, uint64_t start_us, uint64_t duration_us) {
  return kernel(id, std::move(depends_on), start_us, duration_us, {{"is_cpu_op", true}});
}

// By hand from the schema and the protocol buffers' encoding.
TEST(Chakra, BytesAreThoseOfTheSchema) {
  chakra::Trace trace;
  trace.version = "v";
  trace.nodes = {{300, "k", NodeType::kCompute, {1}, {2, 150}, 5, 6, {{"b", true}, {"i", int64_t(-1)}}}};
  const std::string expected(
      "\x03\x0a\x01v"         // metadata: version
      "\x2c"                  // the node's length
      "\x08\xac\x02"          // id 300
      "\x12\x01k"             // name
      "\x18\x04"              // type
      "\x22\x01\x01"          // ctrl_deps, packed
      "\x2a\x03\x02\x96\x01"  // data_deps, packed
      "\x30\x05\x38\x06"      // start, duration
      "\x52\x06\x0a\x01"
      "b\xd8\x01\x01"                                                   // attribute: bool
      "\x52\x0e\x0a\x01i\x48\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  // attribute: int64
      49);
  EXPECT_EQ(chakra::encode(trace), expected);
}

TEST(Chakra, WhatIsWrittenIsReadAgain) {
  chakra::Trace trace;
  trace.attributes = {{"tool", std::string("x")}, {"pid", uint64_t(7)}};
  trace.nodes = {kernel(0, {}, 0, 0, {{"d", 2.5}, {"u", uint64_t(0)}, {"f", false}, {"s", std::string()}}),
                 kernel(1, {0}, 1, 2)};
  trace.nodes[1].control_dependencies = {0, 0};
  const auto read = chakra::decode(chakra::encode(trace));
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_EQ(chakra::number(read->attributes, "pid"), 7u);
  ASSERT_EQ(read->nodes.size(), 2u);
  EXPECT_EQ(std::get<double>(chakra::find(read->nodes[0].attributes, "d")->value), 2.5);
  EXPECT_EQ(std::get<std::string>(chakra::find(read->nodes[0].attributes, "s")->value), "");
  EXPECT_EQ(read->nodes[1].control_dependencies, (std::vector<uint64_t>{0, 0}));
  EXPECT_EQ(chakra::encode(*read), chakra::encode(trace));
}

TEST(Chakra, OtherFilesAreRefusedWithAReason) {
  for (const std::string& bytes :
       {std::string("\x05\x0a", 2), std::string("{\"traceEvents\": []}"), std::string(),
        std::string("\0\x02\x08\xff", 4), std::string(20, '\xff')}) {
    const auto read = chakra::decode(bytes);
    ASSERT_FALSE(read.ok());
    EXPECT_THAT(read.error().text, HasSubstr("Chakra"));
  }
}

TEST(ChakraWorkload, AStreamOfKernelsWithAWaitIsSteps) {
  chakra::Trace trace;
  trace.nodes = {host(5, {4}, 700, 50),  // as nodes come in any order
                 kernel(1, {}, 0, 100, {{"blocks", uint64_t(32)}}),
                 kernel(2, {1}, 10, 100, {{"blocks", uint64_t(32)}}),
                 kernel(3, {2}, 20, 300, {{"blocks", uint64_t(1)}, {"cut", true}}),
                 node(4, NodeType::kMemoryStore, {3}, 30, 40),
                 node(7, NodeType::kStorage, {5}, 755, 20),
                 kernel(6, {5}, 760, 10)};
  trace.nodes[1].name = trace.nodes[2].name = "same";
  const auto made = workload_of(trace, "w", kSms);
  ASSERT_TRUE(made.ok()) << made.error().text;
  ASSERT_EQ(made->steps.size(), 2u);
  const auto& segments = made->steps[0].segments;
  ASSERT_EQ(segments.size(), 3u);  // two alike, one that may be cut, a copy
  EXPECT_EQ(segments[0].count, 2u);
  EXPECT_EQ(segments[0].kernel.n_blocks, 32u);
  EXPECT_EQ(segments[0].kernel.block_ns, 50'000u);  // two waves
  EXPECT_FALSE(segments[0].kernel.can_cut);
  EXPECT_TRUE(segments[1].kernel.can_cut);
  EXPECT_EQ(segments[2].kernel.resource_class, policy::ResourceClass::kLatency);
  EXPECT_EQ(made->steps[0].gap_ns, 70'000u);      // host work and storage
  EXPECT_EQ(made->alone_ns(kSms, {}), 620'000u);  // 550 on the GPU
}

TEST(ChakraWorkload, BurstsAreJobsAndTheMiddleOneStandsForAll) {
  chakra::Trace trace;
  const uint64_t lengths_us[] = {900, 1000, 1400};
  for (uint64_t i = 0; i < 3; ++i)
    trace.nodes.push_back(kernel(i + 1, {}, i * 10'000, lengths_us[i], {{"burst", i + 1}}));
  const auto made = workload_of(trace, "w", kSms);
  ASSERT_TRUE(made.ok()) << made.error().text;
  EXPECT_EQ(made->alone_ns(kSms, {}), kMs);
  EXPECT_EQ(made->recorded_gaps_ns, (std::vector<double>{10.0 * kMs, 10.0 * kMs}));
  EXPECT_NEAR(made->cv, 0.196, 0.001);
}

TEST(ChakraWorkload, WhatCannotBeRunIsRefusedByNode) {
  const auto why = [](std::vector<Node> nodes) {
    const auto made = workload_of({"", {}, std::move(nodes)}, "w", kSms);
    return made.ok() ? std::string() : made.error().text;
  };
  EXPECT_THAT(why({kernel(1, {2}, 0, 1), kernel(2, {1}, 0, 1)}), HasSubstr("depends on itself"));
  EXPECT_THAT(why({kernel(1, {9}, 0, 1)}), HasSubstr("node 1 depends on node 9, which is not"));
  EXPECT_THAT(why({kernel(1, {}, 0, 1), kernel(1, {}, 0, 1)}), HasSubstr("two nodes have the id 1"));
  EXPECT_THAT(why({host(1, {}, 0, 1)}), HasSubstr("no node of the trace runs on the GPU"));
  EXPECT_THAT(why({}), HasSubstr("no node"));
}

}  // namespace
}  // namespace tessera::simulator
