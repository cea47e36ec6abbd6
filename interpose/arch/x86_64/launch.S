// The hooks of kernel launches, as far as most launches go. In C++ the eleven arguments would be moved out of the way
// and back, which costs more than all else here. Whatever there is more to say of a launch is said by protected_cuX
// and best_effort_cuX in launch.cc, with the hook's signature, and any doubt leads there.
//
// Free to use are rax, r10, r11 and the flags; all other registers hold arguments.

#include "interpose/arch/x86_64/offsets.h"

#define SLOT_BYTES 8
#define MEMO(field) TS_THREAD_MEMO + TS_MEMO_##field
#define STATE(field) _ZN7tessera5state7g_stateE + TS_STATE_##field

    .set tessera_row, 0
#define TS_CU(symbol, base, since, stream, ret, params, args) .set tessera_row_##symbol, tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

    .text
    .macro THREAD
    movq _ZN7tessera5state8t_threadE@GOTTPOFF(%rip), %r11
    .endm
    .macro DRIVER how, symbol
    \how *(tessera_real_driver + tessera_row_\symbol * SLOT_BYTES)(%rip)
    .endm

    // How the two forms pass arguments: `stack` words above the return address, and where the stream is.
    .macro LAUNCH symbol, stack, kept=0
    .if (\stack + \kept) % 2 == 0
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    .endif
    .rept \stack
    pushq (8 * (\stack + \kept + ((\stack + \kept + 1) % 2)))(%rsp)
    .cfi_adjust_cfa_offset 8
    .endr
    DRIVER call, \symbol
    addq $(8 * (\stack + ((\stack + \kept + 1) % 2))), %rsp
    .cfi_adjust_cfa_offset -(8 * (\stack + ((\stack + \kept + 1) % 2)))
    .endm

    // 1. Protected: interpose/gate/pulse.h, begin_work and end_work. The thread's stream is the one it used last, and busy is
    // said already.
    .macro PROTECTED symbol, family, stack, stream
    THREAD
    movq \stream, %rax
    testq %rax, %rax
    jne 1f
    movl $\family, %eax             // stream_key()
1:  cmpq %rax, %fs:TS_THREAD_KEY(%r11)
    jne 9f
    cmpl $0, %fs:TS_THREAD_SHARED(%r11)
    jne 9f
    cmpl $0, STATE(SYMMETRIC)(%rip)
    jne 9f
    movq %fs:TS_THREAD_COUNT(%r11), %r10
    incq TS_COUNT_BEGUN(%r10)       // then look; membarrier(2) of who clears `busy` keeps the order
    movq STATE(LINK)(%rip), %rax
    movq TS_LINK_PULSE(%rax), %rax
    cmpl $0, TS_PULSE_BUSY(%rax)
    je 8f
    movq %fs:TS_THREAD_SLOT(%r11), %rax
    incq TS_SLOT_LAUNCHES(%rax)
    pushq %r10
    .cfi_adjust_cfa_offset 8
    .endm
    .macro PROTECTED_END symbol
    popq %r10
    .cfi_adjust_cfa_offset -8
    incq TS_COUNT_ENDED(%r10)       // the call has returned
    ret
8:  decq TS_COUNT_BEGUN(%r10)
9:  jmp protected_\symbol
    .endm

    // 2. Best-effort: the thread's latest launch once more, on its credit (credit.h).
    //      same launch?
    //      in_gate = 1; epoch, lease word, peers' pulses as when it was reserved?  enough left?
    //      launch; spent += expected; in_gate = 0
    // The order of store and loads is kept by membarrier(2) of who reclaims: asymmetric_fence in state.h. Without
    // membarrier no memo has an epoch (may_repeat).
    .macro SAME value, field
    cmp \value, %fs:\field(%r11)
    jne 8f
    .endm
    .macro SAME_WORD place, field
    movl \place, %eax
    SAME %eax, \field
    .endm
    .macro SAME_TWO place, field
    movq \place, %rax
    SAME %rax, \field
    .endm
    .macro PEER_IDLE at
    movq \at(%r10), %rax
    cmpl $0, TS_PULSE_BUSY(%rax)
    jne 7f
    movq TS_PULSE_BURST(%rax), %rax
    cmpq %rax, \at + 8(%r10)
    jne 7f
    .endm
    .macro REPEAT
    movq %fs:TS_THREAD_SLOT(%r11), %r10
    cmpl $0, TS_SLOT_IN_GATE(%r10)
    jne 8f                          // a signal handler, or the driver calling back
    movl $TS_IN_GATE, TS_SLOT_IN_GATE(%r10)
    movl STATE(EPOCH)(%rip), %eax
    cmpl %eax, %fs:MEMO(EPOCH)(%r11)
    jne 7f
    movq TS_SLOT_LEASE_WORD(%r10), %rax
    movl (%rax), %eax
    cmpl %eax, TS_SLOT_WORD(%r10)
    jne 7f
    PEER_IDLE TS_SLOT_PEERS
    PEER_IDLE TS_SLOT_PEERS + TS_PEER_BYTES
    movq %fs:MEMO(EXPECTED)(%r11), %rax
    subq %rax, TS_SLOT_LEFT(%r10)
    jb 6f
    incq TS_SLOT_LAUNCHES(%r10)
    movq %fs:MEMO(BLOCKS)(%r11), %rax
    addq %rax, TS_SLOT_BLOCKS(%r10)
    incq %fs:MEMO(REPEATS)(%r11)
    .endm
    .macro REPEAT_END symbol
    THREAD
    movq %fs:MEMO(EXPECTED)(%r11), %rsi
    testl %eax, %eax
    jne 5f
    movq %fs:TS_THREAD_SLOT(%r11), %r10
    addq %rsi, TS_SLOT_SPENT(%r10)
    movl $0, TS_SLOT_IN_GATE(%r10)  // the launch has returned
    ret
