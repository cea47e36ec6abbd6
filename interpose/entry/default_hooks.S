// A hook that merely forwards, for every row of hooks.def. Weak: the gate's archive, linked whole, replaces those that
// it defines; the pass-through build has only these. Signature-free like the stubs.
#include "interpose/arch/jumps.inc"

    .set tessera_row, 0
#define TS_CU(symbol, base, since, stream, ret, params, args) \
    .set tessera_row_##symbol, tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

    .text
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) \
    .weak hook_##symbol; \
    .hidden hook_##symbol; \
    .type hook_##symbol, @function; \
    hook_##symbol: JUMP_THROUGH tessera_real_driver, tessera_row_##symbol; \
    .size hook_##symbol, . - hook_##symbol;
#include "driver_api/hooks.def"

// (row, address of the hook) for every row of hooks.def: what init writes into the dispatch table.
    .section .data.rel.ro, "aw", @progbits
    .balign 16
    .hidden tessera_hook_table
    .globl tessera_hook_table
    .type tessera_hook_table, @object
tessera_hook_table:
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) .quad tessera_row_##symbol, hook_##symbol;
#include "driver_api/hooks.def"
    .size tessera_hook_table, . - tessera_hook_table

    .section .note.GNU-stack, "", @progbits
