// How the scalar handler files fill the table behind scalar_handler().
#pragma once

#include "softgpu/exec/op.h"

namespace tessera::softgpu::exec {

struct ScalarTable {
  Handler by_type[kOperations][kTypes] = {};
  void set(Operation operation, Ty type, Handler handler) {
    by_type[static_cast<unsigned>(operation)][static_cast<unsigned>(type)] = handler;
  }
};

void add_integer_handlers(ScalarTable& table);
void add_float_handlers(ScalarTable& table);
void add_compare_handlers(ScalarTable& table);

// Packed 16-bit integers (add/min/max.{u,s}16x2); sub: 1 signed.
const Op* add_pairs(Warp& w, const Op* op);
const Op* min_pairs(Warp& w, const Op* op);
const Op* max_pairs(Warp& w, const Op* op);
const Op* absolute_differences(Warp& w, const Op* op);  // vabsdiff2/4: count parts

}  // namespace tessera::softgpu::exec
