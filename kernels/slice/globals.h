// The variant in a module of its own (docs/slicing.md, "Where the variant lives"): which state of the
// original's module it needs, and how that gets there. Variables in .global memory are passed by address: the
// variant takes one more parameter behind SliceOrigin,
//   .param .align 8 .b8 K__tessera_slice_globals[8 * n]   // addresses in the original's module
// and every reference to the variable, in called functions too, is one to that address. Everything else that
// a second module would have for itself is an obstacle, with a name and the instruction. Pure; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/slice/slice.h"

namespace tessera::slice {

// Rows: obstacle, name for counters and reports (stable), explanation.
#define TS_GLOBALS_OBSTACLES(X)                                                                      \
  X(kNone, "none", "nothing that a copy would have for itself, but variables passed by address")     \
  X(kConstant, "const_variable", "constant memory belongs to its module")                            \
  X(kTexture, "texture_reference", "a texture, sampler or surface reference of the module")          \
  X(kFunctionAddress, "function_address", "the address of a function of the module")                 \
  X(kRuntime, "device_runtime", "printf, assert or the device heap")                                 \
  X(kAttribute, "variable_attribute", "a variable with an attribute (.managed)")                     \
  X(kLinkage, "variable_linkage", "a variable of another module, or whose name is not the only one") \
  X(kSize, "variable_size", "a variable whose size is not known")                                    \
  X(kForm, "variable_form", "an instruction that names a variable in a way that is not rewritten")   \
  X(kLimit, "variable_limit", "more variables than are passed, or no room for the added parameter")  \
  X(kUnknown, "module_state", "an indirect call, or something that is not understood")

enum class GlobalsObstacle : uint8_t {
#define TS_ROW(id, name, text) id,
  TS_GLOBALS_OBSTACLES(TS_ROW)
#undef TS_ROW
};
#define TS_ROW(id, name, text) +1
inline constexpr uint8_t kObstacleCount = 0 TS_GLOBALS_OBSTACLES(TS_ROW);
#undef TS_ROW
const char* obstacle_name(GlobalsObstacle);
const char* obstacle_text(GlobalsObstacle);

inline constexpr uint32_t kMaxPassedGlobals = 64;

struct PassedVariable {
  std::string name;  // as the driver finds it in the original's module
  uint64_t bytes = 0;
};
struct PassedGlobals {
  GlobalsObstacle obstacle = GlobalsObstacle::kNone;
  std::string detail;                  // "line 12: ld.const ..." of the first obstacle
  uint32_t offset = 0;                 // byte offset of the added parameter; 0 = nothing is passed
  std::vector<PassedVariable> passed;  // in the order of the addresses
  bool possible() const { return obstacle == GlobalsObstacle::kNone; }
};
// Variables of a module that outlives it and does not change; looked through once for all of its kernels.
class ModuleGlobals {
 public:
  explicit ModuleGlobals(const ptx::Module& module);
  ~ModuleGlobals();
  PassedGlobals passed(ptx::Name kernel) const;  // by the kernel and all that it calls

  struct Facts;

 private:
  std::unique_ptr<const Facts> facts_;
};
inline PassedGlobals passed_globals(const ptx::Module& module, ptx::Name kernel) {
  return ModuleGlobals(module).passed(kernel);
}

// A kernel and what it calls and names, for make_sibling(). It must not outlive the module, whose text it shows.
ptx::Module part_of(const ptx::Module& module, const std::string& kernel);

// Leaves of the module nothing but the kernel's variant and what that calls, with `globals` (of this kernel,
// possible) passed by address. Refused: the module is of no use any more.
KernelReport make_sibling(ptx::Module& module, const std::string& kernel, const PassedGlobals& globals,
                          const Options& options = {});

}  // namespace tessera::slice
