// Where libtessera_ops.so finds this library.
#include "interpose/state/note.h"
#include "interpose/state/state.h"

namespace tessera::hooks {
namespace {

using state::g_state;

// Captured work is charged when its graph is launched, perhaps by another thread.
void set_note(operations::Note* note) noexcept {
  // relaxed: a capture that begins now on another thread is none of this one's
  const bool forward = g_state.captures.load(std::memory_order_relaxed) != 0;
  state::t_note = forward ? nullptr : note;
}

static_assert(sizeof g_state.role == sizeof(uint32_t) && decltype(g_state.role)::is_always_lock_free);
const operations::NoteReader kReader = {.role = reinterpret_cast<const uint32_t*>(&g_state.role),
                                        .reading_role = uint32_t(state::Role::kBestEffort),
                                        .reserved = 0,
                                        .set_note = set_note};

}  // namespace
}  // namespace tessera::hooks

extern "C" __attribute__((visibility("default"))) const tessera::operations::NoteReader* tessera_note_reader(
    uint32_t version) noexcept {
  return version == tessera::operations::kNoteVersion ? &tessera::hooks::kReader : nullptr;
}
