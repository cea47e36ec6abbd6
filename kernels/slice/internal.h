// The common part of kernels/slice: the functions that a kernel reaches, and the rules. Private.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/ptx/ir.h"
#include "kernels/slice/flow.h"
#include "kernels/slice/slice.h"

namespace tessera::slice {

// Facts about one function with a body. The first group is its own, the second counts what it calls, too.
struct FunctionFacts {
  const ptx::Function* function = nullptr;
  Flow flow;
  std::vector<const FunctionFacts*> callees;  // each once
  Verdict own;                                // first finding of the rules that look at single instructions
  bool clusters = false;                      // uses a feature of clusters
  Verdict order;                              // order-dependent operation, if any
  bool own_reads_coordinates = false, own_reads_others = false, own_ends_thread = false,
       own_reads_placement = false, own_reads_memory = false;

  bool reads_coordinates = false;  // is_coordinate()
  bool reads_others = false;       // reads_others()
  bool ends_thread = false;        // exit
  bool reads_placement = false;    // reads_placement()
  bool reads_memory = false;       // of any space but parameters
  bool recursive = false;
  int state = 0;  // while the graph is walked: 1 open, 2 done
};

// All functions of a module that were asked for, with what they call. Views into the module.
class Closure {
 public:
  explicit Closure(const ptx::Module& module);
  // Facts of a defined function and, before it, of everything that it calls; nullptr if it is not defined
  // here.
  FunctionFacts* facts(ptx::Name name);

 private:
  const ptx::Module& module_;
  std::unordered_map<ptx::Name, const ptx::Function*> defined_;
  std::unordered_map<ptx::Name, std::unique_ptr<FunctionFacts>> facts_;
  unsigned depth_ = 0;  // of the call chain being followed
};

// Depth-first list of a function and all that it reaches, callees before callers.
std::vector<const FunctionFacts*> reached(const FunctionFacts& root);

// Registers that tell a block where it is in the grid: %ctaid %nctaid %clusterid %nclusterid. Those that tell
// where it is in its cluster stay as they are.
bool is_coordinate(const ptx::Operand& operand);

// Callee of a direct call, "" for an indirect one.
ptx::Name callee_of(const ptx::Instruction& call);
// Functions of the device runtime that the driver provides and that do not wait for other blocks by
// themselves.
bool is_runtime_function(ptx::Name name);

// Does a memory access, by space or by the origin of its address, surely concern only what blocks of other
// slices do not write: local memory, parameters, constants, and shared memory of the block or its cluster,
// whose blocks are all in one slice?
class OwnAddresses {
 public:
  explicit OwnAddresses(const Flow& flow);
  bool only_own(const Node& node) const;

 private:
  const Flow& flow_;
  std::vector<uint8_t> own_;  // by object: holds a generic address of such memory
};

// May the instruction read memory that a block of another slice writes meanwhile? Of a call its callee says
// it.
bool reads_others(const Node& node, const OwnAddresses& own);
size_t address_operand(
    const ptx::Instruction& access);  // index of the first [..]; number of operands if none

// Rules S4, S5 over the loops of one function. `closure` gives the facts of what it calls.
Verdict check_waiting(const FunctionFacts& facts, Closure& closure);
// %smid or %nsmid among the operands.
bool reads_placement(const Node& node);
// First address or branch that depends on them.
Verdict check_placement(const FunctionFacts& facts, Closure& closure);
// First operation whose effect depends on the order of blocks.
Verdict check_order(const Flow& flow, const OwnAddresses& own);

// Byte layout of a parameter list.
struct ParamLayout {
  uint64_t end = 0;  // of the last parameter
  uint64_t origin_offset = 0;
};
ParamLayout layout_params(const ptx::Function& entry);
uint64_t param_limit_bytes(const ptx::Module& module);

std::string at(const ptx::Instruction& instruction);  // "line 12: bar.sync 0;"
Verdict refuse(Refusal refusal, std::string detail);

KernelReport analyse_entry(const ptx::Module& module, const ptx::Function& entry, Closure& closure,
                           const Options& options);

std::vector<KernelReport> analyse_module(const ptx::Module& module, Closure& closure, const Options& options);

}  // namespace tessera::slice