5:  movl %eax, %edi
    jmp _ZN7tessera4gate15leave_on_creditE14cudaError_enumm
6:  addq %rax, TS_SLOT_LEFT(%r10)
    movl $TS_OUT_OF_CREDIT, TS_SLOT_IN_GATE(%r10)
    jmp 8f
7:  movl $0, TS_SLOT_IN_GATE(%r10)
8:  jmp best_effort_\symbol
    .endm

    // 3. The hooks.
    .macro BEGIN symbol
    .balign 64
    .globl hook_\symbol
    .hidden hook_\symbol, protected_\symbol, best_effort_\symbol
    .type hook_\symbol, @function
hook_\symbol:
    .cfi_startproc
    movl STATE(ROLE)(%rip), %r11d
    cmpl $TS_ROLE_PROTECTED, %r11d
    je 2f
    ja 3f
    DRIVER jmp, \symbol
    .endm
    .macro END symbol
    .cfi_endproc
    .size hook_\symbol, . - hook_\symbol
    .endm

    // f, gx, gy, gz, bx, by in registers; bz, shared, stream, params, extra on the stack.
    .macro KERNEL symbol, family
    BEGIN \symbol
2:  PROTECTED \symbol, \family, 5, 24(%rsp)
    movq %rdi, TS_SLOT_LAST_FUNCTION(%rax)
    LAUNCH \symbol, 5, 1
    PROTECTED_END \symbol
3:  THREAD
    SAME %rdi, MEMO(FUNCTION)
    SAME %esi, MEMO(GRID)
    SAME %edx, MEMO(GRID) + 4
    SAME %ecx, MEMO(GRID) + 8
    SAME %r8d, MEMO(BLOCK)
    SAME %r9d, MEMO(BLOCK) + 4
    SAME_WORD 8(%rsp), MEMO(BLOCK) + 8
    SAME_WORD 16(%rsp), MEMO(SHARED)
    SAME_TWO 24(%rsp), MEMO(STREAM)
    cmpq $\family, %fs:MEMO(FAMILY)(%r11)
    jne 8f
    REPEAT
    LAUNCH \symbol, 5
    REPEAT_END \symbol
    END \symbol
    .endm

    // config, f, params, extra in registers.
    .macro KERNEL_EX symbol, family
    BEGIN \symbol
2:  testq %rdi, %rdi
    je 9f
    PROTECTED \symbol, \family, 0, TS_CONFIG_STREAM(%rdi)
    movq %rsi, TS_SLOT_LAST_FUNCTION(%rax)
    LAUNCH \symbol, 0, 1
    PROTECTED_END \symbol
3:  testq %rdi, %rdi
    je 8f
    cmpl $0, TS_CONFIG_ATTRIBUTES(%rdi)
    jne 8f
    THREAD
    SAME %rsi, MEMO(FUNCTION)
    SAME_TWO 0(%rdi), MEMO(GRID)
    SAME_TWO 8(%rdi), MEMO(GRID) + 8
    SAME_TWO 16(%rdi), MEMO(BLOCK) + 4
    SAME_WORD 24(%rdi), MEMO(SHARED)
    SAME_TWO TS_CONFIG_STREAM(%rdi), MEMO(STREAM)
    cmpq $\family, %fs:MEMO(FAMILY)(%r11)
    jne 8f
    REPEAT
    LAUNCH \symbol, 0
    REPEAT_END \symbol
    END \symbol
    .endm

    KERNEL cuLaunchKernel, TS_FAMILY_LEGACY
    KERNEL cuLaunchKernel_ptsz, TS_FAMILY_PER_THREAD
    KERNEL_EX cuLaunchKernelEx, TS_FAMILY_LEGACY
    KERNEL_EX cuLaunchKernelEx_ptsz, TS_FAMILY_PER_THREAD

    .hidden _ZN7tessera5state7g_stateE
    .hidden _ZN7tessera4gate15leave_on_creditE14cudaError_enumm
    .hidden tessera_real_driver
    .section .note.GNU-stack, "", @progbits
