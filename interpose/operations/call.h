// One call of the program into a library: is it the outermost of its thread, what does it ask of the GPU, who is told?
// Called by the hooks (hooks.cc), in the program's threads. Nothing allocates or waits; the program's pointers are not
// read, but for the shapes of groups, which the library reads itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "operations/catalogue.h"
#include "operations/family.h"
#include "operations/gemm.h"
#include "operations/matmul.h"
#include "operations/note.h"

namespace tessera::library {

using operations::Entry;
using operations::Family;
using operations::GemmShape;
using operations::Type;
using operations::Types;

// The operation that a call asks for.
struct Operation {
  Entry entry;
  operations::Shape shape;
  Types types;
  Type computed_as;  // decides which pipe computes: A's type, unless the call allows another
  operations::Cost cost;
};

// ---- the arguments, as *_calls.def name them

struct Products {
  GemmShape shape;
  Types types;
  Type computed_as = types.a;

  // cublasComputeType_t
  constexpr Products computed_by(int compute_type) const {
    return {shape, types, operations::computed_as(compute_type, types.a)};
  }
};
template <class Int>
struct Groups {
  const Int *m, *n, *k, *size;
  Int count;
  Types types;
};
struct Computes {
  Family family;
  int64_t count;
  Types types;
  int64_t sizes[4];
  uint32_t n_sizes;
};
template <class T>
constexpr Type type_of(T type) {
  return static_cast<Type>(type);
}
template <class T>
constexpr Products products(int64_t m, int64_t n, int64_t k, int64_t count, T a, T b, T c) {
  return {.shape = {m, n, k, count}, .types = {type_of(a), type_of(b), type_of(c)}};
}
template <class Int, class T>
constexpr Groups<Int> groups(const Int* m, const Int* n, const Int* k, const Int* size, Int count, T a, T b,
                             T c) {
  return {m, n, k, size, count, {type_of(a), type_of(b), type_of(c)}};
}
template <class... Sizes>
constexpr Computes computes(Family family, int64_t count, const Types& types, Sizes... sizes) {
  return {family, count, types, {sizes...}, sizeof...(sizes)};
}

// Writes all of `out` but its entry. False: the library will refuse it.
bool describe(const Computes& what, Operation* out);
bool describe(const Products& what, Operation* out);
bool describe(const Groups<int>& what, Operation* out);
bool describe(const Groups<int64_t>& what, Operation* out);

// Number by number: what compilers make of an assignment of the whole takes longer than all else here.
template <class... Dims>
void set_shape(operations::Shape& shape, int64_t count, Dims... dims) {
  shape.count = count;
  shape.n_dims = 0;
  ((shape.dims[shape.n_dims++] = dims), ...);
}

// A hash of one thing more.
inline uint64_t mixed_in(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15u ^ (hash >> 29);
}
// Hashes all that calls are told apart by.
uint64_t hash_of(const Operation& operation);

// ---- who wants to know

}  // namespace tessera::library

// Written once, by connect(); loaded by every hook (hooks.S). Notes are wanted while *role is reading_role.
extern "C" constinit std::atomic<const uint32_t*> tessera_ops_role;
extern "C" constinit std::atomic<uint32_t> tessera_ops_reading_role;

namespace tessera::library {

inline bool wanted() {
  const uint32_t* role = tessera_ops_role.load(std::memory_order_acquire);  // pairs with connect()
  // relaxed: a call that sees the old role is one that came earlier
  return std::atomic_ref<const uint32_t>(*role).load(std::memory_order_relaxed) ==
         tessera_ops_reading_role.load(std::memory_order_relaxed);
}

// Somebody does, now or later: they may begin at any time.
bool anybody_wants();
// The reader of notes; null: nobody.
const operations::NoteReader* note_reader();

// Slow, once: looks for libtessera.so and for the table that `tessera profile` wants filled. Any thread; further calls
// do nothing.
void connect();

// A note, and what it is of: describe_note() finds the one by the other.
struct NotedOperation {
  operations::Note note;
  Operation operation;
};

extern constinit thread_local uint32_t t_depth __attribute__((tls_model("initial-exec")));

// While it lives, the call runs. The innermost code that it surrounds is the library's.
class Call {
 public:
  template <class What>
  Call(Entry entry, const char* name, const void* handle, const What& what) {
    // Without a handle the library looks at nothing else.
    if (t_depth++ != 0 || !handle || !wanted()) return;
    told_of_.operation.entry = entry;
    if (describe(what, &told_of_.operation)) begin(name);
  }
  ~Call() {
    if (told_) end();
    --t_depth;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Somebody reads its note.
  bool noted() const { return told_; }
  const Operation& operation() const { return told_of_.operation; }
  operations::Note& note() { return told_of_.note; }

 private:
  void begin(const char* name);  // static
  void end();

  bool told_ = false;
  uint64_t tag_ = 0;  // of the table, see tag_launches()
  // Nothing of it is written for a call that nobody wants to know of.
  union {
    NotedOperation told_of_;
  };
};

}  // namespace tessera::library
