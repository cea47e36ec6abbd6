// What a call of cuBLASLt asks for, by its descriptors. The library's own functions read them (about 10 ns an attribute);
// what bytes mean is remembered, so that descriptors that say the same, at whatever address, are not read again.
//
// Called by the hooks in the program's threads, inside the outermost call. Nothing allocates or waits. Descriptors are only
// read: 64 bytes of a layout, 256 of a product, as cublasLt.h declares them for programs that keep their own.
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
// That library, for dlsym(); null: none is known. Slow.
void* lt_library();

// False: the library will refuse it, or its descriptors cannot be read.
bool describe(const LtMatmul& what, Operation* out);
bool describe(const LtTransform& what, Operation* out);
// What is remembered is not copied. Null: as false above.
const Operation* described(const LtMatmul& what, Operation* own);
const Operation* described(const LtTransform& what, Operation* own);

}  // namespace tessera::library
