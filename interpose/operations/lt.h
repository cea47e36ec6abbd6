// Reads what a call of cuBLASLt asks for from its descriptors (lt_places.h). They are read at each call: a program may change them
// in place, and makes them anew as often as not.
//
// Called by the hooks in the program's threads, inside the outermost call. Nothing allocates or waits.
#pragma once

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

// The library that exports this function is the one whose descriptors are read; the first one stays.
void know_lt_library(const void* function);
// Returns cuBLASLt for dlsym(); null: none is known. Slow.
void* lt_library();

// False: the library will refuse it, or its descriptors cannot be read.
bool describe(const LtMatmul& what, Operation* out);
bool describe(const LtTransform& what, Operation* out);

}  // namespace tessera::library
