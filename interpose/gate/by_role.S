// Hooks of kernel launches: they only look at the role of this process and jump. A C++ function would load and store
// every stack argument on the way, because it may not know that they stay where they are; a launch of an unmanaged
// program would pay for that. Touches r11 and the flags. The functions are in launch.cc, with the hook's signature.
//
//   kForward      jmp *tessera_real_driver[cuX]
//   kProtected    jmp protected_cuX
//   kBestEffort   jmp best_effort_cuX

#define SLOT_BYTES 8
#define ROLE_OFFSET 8       // of tessera::gate::State::role, asserted in launch.cc
#define ROLE_PROTECTED 1    // tessera::gate::Role, asserted in launch.cc

    .altmacro
    .set tessera_row, 0
#define TS_CU(symbol, base, since, stream, ret, params, args) .set tessera_row_##symbol, tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

    .text
    .macro BY_ROLE symbol
    .balign 32
    .globl hook_\symbol
    .hidden hook_\symbol
    .type hook_\symbol, @function
    .hidden protected_\symbol
    .hidden best_effort_\symbol
hook_\symbol:
    .cfi_startproc
    movl (_ZN7tessera4gate7g_stateE + ROLE_OFFSET)(%rip), %r11d
    cmpl $ROLE_PROTECTED, %r11d
    je protected_\symbol
    ja best_effort_\symbol
    jmp *(tessera_real_driver + tessera_row_\symbol * SLOT_BYTES)(%rip)
    .cfi_endproc
    .size hook_\symbol, . - hook_\symbol
    .endm

    BY_ROLE cuLaunchKernel
    BY_ROLE cuLaunchKernel_ptsz
    BY_ROLE cuLaunchKernelEx
    BY_ROLE cuLaunchKernelEx_ptsz

    .hidden _ZN7tessera4gate7g_stateE
    .hidden tessera_real_driver
    .section .note.GNU-stack, "", @progbits
