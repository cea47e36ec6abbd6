// The stub of one name in a library that `tessera run` or `tessera cdi` writes (cli/run/newer_names.cc), as machine code: it jumps to
// the first word of its record, which leads to its second half until the resolver has found the function. Picks the processor's:
//
//   kPlace             folder of such libraries below the run path of libtessera.so; empty: there is none
//   kPage              largest page of the processor's kernels, in bytes
//   kRelocatesByBase   relocation by which the loader adds a library's address to a word
//   kStubBytes         of one stub
//   kFirstCall         where its second half begins, in bytes
//   put_stub(file, stub, record, resolver)   writes one by file.put(at, value); places in the file are addresses
//
// Pure.
#pragma once

#if defined(__x86_64__)
#include "interpose/arch/x86_64/written_stub.h"
#else
#include "interpose/arch/aarch64/written_stub.h"
#endif
