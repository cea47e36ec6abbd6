// Storage of tessera_real_driver: one pointer per row of entries.def, each to a function that answers
// CUDA_ERROR_NOT_INITIALIZED until the driver is opened. Assembly, because a table of differently typed pointers to
// one function cannot be a constant expression in C++, and the preload library has no run-time initialisers.
    .data
    .balign 64
    .hidden tessera_real_driver
    .globl tessera_real_driver
    .type tessera_real_driver, @object
tessera_real_driver:
#define TS_CU(symbol, base, since, stream, ret, params, args) .quad tessera_answer_not_initialized;
#include "driver_api/entries.def"
    .size tessera_real_driver, . - tessera_real_driver
    .section .note.GNU-stack, "", @progbits
