// May a kernel's PTX be compiled once more without a bit of its results changing (decision D13)? Asked of
// variants that live outside the original's module (docs/slicing.md, "Where the variant lives"). Pure; any
// thread; a finished module may be read by many.
//
// Sources: PTX ISA 9.0, 9.7.3 and 9.7.4 (add, sub, mul without rounding modifier "may be optimized
// aggressively by the code optimizer", i.e. fused into fma; .rn is never fused; .approx and .full have a
// maximum error only), 9.7.15 (mma: "accumulation order is unspecified").
#pragma once

#include <string>

#include "kernels/ptx/ir.h"

namespace tessera::slice {

// Rows: reason, explanation.
#define TS_INSTABILITIES(X)                                                             \
  X(kNone, "every operation has one correct result")                                    \
  X(kContractible, "a product and a sum without rounding modifier may be fused or not") \
  X(kApproximate, "an approximation is specified by its largest error only")            \
  X(kTensor, "the order of a floating-point matrix sum is not specified")               \
  X(kUnknown, "an instruction or function that is not known")

enum class Instability : uint8_t {
#define TS_ROW(id, text) id,
  TS_INSTABILITIES(TS_ROW)
#undef TS_ROW
};
const char* instability_text(Instability);

struct BitStability {
  Instability reason = Instability::kNone;
  std::string detail;  // "line 12: mul.f32 ..." of the first instruction that decides
  uint32_t line = 0;   // in the PTX text; 0 if there is none
  bool stable() const { return reason == Instability::kNone; }
};

// Would another compiler version, given the same PTX, have to produce the same results? The kernel and all
// that it calls. An entry that is not defined in the module is kUnknown.
BitStability bit_stable_when_recompiled(const ptx::Module& module, ptx::Name kernel);

}  // namespace tessera::slice
