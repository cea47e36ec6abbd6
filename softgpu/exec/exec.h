// Executes PTX on the CPU: a warp-vector interpreter (32 lanes at once). softgpu/driver loads modules and
// runs grids through this page; nothing here knows streams, time or other processes.
//
// Device addresses are host addresses of this process (what cuMemAlloc of the software GPU returns), so
// global, const, mapped-host and managed memory need no translation. Shared and local memory have
// generic-address windows of their own. Every access is checked against AllocationMap. A kernel that reaches
// an instruction that is not supported is refused, with instruction, line and kernel named; never executed
// wrongly. The other kernels of its module are not affected.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/ptx/ir.h"

namespace tessera::softgpu::exec {

// Live memory that kernels may touch. add/remove: any thread; lookups run concurrently with them. A range
// removed while a kernel runs faults in that kernel from then on (per-warp caches check `generation`).
class AllocationMap {
 public:
  // kExact: kernels may touch what was allocated and nothing else, which finds the most bugs. kHardware: as
  // far as hardware lets them, which programs rely on: compilers widen loads past the end of an array.
  enum class Bounds : uint8_t { kExact, kHardware };
  explicit AllocationMap(Bounds bounds = Bounds::kExact);
  ~AllocationMap();
  Bounds bounds() const { return bounds_; }
  struct Range {
    uint64_t begin = 0, end = 0;  // [begin, end) bytes
    bool writable = true;
    bool constant = false;   // holds a variable of the constant space
    uint64_t reach_end = 0;  // where kernels' accesses must end
  };
  // Memory that ends with a granule, since nothing else lies there, is added with its granule.
  void add(uint64_t begin, uint64_t bytes, bool writable, uint64_t granule_bytes = 1, bool constant = false);
  bool remove(uint64_t begin);                           // by exact begin
  bool find(uint64_t address, Range* range) const;       // the range that holds address
  bool reachable(uint64_t address, Range* range) const;  // the range from which kernels reach address
  bool nearest(uint64_t address, Range* range) const;    // for reports
  uint64_t generation() const;
  const uint64_t* generation_word()
      const;  // the same, for the interpreter's per-access check (atomic loads only)

 private:
  struct State;
  std::unique_ptr<State> state_;
  const Bounds bounds_;
};

// Units of allocation: global memory as cuMemAlloc aligns it; shared memory of a block.
inline constexpr uint64_t kGlobalGranuleBytes = 512, kSharedGranuleBytes = 128;

enum class FaultKind : uint8_t {
  kNone,
  kIllegalAddress,
  kMisalignedAddress,
  kIllegalInstruction,
  kTrap,
  kAssert,
  kDeadlock,
  kInvalidPc,
  kStackOverflow,
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string kernel;
  std::array<uint32_t, 3> block{}, thread{};
  uint32_t line = 0;  // of the PTX text
  uint64_t address = 0;
  std::string text;  // instruction, nearest allocation, deadlocked PCs ...
};

struct Param {
  uint32_t offset_bytes, size_bytes;
};

struct KernelInfo {
  std::string name;
  std::vector<Param> params;
  uint32_t param_bytes = 0;  // whole block
  uint32_t static_shared_bytes = 0;
  uint32_t constant_bytes = 0;  // variables in constant memory that it names
  uint32_t local_bytes = 0;     // per thread
  uint32_t registers = 0;       // estimate for occupancy: 32-bit registers live at once, >= 16, <= 255
  uint32_t max_threads_per_block = 1024;       // .maxntid / .reqntid
  std::array<uint32_t, 3> required_block{};    // .reqntid, zeros if none
  std::array<uint32_t, 3> required_cluster{};  // .reqnctapercluster, zeros if none
  bool explicit_cluster = false;               // .explicitcluster: a launch must have a shape
};

// The work of a grid, for the roofline model in softgpu/timing. Summed over executed blocks.
struct Work {
  uint64_t warp_instructions = 0;  // issue slots, one per executed warp instruction
  uint64_t global_bytes = 0;       // device-memory traffic in 32-byte sectors x 32, per warp access, no cache
  uint64_t tensor_operations = 0;  // multiply-adds x 2 in mma/wmma
  // Floating-point operations of lanes outside mma: add, sub, mul, div and each function 1, fma 2, pairs
  // twice.
  uint64_t fp64_operations = 0, fp32_operations = 0, fp16_operations = 0;

