// The passes that make slicing variants. Private to kernels/slice; pipeline.cc lists and runs them in order.
// Each pass changes only the functions in Rewrite::clones.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/ptx/ir.h"
#include "kernels/slice/internal.h"

namespace tessera::slice {

struct Clone {
  ptx::Function* function;
  bool is_entry;
  bool reads_coordinates;  // itself or by what it calls
  bool threads_callees;    // calls a function that reads them
};

struct Rewrite {
  ptx::Module& module;
  Closure& closure;                                          // facts of the originals
  std::vector<ptx::Name> kernels;                            // entries that may be cut, in module order
  std::vector<Clone> clones;                                 // what the passes made, callees first
  std::unordered_map<ptx::Name, ptx::Name> renamed_callees;  // original .func -> its clone
};

void clone_functions(Rewrite& rewrite);   // copies entries, and callees that read coordinates
void append_parameter(Rewrite& rewrite);  // SliceOrigin to entries, coordinates to callees
void strip_debug(Rewrite& rewrite);       // .loc and labels that only debug information names
void read_coordinates(Rewrite& rewrite);  // is_coordinate() -> registers set in a prologue
void thread_calls(Rewrite& rewrite);      // calls of renamed callees hand the coordinates on

}  // namespace tessera::slice
