#include "interpose/operations/call.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

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
  out->shape.count = what.count;
  out->types = what.types;
  out->computed_as = what.types.a;
  out->cost = all;
  return true;
}

}  // namespace
}  // namespace tessera::library

extern "C" {
constinit std::atomic<const uint32_t*> tessera_ops_role{&tessera::library::kNobody};
constinit std::atomic<uint32_t> tessera_ops_reading_role{tessera::library::kAlways};
}

namespace tessera::library {

constinit thread_local uint32_t t_depth = 0;

// C counts as read: whether beta is zero may stand in device memory.
bool describe(const Products& what, Operation* out) {
  const auto cost = gemm_cost(what.shape, what.types, true);
  if (!cost) return false;
  const GemmShape& s = what.shape;
  out->shape = {.dims = {s.m, s.n, s.k}, .count = s.count, .n_dims = 3};
  out->types = what.types;
  out->computed_as = what.computed_as;
  out->cost = *cost;
  return true;
}

bool describe(const Computes& what, Operation* out) {
  const std::span<const int64_t> sizes(what.sizes, what.n_sizes);
  const auto cost = family_cost(what.family, sizes, what.count, what.types);
  if (!cost) return false;
  std::ranges::copy(sizes, out->shape.dims);
  out->shape.count = what.count;
  out->shape.n_dims = what.n_sizes;
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
  const auto get = reinterpret_cast<operations::GetNoteReader>(dlsym(RTLD_DEFAULT, "tessera_note_reader"));
  const operations::NoteReader* reader = get ? get(operations::kNoteVersion) : nullptr;
  g_reader.store(reader, kRelaxed);  // published by the role below
  if (open_table(getenv("TESSERA_OPERATIONS_TABLE"))) {
    tessera_ops_role.store(&kAlways, std::memory_order_release);
  } else if (reader) {
    tessera_ops_reading_role.store(reader->reading_role, kRelaxed);
    tessera_ops_role.store(reader->role, std::memory_order_release);  // pairs with wanted()
  }
}

void Call::begin(const Operation& operation) {
  count_call(operation);
  const operations::NoteReader* reader = g_reader.load(kRelaxed);
  if (!reader) return;
  note_ = {operation.cost.flop,
           operation.cost.bytes,
           static_cast<uint32_t>(operation.entry),
           static_cast<int32_t>(operation.computed_as),
           0,
           0};
  told_ = true;
  reader->set_note(&note_);
}

void Call::end() {
  g_reader.load(kRelaxed)->set_note(nullptr);
}

}  // namespace tessera::library
