// Decoded code and the state of a running grid, with what schedules it. Private to softgpu/exec.
// Ownership: Program owns Kernels, a Kernel its Codes (callees are decoded once per kernel, so that shared
// memory has one layout per kernel). A Grid lives during one Program::run; Workers and Blocks belong to one
// thread.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/exec/exec.h"
#include "softgpu/exec/machine.h"
#include "softgpu/exec/matrix.h"
#include "softgpu/exec/standstill.h"

namespace tessera::softgpu::exec {

// Memory aligned for vectors; contents are zero at first.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { std::free(data_); }
  Buffer(Buffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr, other.bytes_ = 0;
  }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  // Grows to at least `bytes`, keeping contents.
  void reserve(size_t bytes);
  char* data() const { return static_cast<char*>(data_); }
  size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

struct Copy {
  uint32_t local_offset, bytes;  // in the caller's local frame
};
enum class Builtin : uint8_t { kNone, kPrintf, kAssertFail, kMalloc, kFree };
struct CallSite {
  const Code* callee = nullptr;  // null: builtin or indirect
  Builtin builtin = Builtin::kNone;
  std::string name;               // of the callee, for messages
  uint32_t pointer = kNoOperand;  // indirect: register that holds the function's address
  std::vector<Copy> in, out;
};
// A parameter of the entry, or an element of it, that operands name: the n-th column of 256 bytes behind the
// uniform special registers.
struct ParameterColumn {
  uint32_t offset, bytes;
  bool is_signed, wide;
};
struct Parameter {
  uint32_t local_offset, bytes;
};

// Floating-point operations of one lane, summed over the instructions before an issue slot.
struct FloatOperations {
  uint32_t fp64 = 0, fp32 = 0, fp16 = 0;
};

// A decoded function.
struct Code {
  std::string name;
  std::vector<Op> ops;
  std::vector<uint32_t> extra;                 // operand lists, tagged as in Op
  std::vector<std::vector<const Op*>> tables;  // brx.idx targets
  std::vector<CallSite> calls;
  std::vector<MatrixInfo> matrices;
  Buffer constants;
  std::vector<FloatOperations> operations;  // by Op::issue: a segment's are the difference of its two ends
  uint32_t reg_bytes = 0;                   // register window
  uint32_t frame_bytes = 0;                 // local memory of one activation
  uint32_t live_registers = 0;              // 32-bit registers live at once
  std::vector<Parameter> params, returns;   // .func only
  std::vector<ParameterColumn> columns;     // entry only
};

class Kernel {
 public:
  KernelInfo info;
  std::vector<std::unique_ptr<Code>> codes;    // [0] is the entry
  std::map<uint64_t, const Code*> by_address;  // function pointers
  uint32_t dynamic_shared_offset = 0;
  bool reserves_shared = false;  // uses the region that %reserved_smem_offset_* describe
  bool recursive = false;        // recursion or indirect calls: local memory gets a stack
};

struct Grid {
  const Kernel* kernel;
  Launch launch;
  uint64_t n_blocks;
  std::array<uint32_t, 3> cluster;  // blocks of a cluster
  uint32_t cluster_blocks;          // all of them
  bool explicit_cluster;            // asked for by launch or kernel
  uint32_t n_warps;                 // per block
  uint32_t n_threads;               // per block
  const char* params;               // copy of the parameter block
  uint32_t shared_bytes;            // static + dynamic, and the reserved region if the kernel uses it
  uint32_t reserved_offset;         // of that region
  uint32_t local_bytes;             // per thread
  AllocationMap* memory;
  char* workspace;                // cooperative grid barrier
  std::atomic<uint64_t> next{0};  // next block to hand out, in launch order
  std::atomic<bool> stop{false};  // fault or cancel
  const std::atomic<bool>* cancel;
  Progress* progress;
  uint64_t id;
  std::mutex fault_mutex;  // guards fault
  Fault fault;
  Standstill standstill;
};

struct Barrier {
  uint32_t expected = 0;    // threads, 0 = all of the block
  uint32_t arrived = 0;     // threads, whole warps count 32
  Mask lanes[kLanes] = {};  // arrived lanes by warp
  uint32_t red_count = 0;   // bar.red: threads whose predicate is true
  uint32_t red_total = 0;   // bar.red: threads that gave a predicate
};

struct Cluster;

struct Block {
  Grid* grid = nullptr;
  Worker* worker = nullptr;
  Cluster* cluster = nullptr;
  uint32_t rank = 0;              // in the cluster
  Mask cluster_arrived[32] = {};  // lanes at the cluster's barrier, by warp
  uint32_t id[3] = {};
  uint32_t ready = 0;  // warps that may have something to run
  uint32_t live_warps = 0;
  std::vector<Warp> warps;
  Buffer registers, shared, local, specials, uniforms;
  uint32_t barriers_used = 0;                  // those that are not as new
  std::vector<std::unique_ptr<Frame>> frames;  // pool
  std::vector<Frame*> free_frames;
  Barrier barriers[16];
  size_t register_stride = 0;
};

// Blocks that start together on one worker and may reach each other's shared memory; usually one.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;  // by rank
  bool arrivals = false;                       // some lane is at the cluster's barrier
};

