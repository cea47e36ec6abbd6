// Cutting a kernel's grid into runs of blocks: may it be done (analysis), and how (rewrite). Pure: module in,
// module and report out. Called at module load of best-effort clients and by `tessera inspect`.
// Rules S1 to S9 are in docs/slicing.md. A kernel that is not understood is refused.
//
// The variant of kernel K is an added entry K + kVariantSuffix with the parameters of K followed by one more,
//   .param .align 4 .b8 K__tessera_slice_origin[24]   // SliceOrigin below
// in which every read of %ctaid / %nctaid (in called functions too) sees the original coordinates. It is
// launched with a box (sub-grid) as grid. The original entry stays untouched in the module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ptx/ir.h"

namespace tessera::slice {

inline constexpr char kVariantSuffix[] = "__tessera_slice";

struct SliceOrigin {   // the appended parameter, as laid out in memory
  uint32_t origin[3];  // first block of the box, x y z, in the original grid
  uint32_t grid[3];    // original grid
};
static_assert(sizeof(SliceOrigin) == 24);

enum class Refusal : uint8_t {  // rows of refusals.def give name and explanation
#define TS_REFUSAL(id, name, text) id,
#include "kernels/slice/refusals.def"
};
inline constexpr uint8_t kRefusalCount = 0
#define TS_REFUSAL(id, name, text) +1
#include "kernels/slice/refusals.def"
    ;
const char* refusal_name(Refusal);
const char* refusal_text(Refusal);

struct Verdict {
  Refusal refusal = {};  // kNone = may be cut
  std::string detail;    // instruction and line that caused it
  bool may_cut() const { return refusal == Refusal{}; }
};

struct KernelReport {
  std::string kernel;
  Verdict verdict;
  // Not "": it waits, but only for lower blocks, and this is the wait. Such a kernel may be cut only in a
  // grid of one row (y = z = 1), ascending, each slice after the end of the one before.
  std::string look_back;
  uint32_t param_bytes = 0;      // of the original, rounded as the ABI does
  uint32_t origin_offset = 0;    // byte offset of SliceOrigin in the variant's parameter block
  uint32_t n_params = 0;         // of the original: the variant takes kernelParams[n_params] = &SliceOrigin
  bool clusters = false;         // uses cluster features: boxes must be whole clusters of the launch's shape
  bool order_dependent = false;  // the result may depend on the order of blocks
};

struct Options {
  bool allow_order_dependent = false;  // float atomics etc. change results with block order; off by default
  bool verify_each_pass = false;  // tests: names the pass that went wrong; else what comes out is verified
  void (*dump)(void* user, const char* pass, const ptx::Module& module) = nullptr;  // after each pass, if set
  void* dump_user = nullptr;
};

// Looks at every entry of the module.
std::vector<KernelReport> analyse(const ptx::Module& module, const Options& options = {});

// Adds a variant for each kernel that may be cut. Reports as analyse().
std::vector<KernelReport> add_variants(ptx::Module& module, const Options& options = {});

}  // namespace tessera::slice
