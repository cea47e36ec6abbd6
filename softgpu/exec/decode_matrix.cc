// Decoding of the matrix instructions.
#include "softgpu/exec/decode.h"

namespace tessera::softgpu::exec {

bool Decoder::d_ldmatrix(const ptx::Instruction& i) { return refuse(i, "not supported by the software GPU"); }
bool Decoder::d_mma(const ptx::Instruction& i) { return refuse(i, "not supported by the software GPU"); }
bool Decoder::d_wmma(const ptx::Instruction& i) { return refuse(i, "not supported by the software GPU"); }
bool Decoder::d_movmatrix(const ptx::Instruction& i) { return refuse(i, "not supported by the software GPU"); }

}  // namespace tessera::softgpu::exec
