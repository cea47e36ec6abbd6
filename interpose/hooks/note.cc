// The function by which libtessera_ops.so finds this library.
#include "interpose/state/note.h"

#include "interpose/gate/operation.h"
#include "interpose/gate/operation_counts.h"
#include "interpose/state/state.h"

namespace tessera::hooks {
namespace {

using state::g_state;

void begin(operations::Note* note) noexcept {
  gate::begin_operation(*note);
  state::t_note = note;
}

void end(operations::Note* note) noexcept {
  if (state::t_note != note) return;
  state::t_note = nullptr;
  // Captured work is counted when its graph is launched, perhaps by another thread (graph_launch.cc).
  if (note->captured == 0) gate::end_operation(*note);
}

uint64_t expected_ns(const operations::Note* note) noexcept {
  return gate::expected_of_call(*note);
}

uint32_t undisturbed() noexcept {
  return gate::undisturbed();
}

void listen(const operations::Listener* listener) noexcept {
  state::g_listener.store(listener, std::memory_order_release);
}

static_assert(sizeof g_state.role == sizeof(uint32_t) && decltype(g_state.role)::is_always_lock_free);
const operations::NoteReader kReader = {.role = reinterpret_cast<const uint32_t*>(&g_state.role),
                                        .reading_role = uint32_t(state::Role::kBestEffort),
                                        .reserved = 0,
                                        .begin = begin,
                                        .end = end,
                                        .slice_ns = gate::wanted_slice_ns,
                                        .expected_ns = expected_ns,
                                        .sms = gate::sms_for_call,
                                        .undisturbed = undisturbed,
                                        .count = gate::count_operations,
                                        .listen = listen};

}  // namespace
}  // namespace tessera::hooks

extern "C" __attribute__((visibility("default"))) const tessera::operations::NoteReader* tessera_note_reader(
    uint32_t version) noexcept {
  return version == tessera::operations::kNoteVersion ? &tessera::hooks::kReader : nullptr;
}
