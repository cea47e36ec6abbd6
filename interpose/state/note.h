// The note of the library call that this thread is in (operations/note.h). Written by libtessera_ops.so through
// hooks/note.cc, read by launches of the same thread.
#pragma once

#include <atomic>

#include "operations/note.h"

namespace tessera::state {

// Null outside such a call and without libtessera_ops.so. Also of a captured call, when its graph is launched in pieces.
extern constinit thread_local operations::Note* t_note __attribute__((tls_model("initial-exec")));

// Told what happens to a best-effort program; null: nobody wants to know. Stored once.
extern constinit std::atomic<const operations::Listener*> g_listener;

}  // namespace tessera::state
