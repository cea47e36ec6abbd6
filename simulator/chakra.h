// Execution traces of MLCommons Chakra, schema `ChakraProtoMsg` (mlcommons/chakra, schema/protobuf/et_def.proto): a file
// is a GlobalMetadata, then Nodes, each behind its length as a varint. Messages are libprotobuf's; chakra.proto has the
// fields that we know, others are skipped. Texts must be UTF-8. Pure; any thread. The reader takes any bytes:
// tests/fuzz/chakra_fuzz.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tessera::simulator::chakra {

enum class NodeType : uint32_t {  // as the schema numbers them; more may come
  kInvalid = 0,
  kMetadata = 1,
  kMemoryLoad = 2,
  kMemoryStore = 3,
  kCompute = 4,
  kSend = 5,
  kReceive = 6,
  kCollective = 7,
  kStorage = 8,  // from here on nothing of the GPU
};

struct Attribute {
  std::string name;
  std::variant<bool, int64_t, uint64_t, double, std::string> value;  // what is a list is not kept
};

struct Node {
  uint64_t id = 0;
  std::string name;
  NodeType type = NodeType::kInvalid;
  std::vector<uint64_t> control_dependencies, data_dependencies;  // ids
  uint64_t start_us = 0, duration_us = 0;
  std::vector<Attribute> attributes;
};

struct Trace {
  std::string version;
  std::vector<Attribute> attributes;
  std::vector<Node> nodes;
};

// Null, false or 0 where there is no such attribute.
const Attribute* find(const std::vector<Attribute>& attributes, std::string_view name);
bool flag(const std::vector<Attribute>& attributes, std::string_view name, bool otherwise = false);
uint64_t number(const std::vector<Attribute>& attributes, std::string_view name);  // negative and others: 0

std::string encode(const Trace& trace);
// Errors name the byte and what to do.
base::Result<Trace> decode(std::string_view bytes);

}  // namespace tessera::simulator::chakra