struct Worker {
  MemoryView memory{};  // must be first: handlers see only this
  Grid* grid = nullptr;
  std::vector<std::unique_ptr<Cluster>> free_clusters;
  uint64_t warp_instructions = 0;
  CachedRange params_range{}, workspace_range{};
  // scratch for atomics and gathers
  Work published;          // what Progress has been told
  Audit* audit = nullptr;  // takes notes of the pass that runs, see standstill.h
};
static_assert(offsetof(Worker, memory) == 0);

Fault fault_at(const Warp& w, const Op* op, FaultKind kind, unsigned lane, uint64_t address,
               std::string text);
// Raises a fault: records it once per grid, stops the warp. Returns nullptr for handlers to return.
const Op* raise(Warp& w, const Op* op, FaultKind kind, unsigned lane, uint64_t address, std::string text);

// --- scheduling of groups within a warp (schedule.cc)
// ----------------------------------------------------------- All return what the handler returns.
const Op* go(Warp& w, const Op* from, const Op* target);  // uniform jump
const Op* split(Warp& w, const Op* from, const Op* target,
                Mask taken);  // lanes `taken` jump, the others fall through
void put_away(Warp& w, const Op* pc, Frame* frame, Mask mask, GroupState state, uint8_t barrier = 0);
const Op* start_ready(Warp& w);           // select a group; null if none (w.stop set)
void count_issue(Warp& w, const Op* op);  // ends a straight-line segment at op (inclusive)
void begin_segment(Warp& w, const Op* op);
void break_segment(Warp& w,
                   const Op* op);  // ends one before op and begins another: the lanes may change here
const Op* finish_lanes(Warp& w, const Op* op);  // exit of w.mask
const Op* enter_function(Warp& w, const Op* op, const Code* callee, const CallSite& site, Mask mask);
const Op* leave_function(Warp& w, const Op* op);
void wake_sync(Warp& w);                        // .sync groups look again
void check_barriers(Block& block);              // after lanes have exited
inline constexpr uint8_t kClusterBarrier = 16;  // Group::barrier of those that wait for the cluster

// Control handlers (control.cc); operands as the decoder fills them.
const Op* op_label(Warp&, const Op*);
const Op* op_branch(Warp&, const Op*);
const Op* op_branch_if(Warp&, const Op*);     // a: predicate, kNegate
const Op* op_branch_index(Warp&, const Op*);  // a: index, imm: table
const Op* op_exit(Warp&, const Op*);
const Op* op_return(Warp&, const Op*);
const Op* op_call(Warp&, const Op*);   // imm: call site
const Op* op_guard(Warp&, const Op*);  // a: predicate: narrows the mask
const Op* op_unguard(Warp&, const Op*);
const Op* op_trap(Warp&, const Op*);
const Op* op_nothing(Warp&, const Op*);
const Op* op_fence(Warp&, const Op*);
const Op* op_yield(Warp&, const Op*);  // nanosleep
const Op* op_bar(Warp&,
                 const Op*);  // sub: 0 sync 1 arrive 2 red.popc 3 red.and 4 red.or; a id, b count, c pred
const Op* op_cluster_barrier(Warp&, const Op*);  // sub: 0 arrive, 1 wait
const Op* op_local_address(Warp&, const Op*);    // d = frame's local base + imm
const Op* op_param_address(Warp&, const Op*);
const Op* op_clock(Warp&,
                   const Op*);  // sub: 0 clock 1 clock_hi 2 clock64 3 globaltimer 4 globaltimer_lo 5 _hi

// Warp-wide (warp_ops.cc). c: member mask.
const Op* op_shfl(Warp&, const Op*);   // d, d2 pred, a value, b lane, extra: clamp, member mask; sub: mode
const Op* op_vote(Warp&, const Op*);   // sub: 0 all 1 any 2 uni 3 ballot; a pred, b member mask
const Op* op_match(Warp&, const Op*);  // sub: 0 any 1 all; a value, b member mask; d2 pred
const Op* op_redux(Warp&, const Op*);  // sub: add min max and or xor; a value, b member mask
const Op* op_warp_barrier(Warp&, const Op*);  // a member mask
const Op* op_activemask(Warp&, const Op*);
const Op* op_elect(Warp&, const Op*);  // d | d2 pred, a member mask
// True if all live lanes of the member mask operand are here; else the group was parked and *next is to be
// returned.
bool gather_members(Warp& w, const Op* op, uint32_t member_operand, const Op** next);