  static constexpr uint64_t Work::*kCounts[] = {&Work::warp_instructions, &Work::global_bytes,
                                                &Work::tensor_operations, &Work::fp64_operations,
                                                &Work::fp32_operations,   &Work::fp16_operations};
};

// Progress of a running grid; the runner writes, anyone reads (relaxed: statistics only).
struct Progress {
  std::atomic<uint64_t> blocks_done{0};
  std::array<std::atomic<uint64_t>, std::size(Work::kCounts)> work{};  // of those, in the order of kCounts

  Work so_far() const {
    Work sum;
    for (size_t i = 0; i < work.size(); ++i) sum.*Work::kCounts[i] = work[i].load(std::memory_order_relaxed);
    return sum;
  }
};

// All that is left of a grid polls: every block came back to a state in which it was before, and nothing that
// the grid wrote in between changed a byte.
struct EndlessPoll {
  Fault where;                        // one of the threads, kDeadlock, with what it reads
  std::vector<uint64_t> allocations;  // first bytes of those that are read; none: only shared memory
  unsigned helpers = 0;               // threads that run the grid beside the one that asks
};

struct Launch {
  std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  const void* params = nullptr;   // param block of KernelInfo::param_bytes, read during run() only
  uint64_t block_order_seed = 0;  // 0 ascending, 1 reversed, else random permutation by seed
  bool cooperative = false;       // all blocks resident together
  uint64_t resident_blocks = 0;   // resident on the device that this stands for
  // May someone outside the grid still change what it polls? Then it goes on, and the question comes again;
  // otherwise, and where there is nobody to ask, the grid ends with kDeadlock. Called by one of its threads.
  std::function<bool(const EndlessPoll&)> may_be_released;
  // Blocks of a cluster per axis, at most 16 in all; the grid is a multiple of it. Zeros: what the kernel
  // requires, or 1.
  std::array<uint32_t, 3> cluster{};
};

class Kernel;  // decoded code of one entry; owned by its Program

class Program {
 public:
  // Places module globals and consts (registered in `memory`, released with the program) and decodes every
  // kernel with the functions that it can reach. An error is one of the module (variables, address size);
  // kernels that cannot be executed are refused one by one, see refused().
  static base::Result<std::unique_ptr<Program>> load(const ptx::Module& module, AllocationMap& memory,
                                                     uint32_t max_registers = 255);
  virtual ~Program() = default;
  virtual const Kernel* kernel(
      const std::string& name) const = 0;  // nullptr if there is none, or it is refused
  virtual const KernelInfo& info(const Kernel& kernel) const = 0;
  virtual std::vector<std::string> kernel_names() const = 0;  // those that can run
  // Kernels that cannot run: by name, why (kernel, function, line and instruction).
  virtual const std::map<std::string, std::string>& refused() const = 0;
  struct Symbol {
    uint64_t address, size_bytes;
  };
  virtual bool symbol(const std::string& name, Symbol* symbol) const = 0;
  virtual std::vector<std::string> symbol_names() const = 0;

  // Runs the whole grid in the calling thread (plus helper threads if `threads` > 1) and returns when every
  // block has ended or one faulted. Several grids may run concurrently. printf text goes to standard output.
  // `cancel` (may be null): polled; true ends the run early with FaultKind::kNone.
  virtual Fault run(const Kernel& kernel, const Launch& launch, unsigned threads, Work* work,
                    Progress* progress, const std::atomic<bool>* cancel) = 0;
};

}  // namespace tessera::softgpu::exec
