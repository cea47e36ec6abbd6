// Typed intermediate representation of a PTX module: what the parser makes, the verifier checks, the rewrites
// change, the printer writes and the software GPU decodes.
//
// Names are views into text that the Module owns (`Module::keep`), so a Module is movable but not copyable
// and every view lives as long as it does. Not thread-safe; a finished Module may be read by many threads.
// The order of statements is the order of the source: print(parse(x)) assembles to the same machine code.
// Syntax: PTX ISA 9.0, sections 4 (syntax), 5 (state spaces, types), 9 (instructions), 11 (directives).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/ptx/shared.h"

namespace tessera::ptx {

using Name = std::string_view;

enum class Type : uint8_t {  // fundamental types, PTX ISA 5.2.1
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kTf32,
  kE4m3,
  kE5m2,
  kE4m3x2,
  kE5m2x2,
  kF32,
  kF64,
  kOther,
};
enum class Space : uint8_t { kNone, kReg, kSreg, kConst, kGlobal, kLocal, kParam, kShared, kTex };

struct Location {
  uint32_t line = 0;    // 1-based in the PTX text; 0 for what a rewrite added
  uint32_t column = 0;  // 1-based
};

// One declared object: register (range), parameter, local, shared, global, const.
struct Variable {
  Name name;  // with its '%' if it has one; unique within its scope
  Space space = Space::kNone;
  Type type = Type::kNone;
  Name other_type;             // Type::kOther: the name with its dot (".texref", ".samplerref", ...), else ""
  uint8_t vector = 1;          // 1, 2 or 4 (.v2, .v4)
  uint32_t align = 0;          // bytes; 0 = natural
  uint32_t count = 0;          // registers `%r<N>`: N (names %r0..%rN-1); 0 = a single object
  std::vector<uint64_t> dims;  // array dimensions; a 0 = unsized (`.extern .shared x[]`)
  bool is_array = false;
  Name linkage;      // "", ".visible", ".extern", ".weak", ".common"
  Name attributes;   // raw text of .ptr/.attribute/... after the type, printed back as it was
  Name initializer;  // raw text after '=', without it; "" = none
  Location at;

  uint64_t size_bytes() const;  // of the whole object; 0 for unsized arrays and registers
};

// The part of an operand behind its name: ".x" of a vector or special register, ".h1", ".b7654" of the SIMD
// instructions. Held in place; longer than any that PTX has it cannot be.
class Suffix {
 public:
  static constexpr size_t kMaxLength = 6;

  constexpr Suffix() = default;
  constexpr Suffix(Name text) {  // of at most kMaxLength
    for (size_t n = 0; n < text.size() && n < kMaxLength; ++n) text_[n] = text[n];
  }
  constexpr Suffix(const char* text) : Suffix(Name(text)) {}

  constexpr bool empty() const { return text_[0] == 0; }
  constexpr Name view() const {  // into this object
    size_t n = 0;
    while (n < kMaxLength && text_[n]) ++n;
    return {text_, n};
  }
  constexpr char operator[](size_t n) const { return text_[n]; }
  bool operator==(const Suffix&) const = default;

 private:
  char text_[kMaxLength] = {};  // NUL behind it if shorter
};

struct Operand {
  enum class Kind : uint8_t {
    kNone,
    kRegister,  // name of a .reg variable (with component suffix .x/.y/.z/.w/.b0.. in `suffix`)
    kSpecial,   // special register: %tid.x -> name "%tid", suffix ".x"; %laneid -> suffix ""
    kInteger,   // integer or predicate-constant immediate, in `bits`
    kFloat,   // 0fXXXXXXXX (is_f64 false) or 0dXXXXXXXXXXXXXXXX or decimal (both is_f64); IEEE bits in `bits`
    kSymbol,  // variable, function, label or texture name (taken as an address or target); `sym+8`: 8 in
              // `bits`
    kAddress,     // [base+offset]; base in `name` (register or symbol; "" if absolute), offset in `bits`
    kVector,      // {a,b,...}: children
    kPair,        // d|p (dual destination): children[0], children[1]
    kList,        // (a,b): call arguments or results: children
    kBracket,     // [tensor, {coords}], [texture, sampler, {coords}]: children, the first being the object
    kSink,        // _
    kExpression,  // constant expression kept as text in `name`
  };
  Kind kind = Kind::kNone;
  bool negated : 1 = false;           // !p; or -%r in the few forms that take it (then `minus` is set, too)
  bool minus : 1 = false;             // negated with '-'
  bool is_f64 : 1 = false;            // kFloat
  bool base_is_register : 1 = false;  // kAddress: base names a register
  Suffix suffix;
  Name name;          // of immediates: as written, so printing is exact; "" if made by a rewrite
  uint64_t bits = 0;  // immediate value, two's complement; kAddress: signed offset
  List<Operand> children;
};

struct Instruction {
  Name guard;            // predicate register, "" = unconditional
  Name opcode;           // first component: "add", "ld", "mma", ...
  List<Name> modifiers;  // the rest in source order, without dots: {"rn","ftz","f32"}; "shared::cta" is one
  List<Operand> operands;
  Location at;
  bool guard_negated = false;