// Memory (access.cc)
const Op* op_load_param(Warp&, const Op*);    // imm offset; d..., count
const Op* op_load_generic(Warp&, const Op*);  // target: the global handler, as a pointer
const Op* op_store_generic(Warp&, const Op*);
const Op* op_atomic(Warp&, const Op*);  // sub: Atomic; d old value, a address, b operand, c second (cas)
// extra: values, then results, `count` each
const Op* op_atomic_vector(Warp&, const Op*);
const Op* op_atomic128(Warp&, const Op*);
const Op* op_cvta(Warp&, const Op*);  // sub: 0 to generic, 1 from generic; space
const Op* op_isspacep(Warp&, const Op*);
const Op* op_cp_async(Warp&, const Op*);  // d shared address (as `b`), a global; imm, count bytes...
enum class Atomic : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExch, kCas, kInc, kDec };
const Op* op_map_shared(Warp&, const Op*);   // mapa: d, a address, b rank; type u32 or u64 (generic)
const Op* op_shared_rank(Warp&, const Op*);  // getctarank: d, a address; type of the address

// Asynchronous copies and their barriers (asynchronous.cc)
enum class Signal : uint8_t {
  kInit,
  kInvalidate,
  kArrive,
  kArriveDrop,
  kExpect,
  kComplete,
  kTest,
  kTestParity,
  kPendingCount
};
// sub: Signal; a address (pending_count: state), b count, transactions, state or parity; c: arrive: bytes to
// expect; d: state or predicate; imm; count: 1 plain, 2 may not complete the phase, 3 gives way if it fails
const Op* op_mbarrier(Warp&, const Op*);
// extra: to, from, bytes, barrier, mask of ranks (addresses in 64-bit registers; no operand where there is
// none); space: of `to` and the barrier, count: Space of `from`; sub: 0 copy, 1 + Atomic reduction of
// Op::type
const Op* op_bulk(Warp&, const Op*);
// extra: to, barrier, values...; count values of Op::type; sub as op_bulk
const Op* op_store_async(Warp&, const Op*);

// Windows of generic addresses: 17 of shared memory (the block's own, then by rank in the cluster), one
// local.
inline constexpr unsigned kMostClusterBlocks = 16;
uint64_t shared_window();
uint64_t local_window();
inline constexpr uint64_t kWindowBytes = uint64_t{1} << 24;
inline constexpr uint64_t kSharedBytes = (1 + kMostClusterBlocks) * kWindowBytes;
inline constexpr uint64_t kWindowsBytes = kSharedBytes + kWindowBytes;

// Builtins (builtins.cc)
const Op* call_builtin(Warp& w, const Op* op, const CallSite& site);

// mma family (matrix.cc)
const Op* op_ldmatrix(Warp&, const Op*);
const Op* op_stmatrix(Warp&, const Op*);
const Op* op_movmatrix(Warp&, const Op*);
const Op* op_mma(Warp&, const Op*);
const Op* op_wmma_load(Warp&, const Op*);
const Op* op_wmma_store(Warp&, const Op*);

// Warpgroups (wgmma.cc); c: all lanes
inline constexpr uint8_t kWarpgroupBarrier = 17;  // Group::barrier of those that wait for their warpgroup
// a: descriptor of A if it is in memory, b: of B, d2: predicate, the sums are added to; imm: MatrixInfo
const Op* op_warpgroup_mma(Warp&, const Op*);
const Op* op_warpgroup_point(Warp&, const Op*);  // fence, commit_group, wait_group

// Fast handlers of this machine, or null. isa: 512, 256, 128; 0 = best available (TESSERA_EXEC_ISA
// overrides).
Handler fast_handler(Operation operation, Ty type);
unsigned vector_bits();  // of them; 128 if there are none

Fault run_grid(const Kernel& kernel, AllocationMap& memory, const Launch& launch, unsigned threads,
               Work* work, Progress* progress, const std::atomic<bool>* cancel);

// Bytes of generic memory for a lane, whatever the space; null and a raised fault if not accessible.
char* reach(Warp& w, const Op* op, Space space, unsigned lane, uint64_t address, unsigned bytes, bool write,
            unsigned alignment);

}  // namespace tessera::softgpu::exec
