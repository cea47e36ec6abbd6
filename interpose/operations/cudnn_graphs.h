// Follows what graphs of cuDNN compute (the backend API). A plan cannot be asked which operations it runs, so this follows how one is made:
//
//   tensor --> operation --> graph of operations --> heuristic --> configuration --> plan
//                                                \-> engine ---/
//
// When an operation is given a tensor, the tensor is read by the library's own function; modes, which that does not tell, are kept when
// they are set. When a graph is given its operations, they
// are summed up (operations/graph.h); the sum is handed on from descriptor to descriptor, up to the plan. Of a plan that was made
// otherwise (of JSON, before this library was there) nothing is known.
//
// Called by the hooks, after the library's function has said yes, in the program's threads. Nothing allocates. Tables of fixed size:
// what finds no place is not known. Descriptors are changed under a lock that is held for microseconds; who does not get it for long
// (a child of fork() whose parent held it) goes without. Looking a plan up takes no lock.
#pragma once

#include "interpose/operations/call.h"

namespace tessera::library {

// By the arguments of cudnnBackend*: a descriptor was made, is about to go, was given something, was asked for something.
void graph_descriptor_made(void** descriptor);
void graph_descriptor_goes(const void* descriptor);
void graph_attribute_set(const void* descriptor, int attribute, int type, int64_t n, const void* elements);
void graph_attribute_read(const void* descriptor, int attribute, int type, int64_t most, const int64_t* n,
                          const void* elements);

struct GraphPlan {
  const void* plan;
};
// False: nothing is known of it.
bool describe(const GraphPlan& what, Operation* out);

}  // namespace tessera::library
