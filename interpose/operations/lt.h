// Reads what a call of cuBLASLt asks for from its descriptors (lt_places.h). They are read at each call: a program may change them
// in place, and makes them anew as often as not.
//
// Called by the hooks in the program's threads, inside the outermost call. Nothing allocates or waits.
#pragma once

#include <atomic>

#include "interpose/operations/call.h"

namespace tessera::library {

// Descriptors; null: the call has none.
struct LtMatmul {
  const void *operation, *a, *b, *c, *d;
};
struct LtTransform {
  const void *a, *b, *c;
  bool has_b;
};

// A function of the library whose descriptors are read; null: none is known. Written by the hooks (hooks.cc), relaxed: it
// is code, which does not change.
extern constinit std::atomic<const void*> g_lt_function;
// Returns cuBLASLt for dlsym(); null: none is known. Slow.
void* lt_library();

// False: the library will refuse it, or its descriptors cannot be read.
bool describe(const LtMatmul& what, Operation* out);
bool describe(const LtTransform& what, Operation* out);

}  // namespace tessera::library
