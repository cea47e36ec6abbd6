// A call that comes before the C library's own constructor has run: from .preinit_array, or from a resolver of an IFUNC while
// the loader still binds. Called by interpose/entry at the first driver call; one thread, for there is no other yet.
#pragma once

namespace tessera::base {

// The loader still binds the program: it opens no library now, and ends the process that asks.
bool loader_is_binding();

// There is no environment yet: until the C library sets its own, getenv() reads a copy of what the kernel gave.
void lend_environment();

}  // namespace tessera::base
