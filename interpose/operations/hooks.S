// The hooks: two for each row of *_calls.def and *_followed.def. One is exported under the name and version of the library's own function.
// Who calls it with that version (whoever was linked with that library) comes here, because this library is preloaded.
// The other is handed out by tessera_ops_hook() with the address that it calls.
//
// Signature-free, as in C++ up to fifteen arguments would be moved out of the way and back. A call that nobody
// wants to know of goes to the library; any doubt leads to C++ in hooks.cc.
//
// The exported names are not default versions, and not of the first version of this library: so the loader hands them to
// nobody who asks without a version. That is a library that carries a cuBLAS of its own, which must meet itself, or a
// program that asks dlsym whether there is a cuBLAS.

#include "interpose/arch/jumps.inc"

    .set tessera_real, 0
    .text
    .macro STUB hook, told
    .balign 16
    .globl \hook
    .type \hook, @function
\hook:
    .cfi_startproc
    JUMP_UNLESS_WANTED tessera_real, \told
    .cfi_endproc
    .size \hook, . - \hook
    .hidden \told
    .set tessera_real, tessera_real + 1
    .endm

// For functions that are followed without a note: always by way of C++.
    .macro FOLLOWER hook, told
    .balign 16
    .globl \hook
    .type \hook, @function
\hook:
    .cfi_startproc
    JUMP \told
    .cfi_endproc
    .size \hook, . - \hook
    .hidden \told
    .endm

    .macro HOOKS stub, symbol, version
    \stub hook_\symbol, told_\symbol
    \stub bound_\symbol, told_bound_\symbol
    .symver hook_\symbol, \symbol\()@\version
    .endm

#define TS_VERSION_kCublas libcublas.so.13
#define TS_VERSION_kCublasLt libcublasLt.so.13
#define TS_VERSION_kCudnn libcudnn.so.9
#define TS_LIBRARY_CALL(library, symbol, base, params, args, what) HOOKS STUB, symbol, TS_VERSION_##library;
#include "interpose/operations/calls.def"
#define TS_LIBRARY_FOLLOW(library, symbol, params, args, before, after) HOOKS FOLLOWER, symbol, TS_VERSION_##library;
#include "interpose/operations/followed.def"

    .hidden tessera_ops_real, tessera_ops_role, tessera_ops_reading_role
    .section .note.GNU-stack, "", @progbits
