// libtessera_alias.so: SONAME libcuda.so. Preloaded beside libtessera.so so that a program's dlopen("libcuda.so") gets a
// handle whose lookups end in the shim: each name of the driver is a jump into the table that libtessera.so exports. It
// needs no library: where libtessera.so is missing or cannot be loaded, programs start all the same, and the answer is
// that there is no GPU. So it is beside a library of another release, whose rows are others.

#define SLOT_BYTES 8
#define CUDA_ERROR_NO_DEVICE 100

    .altmacro
    .set tessera_row, 0
    .weak tessera_alias_rows

    .text
    .macro ALIAS symbol, row
    .balign 32
    .globl \symbol
    .type \symbol, @function
\symbol:
    .cfi_startproc
    movq tessera_alias_rows@GOTPCREL(%rip), %r11
    testq %r11, %r11
    jz tessera_no_library
    cmpl $TS_ENTRIES_ID, -SLOT_BYTES(%r11)
    jne tessera_no_library
    jmp *(\row * SLOT_BYTES)(%r11)
    .cfi_endproc
    .size \symbol, . - \symbol
    .endm

#define TS_CU(symbol, base, since, stream, ret, params, args) ALIAS symbol, %tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

    .type tessera_no_library, @function
tessera_no_library:
    .cfi_startproc
    movl $CUDA_ERROR_NO_DEVICE, %eax
    ret
    .cfi_endproc
    .size tessera_no_library, . - tessera_no_library

    .section .note.GNU-stack, "", @progbits
