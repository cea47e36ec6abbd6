// Control flow and data flow of one function body: instructions in a row with the objects they read and
// write, basic blocks, and the nested loop forest. Private to kernels/slice. Built once per function, then
// read-only; views into the Function, which must not change meanwhile.
//
// An *object* is a register, a .param variable of the body, or a stand-in for memory, for what the threads of
// a block tell each other or for the carry flag, so that a value that takes the way over those is not lost.
// Analyses over objects ignore the order of instructions: any write may reach any read.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/ptx/ir.h"
#include "kernels/ptx/opcodes.h"

namespace tessera::slice {

using Object = uint32_t;
inline constexpr Object kNoObject = 0;
// kExchange: shared memory, barriers and exchanges within a warp. A thread that reads one of them may see
// what another thread of the block said by another of them, so they are one object.
inline constexpr Object kLocalMemory = 1, kExchange = 2, kGlobalMemory = 3, kCarry = 4, kFirstRegister = 5;

inline constexpr bool is_memory(Object o) {
  return o >= kLocalMemory && o <= kGlobalMemory;
}

inline constexpr uint8_t kNoOperand = 255;

struct Node {
  const ptx::Instruction* instruction = nullptr;
  const ptx::Opcode* opcode = nullptr;                  // nullptr: not in opcodes.def
  Object guard = kNoObject;                             // also among the reads
  uint32_t reads_begin = 0, writes_begin = 0, end = 0;  // into Flow::objects: reads, then writes
  uint32_t scope = 0;                                   // for label lookup while building
};

struct Block {
  uint32_t begin = 0, end = 0;  // nodes
  std::vector<uint32_t> successors;
  bool leaves = false;  // may end the function
};

struct Loop {
  std::vector<uint32_t> blocks;  // ascending
  unsigned depth = 0;            // 0 = outermost
  uint32_t header = 0;           // a pass begins here
  bool partial = false;          // one of the back edges of the loop listed before with the same header
};

struct Flow {
  const ptx::Function* function = nullptr;
  std::vector<Node> nodes;
  std::vector<Object> objects;
  std::vector<uint8_t>
      operand_of;  // beside `objects`: index of the operand, kNoOperand for guards and memory
  std::vector<Block> blocks;
  std::vector<Loop> loops;    // outer before inner
  std::vector<Object> given;  // parameters of the function: the caller writes them
  std::vector<Object> taken;  // what the function returns: the caller reads it
  Object n_objects = kFirstRegister;
  // Unknown jump targets, registers of the module, which other functions have too, or the loop forest exceeded
  // its bound.
  bool gave_up = false;

  std::span<const Object> reads(const Node& n) const {
    return {objects.data() + n.reads_begin, objects.data() + n.writes_begin};
  }
  std::span<const Object> writes(const Node& n) const {
    return {objects.data() + n.writes_begin, objects.data() + n.end};
  }
  // Index of the block that a node of `nodes` is in.
  uint32_t block_of(const Node& node) const;
  // First object of operand n (the register, or the base of an address), kNoObject if it has none.
  Object object_of(const Node& node, size_t n) const;
  // Calls f(object) for each object that operand n mentions.
  template <class F>
  void each_object(const Node& node, size_t n, F f) const {
    for (uint32_t k = node.reads_begin; k < node.end; ++k)
      if (operand_of[k] == n) f(objects[k]);
  }
};

Flow build_flow(const ptx::Function& function);

}  // namespace tessera::slice
