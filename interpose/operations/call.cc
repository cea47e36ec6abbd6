#include "interpose/operations/call.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/loader.h"
#include "interpose/operations/product.h"
#include "interpose/operations/split.h"
#include "interpose/operations/table.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constinit const uint32_t kNobody = 0, kAlways = 1;  // in place of a role
constinit std::atomic<const operations::NoteReader*> g_reader{nullptr};
constinit std::atomic<bool> g_connected{false};

template <class Int>
bool describe_groups(const Groups<Int>& what, Operation* out) {
  if (what.count <= 0 || !what.m || !what.n || !what.k || !what.size) return false;
  operations::Cost all;
  for (Int i = 0; i < what.count; i++) {
    const auto cost = gemm_cost(GemmShape{what.m[i], what.n[i], what.k[i], what.size[i]}, what.types, true);
    if (!cost) return false;
    all = all + *cost;
  }
  set_shape(out->shape, what.count);
  out->types = what.types;
  out->computed_as = what.types.a;
  out->cost = all;
  return true;
}

// "cublasSgemm_v2 f32 64x32x16", cut off where `buffer` ends, zero-terminated.
void print(const Operation& o, std::span<char> buffer) {
  size_t size = 0;
  const auto put = [&](std::string_view part) {
    for (const char c : part)
      if (size + 1 < buffer.size()) buffer[size++] = c;
  };
  put(operations::name_of(o.entry));
  put(" ");
  put(operations::name_of(o.types.a));
  if (o.types.b != o.types.a || o.types.c != o.types.a) {
    for (const Type type : {o.types.b, o.types.c}) {
      put(",");
      put(operations::name_of(type));
    }
  }
  put(" ");
  char shape[operations::kShapeTextBytes];
  put(operations::shape_text(o.entry, o.shape, shape));
  buffer[size] = 0;
}

uint64_t describe_note(const operations::Note* note, char* text, uint32_t bytes) {
  // The note is the first member of a standard-layout struct.
  const Operation& operation = reinterpret_cast<const NotedOperation*>(note)->operation;
  if (text && bytes) print(operation, {text, bytes});
  return hash_of(operation);
}
static_assert(offsetof(NotedOperation, note) == 0 && std::is_standard_layout_v<NotedOperation>);

}  // namespace

uint64_t hash_of(const Operation& o) {
  uint64_t hash = mixed_in(static_cast<uint64_t>(o.entry), static_cast<uint64_t>(o.types.a));
  for (uint32_t i = 0; i < o.shape.n_dims; i++) hash = mixed_in(hash, static_cast<uint64_t>(o.shape.dims[i]));
  return mixed_in(mixed_in(hash, static_cast<uint64_t>(o.shape.count)), o.cost.flop);
}

}  // namespace tessera::library

extern "C" {
constinit std::atomic<const uint32_t*> tessera_ops_role{&tessera::library::kNobody};
constinit std::atomic<uint32_t> tessera_ops_reading_role{tessera::library::kAlways};
}

namespace tessera::library {

constinit thread_local uint32_t t_depth = 0;

bool describe(const Products& what, Operation* out) {
  return describe_product(what, out);
}

bool describe(const Computes& what, Operation* out) {
  const auto cost = family_cost(what.family, {what.sizes, what.n_sizes}, what.count, what.types);
  if (!cost) return false;
  set_shape(out->shape, what.count);
  out->shape.n_dims = what.n_sizes;
  for (uint32_t i = 0; i < what.n_sizes; i++) out->shape.dims[i] = what.sizes[i];
  out->types = what.types;
  out->computed_as = what.types.a;
  out->cost = *cost;
  return true;
}

bool describe(const Groups<int>& what, Operation* out) {
  return describe_groups(what, out);
}

bool describe(const Groups<int64_t>& what, Operation* out) {
  return describe_groups(what, out);
}

void connect() {
  if (g_connected.exchange(true, kRelaxed)) return;
  const char* asked = getenv("TESSERA_OPERATIONS");
  if (asked && strcmp(asked, "0") == 0) return;
  const auto get =
      reinterpret_cast<operations::GetNoteReader>(base::loader().dlsym(RTLD_DEFAULT, "tessera_note_reader"));
  const operations::NoteReader* reader = get ? get(operations::kNoteVersion) : nullptr;
  g_reader.store(reader, kRelaxed);  // published by the role below
  if (open_table(getenv("TESSERA_OPERATIONS_TABLE"))) {
    tessera_ops_role.store(&kAlways, std::memory_order_release);
  } else if (reader) {
    read_split_settings();
    tessera_ops_reading_role.store(reader->reading_role, kRelaxed);
    tessera_ops_role.store(reader->role, std::memory_order_release);  // pairs with wanted()
  }
}

bool anybody_wants() {
  return tessera_ops_role.load(kRelaxed) != &kNobody;  // never dereferenced here
}

const operations::NoteReader* note_reader() {
  return g_reader.load(kRelaxed);
}

void Call::begin(const char* name) {
  const Operation& operation = told_of_.operation;
  if (has_table()) [[unlikely]] {
    tag_ = count_call(operation);
    if (tag_) tag_launches(tag_);
  }
  told_ = true;
  const operations::NoteReader* reader = g_reader.load(kRelaxed);
  if (!reader) return;
  told_of_.note = {.flop = operation.cost.flop,
                   .bytes = operation.cost.bytes,
                   .entry = static_cast<uint32_t>(operation.entry),
                   .type = static_cast<int32_t>(operation.computed_as),
                   .name = name,
                   .describe = describe_note};
  reader->begin(&told_of_.note);
}

void Call::end() {
  if (tag_) call_ends(tag_);
  const operations::NoteReader* reader = g_reader.load(kRelaxed);
  if (!reader) return;
  reader->end(&told_of_.note);
  if (splitting()) [[unlikely]]
    note_expected(told_of_.operation, told_of_.note.expected_ns);
}

}  // namespace tessera::library
