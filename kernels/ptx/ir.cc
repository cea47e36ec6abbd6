#include "kernels/ptx/ir.h"

#include <array>
#include <utility>

namespace tessera::ptx {
namespace {

struct TypeRow {
  Name name;
  uint8_t bytes;
};

// Indexed by Type; order is that of the enum.
constexpr std::array<TypeRow, static_cast<size_t>(Type::kOther) + 1> kTypes = {{
    {"", 0},     {"pred", 0},   {"b8", 1},     {"b16", 2},  {"b32", 4},    {"b64", 8},  {"b128", 16},
    {"u8", 1},   {"u16", 2},    {"u32", 4},    {"u64", 8},  {"s8", 1},     {"s16", 2},  {"s32", 4},
    {"s64", 8},  {"f16", 2},    {"f16x2", 4},  {"bf16", 2}, {"bf16x2", 4}, {"tf32", 4}, {"e4m3", 1},
    {"e5m2", 1}, {"e4m3x2", 2}, {"e5m2x2", 2}, {"f32", 4},  {"f64", 8},    {"", 0},
}};

}  // namespace

Type type_from(Name name) {
  if (name.size() < 2 || name.size() > 6) return Type::kNone;
  for (size_t i = 1; i + 1 < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<Type>(i);
  return Type::kNone;
}

Name type_name(Type type) {
  return kTypes[static_cast<size_t>(type)].name;
}

unsigned type_bytes(Type type) {
  return kTypes[static_cast<size_t>(type)].bytes;
}

uint64_t Variable::size_bytes() const {
  if (space == Space::kReg) return 0;
  uint64_t size = static_cast<uint64_t>(type_bytes(type)) * vector;
  for (uint64_t dim : dims)
    if (__builtin_mul_overflow(size, dim, &size)) return UINT64_MAX;
  return size;
}

bool Instruction::has(Name modifier) const {
  for (Name m : modifiers)
    if (m == modifier) return true;
  return false;
}

Type Instruction::type(unsigned nth_type) const {
  for (Name m : modifiers) {
    Type t = type_from(m);
    if (t != Type::kNone && nth_type-- == 0) return t;
  }
  return Type::kNone;
}

Name Module::keep(std::string text) {
  return texts_.emplace_back(std::move(text));
}

const Function* Module::find(Name name) const {
  const Function* found = nullptr;
  for (const Item& item : items) {
    if (item.kind == Item::Kind::kFunction && item.function->name == name) {
      if (item.function->has_body) return item.function.get();
      found = found ? found : item.function.get();
    }
  }
  return found;
}

FunctionIndex::FunctionIndex(const Module& module) {
  for (const Item& item : module.items) {
    if (item.kind == Item::Kind::kFunction) {
      const Function*& found = functions_[item.function->name];
      if (!found || (item.function->has_body && !found->has_body)) found = item.function.get();
    }
  }
}

const Function* FunctionIndex::find(Name name) const {
  const auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : found->second;
}

Function* Module::find(Name name) {
  return const_cast<Function*>(std::as_const(*this).find(name));
}

}  // namespace tessera::ptx
