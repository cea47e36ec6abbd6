// Waits until this process is a best-effort client, so that none of its launches comes before. Returns at once without
// libtessera.so, and when `stop` is set.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "operations/note.h"

inline void wait_for_role(const volatile sig_atomic_t& stop) {
  using tessera::operations::GetNoteReader;
  const auto get = reinterpret_cast<GetNoteReader>(dlsym(RTLD_DEFAULT, "tessera_note_reader"));
  const auto* reader = get ? get(tessera::operations::kNoteVersion) : nullptr;
  while (reader && !stop && std::atomic_ref<const uint32_t>(*reader->role).load() != reader->reading_role)
    usleep(1000);
}