  bool has(Name modifier) const;
  Type type(unsigned nth_type = 0) const;  // nth modifier that is a type; kNone if there are fewer
};

struct Prototype {            // label: .callprototype / .calltargets / .branchtargets
  std::vector<Name> targets;  // of .branchtargets/.calltargets: the names listed
  Name text;                  // all behind the label, with its ';'
};

// Most of the memory of a module are its statements: what few of them have is in boxes, and copies of a
// function (the slicing variants) share operands and boxes with it until they are changed.
struct Statement {
  enum class Kind : uint8_t {
    kInstruction,
    kLabel,
    kVariable,
    kScope,
    kLoc,        // .loc ...          (text, no terminator)
    kPragma,     // .pragma "...";    (text, with its ';')
    kPrototype,  // named by `label`
    kRaw,        // kept and printed as it was (text, with its terminator if it has one)
  };
  Statement() {}  // not left to the compiler: GCC 12 deletes it over the union below

  [[no_unique_address]] Instruction instruction;  // kInstruction; the kind fits behind its last member
  Kind kind = Kind::kRaw;
  union {
    Name label = {};  // kLabel, kPrototype
    Name text;        // kLoc, kPragma, kRaw
  };
  Box<Variable> variable;             // kVariable
  Box<std::vector<Statement>> scope;  // kScope: { ... }
  Box<Prototype> prototype;           // kPrototype
};
static_assert(sizeof(Operand) == 40 && sizeof(Statement) == 104);

struct Directive {  // .maxntid 256, 1, 1   .reqntid ...   .minnctapersm 2 ...
  Name name;        // with its dot
  std::vector<uint64_t> values;
  Name text;  // raw, for directives with other arguments
};

struct Function {
  Name name;
  bool is_entry = false;
  Name linkage;                   // "", ".visible", ".extern", ".weak"
  Name attributes;                // raw .attribute(...) text after .func/.entry, "" = none
  std::vector<Variable> returns;  // .func only
  std::vector<Variable> params;
  std::vector<Directive> directives;
  bool has_body = false;
  std::vector<Statement> body;
  Location at;
};

// Top level in source order: exactly one of the members is meaningful.
struct Item {
  enum class Kind : uint8_t { kFunction, kVariable, kRaw };  // kRaw: .file, .section, .alias, @@DWARF ...
  Kind kind = Kind::kRaw;
  std::unique_ptr<Function> function;
  Variable variable;
  Name text;
};

struct Module {
  unsigned version_major = 0, version_minor = 0;  // .version
  std::vector<Name> target;                       // .target sm_90, debug ...
  unsigned address_bits = 64;                     // .address_size
  std::vector<Item> items;

  Name keep(std::string text);  // owns text for as long as the module lives
  Function* find(Name name);    // the definition if there is one, else a declaration
  const Function* find(Name name) const;

  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

 private:
  std::deque<std::string> texts_;  // deque: a std::string in it never moves
};

// Module::find() for who asks for many: the functions as they were when it was made.
class FunctionIndex {
 public:
  explicit FunctionIndex(const Module& module);
  const Function* find(Name name) const;

 private:
  std::unordered_map<Name, const Function*> functions_;
};

// Names <-> enums; "f32" without the dot. kNone / kOther when unknown.
Type type_from(Name name);
Name type_name(Type type);
unsigned type_bytes(Type type);  // 0 for kNone, kPred, kOther

}  // namespace tessera::ptx
