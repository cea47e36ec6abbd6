#include "simulator/chakra.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <climits>

#include "simulator/chakra.pb.h"

namespace tessera::simulator::chakra {
namespace {

namespace schema = ChakraProtoMsg;
namespace io = google::protobuf::io;

constexpr size_t kMostNodes = 4'000'000;
constexpr size_t kMostBytes = INT_MAX;  // of protocol buffers

// ---- writing

struct SetValue {
  schema::AttributeProto* out;
  void operator()(bool v) const { out->set_bool_val(v); }
  void operator()(int64_t v) const { out->set_int64_val(v); }
  void operator()(uint64_t v) const { out->set_uint64_val(v); }
  void operator()(double v) const { out->set_double_val(v); }
  void operator()(const std::string& v) const { out->set_string_val(v); }
};

template <class Attributes>
void set_attributes(const std::vector<Attribute>& attributes, Attributes* out) {
  for (const Attribute& a : attributes) {
    schema::AttributeProto* message = out->Add();
    message->set_name(a.name);
    std::visit(SetValue{message}, a.value);
  }
}

void append(const google::protobuf::MessageLite& message, io::CodedOutputStream* out) {
  out->WriteVarint64(message.ByteSizeLong());
  message.SerializeWithCachedSizes(out);
}

schema::Node message_of(const Node& node) {
  schema::Node out;
  out.set_id(node.id);
  out.set_name(node.name);
  out.set_type(schema::NodeType(node.type));
  out.mutable_ctrl_deps()->Add(node.control_dependencies.begin(), node.control_dependencies.end());
  out.mutable_data_deps()->Add(node.data_dependencies.begin(), node.data_dependencies.end());
  out.set_start_time_micros(node.start_us);
  out.set_duration_micros(node.duration_us);
  set_attributes(node.attributes, out.mutable_attr());
  return out;
}

// ---- reading

// One message behind its length.
bool read(io::CodedInputStream* in, google::protobuf::MessageLite* out) {
  uint32_t length = 0;
  if (!in->ReadVarint32(&length) || int64_t(length) > in->BytesUntilLimit()) return false;
  const auto outer = in->PushLimit(int(length));
  const bool fine = out->ParseFromCodedStream(in) && in->BytesUntilLimit() == 0;
  in->PopLimit(outer);
  return fine;
}

Attribute attribute_of(const schema::AttributeProto& a) {
  using Message = schema::AttributeProto;
  switch (a.value_case()) {
    case Message::kDoubleVal:
      return {a.name(), a.double_val()};
    case Message::kFloatVal:
      return {a.name(), double(a.float_val())};
    case Message::kInt32Val:
      return {a.name(), int64_t(a.int32_val())};
    case Message::kInt64Val:
      return {a.name(), int64_t(a.int64_val())};
    case Message::kUint32Val:
      return {a.name(), uint64_t(a.uint32_val())};
    case Message::kUint64Val:
      return {a.name(), uint64_t(a.uint64_val())};
    case Message::kSint32Val:
      return {a.name(), int64_t(a.sint32_val())};
    case Message::kSint64Val:
      return {a.name(), int64_t(a.sint64_val())};
    case Message::kFixed32Val:
      return {a.name(), uint64_t(a.fixed32_val())};
    case Message::kFixed64Val:
      return {a.name(), uint64_t(a.fixed64_val())};
    case Message::kSfixed32Val:
      return {a.name(), int64_t(a.sfixed32_val())};
    case Message::kSfixed64Val:
      return {a.name(), int64_t(a.sfixed64_val())};
    case Message::kBoolVal:
      return {a.name(), a.bool_val()};
    case Message::kStringVal:
      return {a.name(), a.string_val()};
    case Message::VALUE_NOT_SET:
      break;
  }
  return {a.name(), false};
}

template <class Attributes>
std::vector<Attribute> attributes_of(const Attributes& attributes) {
  std::vector<Attribute> out;
  out.reserve(size_t(attributes.size()));
  for (const auto& a : attributes) out.push_back(attribute_of(a));
  return out;
}

Node node_of(const schema::Node& node) {
  return {node.id(),
          node.name(),
          NodeType(node.type()),
          {node.ctrl_deps().begin(), node.ctrl_deps().end()},
          {node.data_deps().begin(), node.data_deps().end()},
          node.start_time_micros(),
          node.duration_micros(),
          attributes_of(node.attr())};
}

}  // namespace

const Attribute* find(const std::vector<Attribute>& attributes, std::string_view name) {
  const auto at = std::find_if(attributes.begin(), attributes.end(),
                               [&](const Attribute& attribute) { return attribute.name == name; });
  return at == attributes.end() ? nullptr : &*at;
}

bool flag(const std::vector<Attribute>& attributes, std::string_view name, bool otherwise) {
  const Attribute* a = find(attributes, name);
  const bool* value = a ? std::get_if<bool>(&a->value) : nullptr;
  return value ? *value : otherwise;
}

uint64_t number(const std::vector<Attribute>& attributes, std::string_view name) {
  const Attribute* a = find(attributes, name);
  if (!a) return 0;
  if (const auto* value = std::get_if<uint64_t>(&a->value)) return *value;
  const auto* value = std::get_if<int64_t>(&a->value);
  return value && *value > 0 ? uint64_t(*value) : 0;
}

std::string encode(const Trace& trace) {
  std::string bytes;
  {
    io::StringOutputStream stream(&bytes);
    io::CodedOutputStream out(&stream);
    schema::GlobalMetadata metadata;
    metadata.set_version(trace.version);
    set_attributes(trace.attributes, metadata.mutable_attr());
    append(metadata, &out);
    for (const Node& node : trace.nodes) append(message_of(node), &out);
  }  // the streams write what they hold
  return bytes;
}

base::Result<Trace> decode(std::string_view bytes) {
  io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                          int(std::min(bytes.size(), kMostBytes)));
  const auto wrong = [&](const std::string& what) {
    return base::error(base::Code::kInvalid,
                       what + " at byte " + std::to_string(in.CurrentPosition()) +
                           ": is this a Chakra execution trace (NAME.et, not compressed)?");
  };
  if (bytes.size() > kMostBytes) return wrong("more than 2 GiB");
  Trace trace;
  schema::GlobalMetadata metadata;
  if (!read(&in, &metadata)) return wrong("there is no GlobalMetadata");
  trace.version = metadata.version();
  trace.attributes = attributes_of(metadata.attr());
  for (schema::Node node; in.BytesUntilLimit() > 0;) {
    if (trace.nodes.size() >= kMostNodes) return wrong("more than four million nodes");
    if (!read(&in, &node)) return wrong("node " + std::to_string(trace.nodes.size() + 1) + " is broken");
    trace.nodes.push_back(node_of(node));
  }
  return trace;
}

}  // namespace tessera::simulator::chakra
