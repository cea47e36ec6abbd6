// The hooks: one for each row of gemm_calls.def, exported under the name and version of cuBLAS's own function. Who calls
// it with that version (whoever was linked with libcublas.so) comes here, because this library is preloaded.
//
// Signature-free, as in C++ up to fifteen arguments would be moved out of the way and back: free to use are rax, r10, r11
// and the flags. A call that nobody wants to know of goes to the library; any doubt leads to told_cublasX in hooks.cc.
//
// The names are not default versions, and not of the first version of this library: so the loader hands them to nobody
// who asks without a version. That is a library that carries a cuBLAS of its own, which must meet itself, or a program
// that asks dlsym whether there is a cuBLAS.

    .set tessera_row, 0
    .text
    .macro HOOK symbol
    .balign 16
    .globl hook_\symbol
    .type hook_\symbol, @function
hook_\symbol:
    .cfi_startproc
    movq tessera_gemm_real + tessera_row * 8(%rip), %r11    // null until the first call
    testq %r11, %r11
    je told_\symbol
    movq tessera_gemm_role(%rip), %rax                      // wanted() in call.h
    movl (%rax), %eax
    cmpl tessera_gemm_reading_role(%rip), %eax
    je told_\symbol
    jmp *%r11
    .cfi_endproc
    .size hook_\symbol, . - hook_\symbol
    .hidden told_\symbol
    .symver hook_\symbol, \symbol\()@libcublas.so.13
    .set tessera_row, tessera_row + 1
    .endm

#define TS_GEMM_CALL(symbol, base, params, args, product) HOOK symbol;
#include "interpose/operations/gemm_calls.def"

    .hidden tessera_gemm_real, tessera_gemm_role, tessera_gemm_reading_role
    .section .note.GNU-stack, "", @progbits
