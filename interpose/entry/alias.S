// libtessera_alias.so: SONAME libcuda.so. Preloaded beside libtessera.so so that a program's dlopen("libcuda.so") gets a
// handle whose lookups end in the shim: each name of the driver is an IFUNC, which the loader resolves to the address that
// libtessera.so has in its table. It needs no library: where libtessera.so is missing or cannot be loaded, programs start
// all the same, and the answer is that there is no GPU. So it is beside a library of another release, whose rows are others.

#define SLOT_BYTES 8
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
    movl $\row, %ecx
    jmp tessera_address_of_row
    .size \symbol, . - \symbol
    .endm

#define TS_CU(symbol, base, since, stream, ret, params, args) ALIAS symbol, %tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

// Row in ecx.
    .type tessera_address_of_row, @function
tessera_address_of_row:
    .cfi_startproc
    movq tessera_alias_rows@GOTPCREL(%rip), %rdx
    leaq tessera_no_library(%rip), %rax
    testq %rdx, %rdx
    jz 1f
    cmpl $TS_ENTRIES_ID, -SLOT_BYTES(%rdx)
    jne 1f
    movq (%rdx, %rcx, SLOT_BYTES), %rax
1:  ret
    .cfi_endproc
    .size tessera_address_of_row, . - tessera_address_of_row

    .type tessera_no_library, @function
tessera_no_library:
    .cfi_startproc
    movl $CUDA_ERROR_NO_DEVICE, %eax
    ret
    .cfi_endproc
    .size tessera_no_library, . - tessera_no_library

    .section .note.GNU-stack, "", @progbits
