// The exported entry points. Signature-free: every argument register and the stack reach the driver as the program set them,
// and the jump is a tail call.
//
//   cuX:  shard = thread pointer & 0xF000        16 shards of 4 KiB, picked by bits 12..15 of the thread pointer: the
//         ++counts[shard][cuX]                   threads of a process have different ones (their stacks are mapped side
//         jmp *dispatch[cuX]                     by side), so the line is not shared; no lock prefix, no TLS variable
//
// dispatch[cuX] is, before the first call, first_cuX below: it saves what may hold arguments, runs init in C++
// (tessera_resolve) and goes where that says. Afterwards it is the driver's function or hook_cuX.
//
// The same is done for names that only the driver knows, by the stubs of another library (cli/run/newer_names.h): they jump to
// tessera_unlisted_call, with the address of a TesseraUnlisted instead of a row.

#include "interpose/arch/jumps.inc"

    .altmacro
    .set tessera_row, 0

// 1. the exported stubs
    .text
    .macro STUB symbol, row
    .balign 32
    .globl \symbol
    .type \symbol, @function
    .hidden tessera_stub_\symbol
    .globl tessera_stub_\symbol
\symbol:
tessera_stub_\symbol:
    .cfi_startproc
    COUNT_AND_JUMP \row
    .cfi_endproc
    .size \symbol, . - \symbol
    .endm

#define TS_CU(symbol, base, since, stream, ret, params, args) STUB symbol, %tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

// 2. where dispatch leads before init
    .macro FIRST symbol, row
tessera_first_\symbol:
    TO_FIRST_CALL \row
    .endm

    .set tessera_row, 0
#define TS_CU(symbol, base, since, stream, ret, params, args) FIRST symbol, %tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

// The slots of the real table lead here while the process is parked (exchange_slots in init.cc); those of dispatch lead to
// the above. The row is one behind all rows.
    .set tessera_rows, tessera_row
    .macro AWAY symbol, row
tessera_away_\symbol:
    TO_FIRST_CALL (\row+tessera_rows)
    .endm

    .set tessera_row, 0
#define TS_CU(symbol, base, since, stream, ret, params, args) AWAY symbol, %tessera_row; .set tessera_row, tessera_row + 1;
#include "driver_api/entries.def"

    .balign 32
    .globl tessera_unlisted_call
    .type tessera_unlisted_call, @function
    .type tessera_first_call, @function
tessera_unlisted_call:
tessera_first_call:
    .cfi_startproc
    FIRST_CALL
    .cfi_endproc
    .size tessera_first_call, . - tessera_first_call

// 3. tables
    .data
    .balign 64
    .hidden tessera_dispatch
    .globl tessera_dispatch
    .type tessera_dispatch, @object
tessera_dispatch:
#define TS_CU(symbol, base, since, stream, ret, params, args) .quad tessera_first_##symbol;
#include "driver_api/entries.def"
    .size tessera_dispatch, . - tessera_dispatch

tessera_counts_base:
    .quad tessera_counts

    .section .data.rel.ro, "aw", @progbits
    .balign 64
    .quad TS_ENTRIES_ID
    .hidden tessera_stub_addresses
    .globl tessera_stub_addresses
    .type tessera_stub_addresses, @object
    .globl tessera_alias_rows    // for alias.S; the word before says which rows they are
    .type tessera_alias_rows, @object
tessera_stub_addresses:
tessera_alias_rows:
#define TS_CU(symbol, base, since, stream, ret, params, args) .quad tessera_stub_##symbol;
#include "driver_api/entries.def"
    .size tessera_stub_addresses, . - tessera_stub_addresses
    .size tessera_alias_rows, . - tessera_alias_rows

    .hidden tessera_first_addresses
    .globl tessera_first_addresses
    .type tessera_first_addresses, @object
tessera_first_addresses:
#define TS_CU(symbol, base, since, stream, ret, params, args) .quad tessera_first_##symbol;
#include "driver_api/entries.def"
    .size tessera_first_addresses, . - tessera_first_addresses

    .hidden tessera_away_addresses
    .globl tessera_away_addresses
    .type tessera_away_addresses, @object
tessera_away_addresses:
#define TS_CU(symbol, base, since, stream, ret, params, args) .quad tessera_away_##symbol;
#include "driver_api/entries.def"
    .size tessera_away_addresses, . - tessera_away_addresses

// Tells another copy of this library that the "driver" it found is one of us (driver_api/open_driver.cc).
    .globl tessera_shim_marker
    .type tessera_shim_marker, @object
tessera_shim_marker:
    .quad 1
    .size tessera_shim_marker, 8

    .bss
    .balign 4096
    .hidden tessera_counts
    .globl tessera_counts
    .type tessera_counts, @object
tessera_counts:
    .zero 16 * 4096
    .size tessera_counts, . - tessera_counts

    .section .note.GNU-stack, "", @progbits
