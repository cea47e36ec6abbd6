// A program as values: of each instruction its results, and of those with an effect what they depend on. Private to
// kernels/sass.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/image/code.h"
#include "kernels/sass/program.h"
#include "kernels/sass/proof.h"
#include "kernels/sass/values.h"

namespace tessera::sass {

// The places of a launch's values in constant bank 0.
struct Surroundings {
  const image::KernelCode* code = nullptr;
  uint32_t param_base = 0;
  uint32_t own_param_bytes = 0;                   // of the original
  const VariantParameters* parameters = nullptr;  // of the variant; null: this is the original
  bool thorough = false;                          // what nobody sees is left out; takes time
  std::array<uint32_t, 3> required_threads = {};  // of a block, as image::KernelCode has them
};

struct Effect {
  uint32_t instruction = 0;
  Label label;
  std::vector<Value> operands;  // with the guard
  // These describe a plain store to [base + offset]. Stores of one run to other bytes at the same base may come in any
  // order. No load of the same memory is among them.
  bool is_store = false;
  uint32_t run = 0;
  size_t base_words = 0;  // of the operands, the first ones
  int32_t offset = 0;
  uint32_t bytes = 0;
};

struct Graph {
  std::vector<std::vector<Effect>> effects;  // by block, in their order
  std::vector<std::pair<uint32_t, uint32_t>>
      atoms;  // of the program: atom, instruction; in the order they were made
  Facts facts;
  std::string refusal;  // not "": it is not understood
};

Graph build_graph(const Program& program, const Surroundings& surroundings, Values* values);

}  // namespace tessera::sass
