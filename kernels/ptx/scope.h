// Tells the names that are registers, by nested scope. Used by the parser (register or symbol?), the verifier
// (declared? what type?) and the rewrites. Keys are views into text that must outlive the table. Single-threaded.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/ptx/ir.h"

namespace tessera::ptx {

class Scopes {
 public:
  struct Object {
    Space space = Space::kNone;
    Type type = Type::kNone;
    uint8_t vector = 1;
    bool single = false;            // `name` itself is declared
    uint32_t count = 0;             // `name<count>`: name0 .. name(count-1) are declared
    uint32_t depth = 0;             // scope that declared it, 0 = module
    Type range_type = Type::kNone;  // of name<count>
    Space range_space = Space::kNone;
    uint32_t serial = 0, range_serial = 0;
    bool overlap = false;  // a single name inside the range was declared in an inner scope
  };

  void push();
  void pop();
  uint32_t depth() const { return static_cast<uint32_t>(marks_.size()); }

  // False if the same scope already declares the name (the newer declaration then counts).
  bool declare(const Variable& variable);

  // The object that `name` refers to here; false if nothing of that name is declared.
  struct Found {
    Space space = Space::kNone;
    Type type = Type::kNone;
    uint8_t vector = 1;
    uint64_t key = 0;  // same for two names exactly if they are the same object; never 0
  };
  bool find(Name name, Found* found) const;
  bool is_register(Name name) const {
    Found found;
    return find(name, &found) && found.space == Space::kReg;
  }

 private:
  struct Undo {
    Name name;
    Object before;
    bool existed;
  };
  const Object* lookup(Name name) const;

  std::unordered_map<Name, Object> objects_;
  // Names that lookup() found lately; nearly every operand of a body asks for one of a dozen prefixes.
  struct Recent {
    Name name;
    const Object* object = nullptr;
    uint64_t generation = 0;
  };
  mutable std::array<Recent, 128> recent_{};
  uint64_t generation_ = 1;  // of the declarations; entries of older ones are stale
  std::vector<Undo> undo_;
  std::vector<size_t> marks_;
  uint32_t serial_ = 0;  // of the latest declaration
};

// True for %tid, %ctaid, %laneid, ...: PTX ISA 10. `name` without component suffix.
bool is_special_register(Name name);

}  // namespace tessera::ptx
