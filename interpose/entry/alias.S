// libtessera_alias.so: SONAME libcuda.so. Preloaded beside libtessera.so so that a program's dlopen("libcuda.so") gets a
// handle whose lookups end in the shim: each name of the driver is an IFUNC, which the loader resolves to the address that
// libtessera.so has in its table. It needs no library: where libtessera.so is missing or cannot be loaded, programs start
// all the same, and the answer is that there is no GPU. So it is beside a library of another release, whose rows are others.

#include "interpose/arch/jumps.inc"

#define CUDA_ERROR_NO_DEVICE 100

    .altmacro
    .set tessera_row, 0
    .weak tessera_alias_rows

    .text
    .macro ALIAS symbol, row
    .balign 16
    .globl \symbol
    .type \symbol, @gnu_indirect_function
\symbol:
    CHOOSE_ROW \row
    .size \symbol, . - \symbol
    .endm

#define TS_CU(symbol, base, since, stream, ret, params, args) ALIAS symbol, %tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

    .type tessera_address_of_row, @function
tessera_address_of_row:
    .cfi_startproc
    ADDRESS_OF_ROW tessera_alias_rows, tessera_no_library, TS_ENTRIES_ID
    .cfi_endproc
    .size tessera_address_of_row, . - tessera_address_of_row

    .type tessera_no_library, @function
tessera_no_library:
    .cfi_startproc
    ANSWER CUDA_ERROR_NO_DEVICE
    .cfi_endproc
    .size tessera_no_library, . - tessera_no_library

    .section .note.GNU-stack, "", @progbits
