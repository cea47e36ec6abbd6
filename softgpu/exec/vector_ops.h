// Handlers that pack, unpack and convert pairs. Private to softgpu/exec.
#pragma once

#include "kernels/ptx/ir.h"
#include "softgpu/exec/machine.h"

namespace tessera::softgpu::exec {

const Op* op_pack(Warp& w, const Op* op);          // d (type2) from extra[count] of type
const Op* op_unpack(Warp& w, const Op* op);        // extra[count] of type from a (type2)
const Op* op_convert_pair(Warp& w, const Op* op);  // imm: formats; two results in one register

// Element format of a packed (or single f32) type; 0xff if it is none.
unsigned pair_format(ptx::Type type);

}  // namespace tessera::softgpu::exec
