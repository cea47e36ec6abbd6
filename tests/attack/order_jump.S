// A stub as those of the libraries, over a table of one slot: order.cc exchanges what it leads to.
#include "interpose/arch/jumps.inc"

    .text
    .globl order_jump
    .type order_jump, @function
order_jump:
    JUMP_THROUGH order_slot, 0
    .size order_jump, . - order_jump
    .hidden order_slot
    .section .note.GNU-stack, "", @progbits
