// Offsets of the fields that launch.S uses. offsets.cc asserts each of them.
#pragma once

// interpose/state/state.h
#define TS_ROLE_PROTECTED 1
#define TS_STATE_LINK 0
#define TS_STATE_ROLE 8
#define TS_STATE_SYMMETRIC 20
#define TS_STATE_EPOCH 36
#define TS_LINK_PULSE 32
#define TS_THREAD_SLOT 0
#define TS_THREAD_COUNT 8
#define TS_THREAD_KEY 16
#define TS_THREAD_SHARED 60
#define TS_THREAD_MEMO 64
#define TS_MEMO_GRID 0
#define TS_MEMO_BLOCK 12
#define TS_MEMO_SHARED 24
#define TS_MEMO_EPOCH 28
#define TS_MEMO_STREAM 32
#define TS_MEMO_FUNCTION 40
#define TS_MEMO_FAMILY 48
#define TS_MEMO_EXPECTED 56
#define TS_MEMO_BLOCKS 64
#define TS_MEMO_REPEATS 72
#define TS_SLOT_LAUNCHES 0
#define TS_SLOT_LAST_FUNCTION 8
#define TS_SLOT_BLOCKS 24
#define TS_COUNT_BEGUN 8
#define TS_COUNT_ENDED 16
#define TS_IN_GATE 1
#define TS_OUT_OF_CREDIT 2
#define TS_SLOT_IN_GATE 320
#define TS_SLOT_LEFT 328
#define TS_SLOT_SPENT 336
#define TS_SLOT_LEASE_WORD 344
#define TS_SLOT_WORD 352
#define TS_SLOT_PEERS 360
#define TS_PEER_BYTES 16
// driver_api/real_table.h, Flavour
#define TS_FAMILY_LEGACY 1
#define TS_FAMILY_PER_THREAD 2
// ipc/abi/region.h
#define TS_PULSE_BUSY 64
#define TS_PULSE_BURST 72
// cuda.h, CUlaunchConfig; its first fields are those of the memo
#define TS_CONFIG_STREAM 32
#define TS_CONFIG_ATTRIBUTES 48
