#include "simulator/chakra.h"

#include <algorithm>
#include <bit>

namespace tessera::simulator::chakra {
namespace {

constexpr size_t kMostNodes = 4'000'000;

enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// ---- writing: fields in order, what is zero or empty is left out

class Writer {
 public:
  Writer& varint(uint32_t field, uint64_t value) {
    if (value != 0) tag(field, Wire::kVarint), raw(value);
    return *this;
  }
  Writer& text(uint32_t field, std::string_view value) {
    if (!value.empty()) bytes(field, value);
    return *this;
  }
  Writer& packed(uint32_t field, const std::vector<uint64_t>& values) {
    Writer inner;
    for (const uint64_t value : values) inner.raw(value);
    return text(field, inner.out_);
  }
  // Also where it is empty or zero: a member of a oneof, one of a repeated field.
  Writer& bytes(uint32_t field, std::string_view value) {
    tag(field, Wire::kBytes), raw(value.size());
    out_ += value;
    return *this;
  }
  Writer& set(uint32_t field, uint64_t value) {
    tag(field, Wire::kVarint), raw(value);
    return *this;
  }
  Writer& set(uint32_t field, double value) {
    tag(field, Wire::kFixed64);
    for (uint64_t bits = std::bit_cast<uint64_t>(value), i = 0; i < 8; ++i, bits >>= 8) out_ += char(bits);
    return *this;
  }
  void message(const Writer& inner) {
    raw(inner.out_.size());
    out_ += inner.out_;
  }
  const std::string& out() const { return out_; }

 private:
  void tag(uint32_t field, Wire wire) { raw(field << 3 | uint32_t(wire)); }
  void raw(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += char(value | 0x80);
    out_ += char(value);
  }
  std::string out_;
};

Writer attribute(const Attribute& a) {
  Writer w;
  w.text(1, a.name);
  struct {
    Writer& w;
    void operator()(bool v) { w.set(27, uint64_t(v)); }
    void operator()(int64_t v) { w.set(9, uint64_t(v)); }
    void operator()(uint64_t v) { w.set(13, v); }
    void operator()(double v) { w.set(3, v); }
    void operator()(const std::string& v) { w.bytes(29, v); }
  } value{w};
  std::visit(value, a.value);
  return w;
}

// ---- reading

struct Field {
  uint32_t number = 0;
  Wire wire = Wire::kVarint;
  uint64_t value = 0;      // of all but kBytes
  std::string_view bytes;  // of kBytes
};

// Steps over the fields of one message. After false, `failed` says whether the message ended or was broken.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool failed() const { return failed_; }
  bool empty() const { return rest_.empty(); }
  size_t left() const { return rest_.size(); }

