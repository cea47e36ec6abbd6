// Do the pieces of a call give the same bits as the call? Tried once for each class of calls: the call is made as the program
// asked, and its pieces once more into memory of our own, which held what C held before. Both results are compared when the
// program waits for the GPU anyway, and nobody of a higher level is busy. What was found is remembered (split_memory.h).
//
// One trial at a time, in any thread. Its memory is bounded, so a trial compares as many pieces as fit, and the next one of the
// class goes on behind them. The program comes first: where it is refused memory, a trial gives its own back. What is made in a
// context ends with it. Uses the driver through the program's own libcuda.so.1, as the program does.
#pragma once

#include "interpose/operations/split.h"

namespace tessera::library {

// Once, by connect(): variables of the environment by which the libraries choose.
void read_library_environment();

// A key of what else decides on bits: GPU, driver, and that environment. 0: not to be found out.
uint64_t machine_key();

// True: the call was made, *status is its answer; its class may be known later. False: nothing was done. `what.result()` is known.
bool try_split(SplitCall& what, const operations::Split& cut, uint64_t key, int* status);

// By which trials are compared, and end.
extern const operations::Listener kTrialListener;

}  // namespace tessera::library