  bool varint(uint64_t* out) {
    *out = 0;
    for (uint32_t shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = uint8_t(rest_.front());
      rest_.remove_prefix(1);
      *out |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return fail();
  }
  bool bytes(std::string_view* out) {
    uint64_t length = 0;
    if (!varint(&length)) return false;
    if (length > rest_.size()) return fail();
    *out = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }
  bool next(Field* out) {
    if (rest_.empty() || failed_) return false;
    uint64_t tag = 0;
    if (!varint(&tag)) return false;
    if (tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return fail();
    out->number = uint32_t(tag >> 3);
    out->wire = Wire(tag & 7);
    switch (out->wire) {
      case Wire::kVarint:
        return varint(&out->value);
      case Wire::kBytes:
        return bytes(&out->bytes);
      case Wire::kFixed64:
        return fixed(8, &out->value);
      case Wire::kFixed32:
        return fixed(4, &out->value);
    }
    return fail();  // groups, which nobody writes any more
  }

 private:
  bool fail() {
    failed_ = true;
    return false;
  }
  bool fixed(size_t n, uint64_t* out) {
    if (rest_.size() < n) return fail();
    *out = 0;
    for (size_t i = 0; i < n; ++i) *out |= uint64_t(uint8_t(rest_[i])) << (8 * i);
    rest_.remove_prefix(n);
    return true;
  }
  std::string_view rest_;
  bool failed_ = false;
};

int64_t zigzag(uint64_t v) {
  return int64_t(v >> 1) ^ -int64_t(v & 1);
}

// Calls `use` for each field; false if the bytes are no message.
template <class F>
bool each_field(std::string_view bytes, F&& use) {
  Reader reader(bytes);
  for (Field field; reader.next(&field);)
    if (!use(field)) return false;
  return !reader.failed();
}

// The fields of AttributeProto that are one value.
void read_value(const Field& f, Attribute* out) {
  switch (f.number) {
    case 3:
      if (f.wire == Wire::kFixed64) out->value = std::bit_cast<double>(f.value);
      break;
    case 5:
      if (f.wire == Wire::kFixed32) out->value = double(std::bit_cast<float>(uint32_t(f.value)));
      break;
    case 7:   // int32
    case 9:   // int64
    case 25:  // sfixed64
      out->value = int64_t(f.value);
      break;
    case 15:  // sint32
    case 17:  // sint64
      out->value = zigzag(f.value);
      break;
    case 23:  // sfixed32
      out->value = int64_t(int32_t(f.value));
      break;
    case 11:  // uint32
    case 13:  // uint64
    case 19:  // fixed32
    case 21:  // fixed64
      out->value = f.value;
      break;
    case 27:
      out->value = f.value != 0;
      break;
    case 29:
      out->value = std::string(f.bytes);
      break;
    default:
      break;
  }
}

bool read_attribute(std::string_view bytes, std::vector<Attribute>* out) {
  Attribute a;
  const bool fine = each_field(bytes, [&](const Field& f) {
    if (f.number == 1 && f.wire == Wire::kBytes)
      a.name = std::string(f.bytes);
    else
      read_value(f, &a);
    return true;
  });
  out->push_back(std::move(a));
  return fine;
}

// A repeated number: each by itself, or all in one field.
bool read_numbers(const Field& f, std::vector<uint64_t>* out) {
  if (f.wire == Wire::kVarint) {
    out->push_back(f.value);
    return true;
  }
  Reader reader(f.bytes);
  for (uint64_t value = 0; !reader.empty() && reader.varint(&value);) out->push_back(value);
  return f.wire == Wire::kBytes && !reader.failed();
}

bool read_node(std::string_view bytes, Node* out) {
  return each_field(bytes, [&](const Field& f) {
    switch (f.number) {
      case 1:
        out->id = f.value;
        return true;
      case 2:
        out->name = std::string(f.bytes);
        return true;
      case 3:
        out->type = NodeType(uint32_t(f.value));
        return true;
      case 4:
        return read_numbers(f, &out->control_dependencies);
      case 5:
        return read_numbers(f, &out->data_dependencies);
      case 6:
        out->start_us = f.value;
        return true;
      case 7:
        out->duration_us = f.value;
        return true;
      case 10:
        return f.wire == Wire::kBytes && read_attribute(f.bytes, &out->attributes);
      default:
        return true;
    }
  });
}

bool read_metadata(std::string_view bytes, Trace* out) {
  return each_field(bytes, [&](const Field& f) {
    if (f.number == 1) out->version = std::string(f.bytes);
    return f.number != 2 || (f.wire == Wire::kBytes && read_attribute(f.bytes, &out->attributes));
  });
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
  Writer file, metadata;
  metadata.text(1, trace.version);
  for (const Attribute& a : trace.attributes) metadata.bytes(2, attribute(a).out());
  file.message(metadata);
  for (const Node& node : trace.nodes) {
    Writer w;
    w.varint(1, node.id).text(2, node.name).varint(3, uint32_t(node.type));
    w.packed(4, node.control_dependencies).packed(5, node.data_dependencies);
    w.varint(6, node.start_us).varint(7, node.duration_us);
    for (const Attribute& a : node.attributes) w.bytes(10, attribute(a).out());
    file.message(w);
  }
  return file.out();
}

base::Result<Trace> decode(std::string_view bytes) {
  Trace trace;
  Reader reader(bytes);
  std::string_view message;
  const auto wrong = [&](const std::string& what) {
    return base::error(base::Code::kInvalid,
                       what + " at byte " + std::to_string(bytes.size() - reader.left()) +
                           ": is this a Chakra execution trace (NAME.et, not compressed)?");
  };
  if (!reader.bytes(&message) || !read_metadata(message, &trace)) return wrong("there is no GlobalMetadata");
  while (!reader.empty()) {
    if (trace.nodes.size() >= kMostNodes) return wrong("more than four million nodes");
    trace.nodes.emplace_back();
    if (!reader.bytes(&message) || !read_node(message, &trace.nodes.back()))
      return wrong("node " + std::to_string(trace.nodes.size()) + " is broken");
  }
  return trace;
}

}  // namespace tessera::simulator::chakra
