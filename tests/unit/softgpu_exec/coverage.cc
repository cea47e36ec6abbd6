#include "tests/unit/softgpu_exec/coverage.h"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <tuple>

#include "softgpu/exec/access.h"
#include "softgpu/exec/core.h"
#include "softgpu/exec/scalar.h"
#include "softgpu/exec/surface.h"
#include "softgpu/exec/tensor.h"

namespace tessera::softgpu::exec {
namespace {

constexpr const char* kOperationNames[] = {
#define TS_OPERATION(id) #id,
#include "softgpu/exec/operations.def"
};
constexpr const char* kTypeNames[] = {"u8",  "s8",    "u16",  "s16",    "u32", "s32", "u64",  "s64",
                                      "f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "tf32", "pred"};
static_assert(std::size(kTypeNames) == kTypes);

// One handler each, whatever the type. Sub-operations are rows of their own.
struct Single {
  const char* name;
  Handler handler;
  unsigned subs = 1;
};
#define TS_ROW(name) #name, name
constexpr Single kSingles[] = {
    {TS_ROW(op_branch)},
    {TS_ROW(op_branch_if)},
    {TS_ROW(op_branch_index)},
    {TS_ROW(op_exit)},
    {TS_ROW(op_return)},
    {TS_ROW(op_call)},
    {TS_ROW(op_guard)},
    {TS_ROW(op_trap)},
    {TS_ROW(op_nothing)},
    {TS_ROW(op_fence)},
    {TS_ROW(op_yield)},
    {TS_ROW(op_bar), 5},
    {TS_ROW(op_local_address)},
    {TS_ROW(op_clock), 6},
    {TS_ROW(op_shfl), 4},
    {TS_ROW(op_vote), 4},
    {TS_ROW(op_match), 2},
    {TS_ROW(op_redux), 6},
    {TS_ROW(op_warp_barrier)},
    {TS_ROW(op_activemask)},
    {TS_ROW(op_elect)},
    {TS_ROW(op_load_param)},
    {TS_ROW(op_load_generic)},
    {TS_ROW(op_store_generic)},
    {TS_ROW(op_atomic), 10},
    {TS_ROW(op_cvta), 2},
    {TS_ROW(op_isspacep)},
    {TS_ROW(op_cp_async)},
    {TS_ROW(op_ldmatrix), 2},
    {TS_ROW(op_stmatrix), 2},
    {TS_ROW(op_movmatrix)},
    {TS_ROW(op_mma)},
    {TS_ROW(op_wmma_load)},
    {TS_ROW(op_wmma_store)},
    {TS_ROW(op_warpgroup_mma)},
    {TS_ROW(op_warpgroup_point)},
    {TS_ROW(op_mbarrier), 9},
    {TS_ROW(op_bulk), 11},
    {TS_ROW(op_store_async), 2},
    {TS_ROW(op_tensor_copy), 13},
    {TS_ROW(op_tensor_replace), 11},
    {TS_ROW(op_tensor_map_copy)},
    {TS_ROW(op_map_shared)},
    {TS_ROW(op_shared_rank)},
    {TS_ROW(op_cluster_barrier), 2},
    {TS_ROW(op_atomic_vector), 3},
    {TS_ROW(op_atomic128)},
    {TS_ROW(op_surface)},
};

struct Seen {
  Handler handler;
  Ty type, type2;
  uint8_t sub;
  bool operator<(const Seen& o) const {
    return std::tuple(reinterpret_cast<uintptr_t>(handler), type, type2, sub) <
           std::tuple(reinterpret_cast<uintptr_t>(o.handler), o.type, o.type2, o.sub);
  }
};

class Coverage {
 public:
  Coverage() {
    if (const char* folder = std::getenv("TESSERA_EXEC_COVERAGE")) folder_ = folder;
  }
  ~Coverage() {
    if (!folder_.empty()) write();
  }
  void watch(const Kernel& kernel) {
    if (folder_.empty()) return;
    std::lock_guard lock(mutex_);
    for (const auto& code : kernel.codes)
      for (Op& op : code->ops)
        if (op.fn != mark) {
          originals_[&op] = op.fn;
          op.fn = mark;
        }
  }
  void note_form(const std::string& form, bool ran) {
    if (folder_.empty()) return;
    std::lock_guard lock(mutex_);
    bool& all = operand_forms_.try_emplace(form, true).first->second;
    all = all && ran;
  }

 private:
  static const Op* mark(Warp& w, const Op* op);

  // A handler that serves several types counts for those that it was run with.
  bool ran(Operation operation, Handler handler, Ty type) const {
    if (!handler) return false;
    bool shared = false;
    for (unsigned t = 0; t < kTypes; ++t)
      shared = shared ||
               (static_cast<Ty>(t) != type && (handler == scalar_handler(operation, static_cast<Ty>(t)) ||
                                               handler == fast_handler(operation, static_cast<Ty>(t))));
    for (const Seen& s : seen_)
      if (s.handler == handler && (!shared || s.type == type || s.type2 == type)) return true;
    return false;
  }
  // Table entries that no PTX instruction leads to: bit operations know widths only, arithmetic has no 8
  // bits, stores no signs; packed products and vector conversions are reached by one type or counted as cvt.
  static bool reachable(std::string_view name, std::string_view type) {
    const bool is_signed = type[0] == 's', memory = name.starts_with("ld") || name.starts_with("st");
    if (type.ends_with("8") && !memory) return false;
    if (name.starts_with("st") && is_signed) return false;
    if (name == "mov" || name == "selp")
      return !type.starts_with("f16") && !type.starts_with("bf") && type != "tf32";
    if (name == "neg" || name == "abs") return type[0] != 'u';
    for (const char* bits : {"and", "or", "xor", "not", "cnot", "shl", "clz", "popc", "brev", "bfi", "bmsk",
                             "fns", "prmt", "lop3", "shfleft", "shfright", "dp4a", "dp2a"})
      if (name == bits) return !is_signed;
    return true;
  }
  void write() const {
    std::ofstream out(folder_ + "/" + std::to_string(getpid()) + ".txt");
    const auto row = [&](const std::string& form, bool yes) { out << form << (yes ? " yes\n" : " no\n"); };
    for (const auto& [form, ran] : operand_forms_) row(form, ran);
    for (unsigned o = 0; o < kOperations; ++o) {
      std::string name = kOperationNames[o] + 1;
      if (name.starts_with("CvtFrom")) continue;
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      for (unsigned t = 0; t < kTypes; ++t) {
        const Operation operation = static_cast<Operation>(o);
        const Ty type = static_cast<Ty>(t);
        const Handler plain = scalar_handler(operation, type), fast = fast_handler(operation, type);
        if ((plain || fast) && reachable(name, kTypeNames[t]))
          row(name + "." + kTypeNames[t], ran(operation, plain, type) || ran(operation, fast, type));
      }
    }
    constexpr Ty kNumbers[] = {Ty::kU8,  Ty::kS8,  Ty::kU16, Ty::kS16,  Ty::kU32, Ty::kS32,
                               Ty::kU64, Ty::kS64, Ty::kF16, Ty::kBf16, Ty::kF32, Ty::kF64};
    for (Ty to : kNumbers)
      for (Ty from : kNumbers)
        row(std::string("cvt.") + kTypeNames[static_cast<unsigned>(to)] + "." +
                kTypeNames[static_cast<unsigned>(from)],
            converted(to, from));
    for (const Single& single : kSingles)
      for (unsigned sub = 0; sub < single.subs; ++sub) {
        // Bulk reductions are 1 + Atomic; exchange and compare-and-swap are none.
        if (single.handler == op_bulk && (sub == 7 || sub == 8)) continue;
        if (single.handler == op_tensor_copy && (sub == 9 || sub == 10)) continue;  // 3 + Atomic
        bool yes = false;
        for (const Seen& s : seen_)
          yes = yes || (single_of(s) == single.handler && (single.subs == 1 || s.sub == sub));
        row(single.name + (single.subs > 1 ? "." + std::to_string(sub) : std::string()), yes);
      }
  }
  // Conversions are known by their two types; a copy between integers of one width is a move.
  bool converted(Ty to, Ty from) const {
    for (const Seen& s : seen_)
      if (s.type == to && s.type2 == from && conversion(s)) return true;
    return false;
  }
  // Atomic operations of common types have handlers of their own.
  static Handler single_of(const Seen& s) {
    for (const Space space : {Space::kShared, Space::kGlobal})
      if (s.sub <= static_cast<uint8_t>(Atomic::kDec) &&
          s.handler == atomic_handler(space, s.type, static_cast<Atomic>(s.sub)))
        return op_atomic;
    return s.handler;
  }
  static bool conversion(const Seen& s) {
    if (s.handler == convert_any) return true;
    for (unsigned o = static_cast<unsigned>(Operation::kCvtFromU32); o < kOperations; ++o)
      if (s.handler == fast_handler(static_cast<Operation>(o), s.type)) return true;
    return s.type2 != Ty::kU32 && (s.handler == fast_handler(Operation::kMov, s.type) ||
                                   s.handler == scalar_handler(Operation::kMov, s.type));
  }

  std::string folder_;
  std::mutex mutex_;  // guards all below
  std::map<const Op*, Handler> originals_;
  std::set<Seen> seen_;
  std::map<std::string, bool> operand_forms_;  // true if each one that ptxas accepts ran
};

Coverage& coverage() {
  static Coverage c;
  return c;
}

const Op* Coverage::mark(Warp& w, const Op* op) {
  Handler handler;
  {
    Coverage& c = coverage();
    std::lock_guard lock(c.mutex_);
    handler = c.originals_.at(op);
    c.seen_.insert(Seen{handler, op->type, op->type2, op->sub});
    // Generic accesses and directed roundings end up in these handlers.
    if ((handler == op_load_generic || handler == op_store_generic || handler == op_rounded) && op->target)
      c.seen_.insert(
          Seen{reinterpret_cast<Handler>(const_cast<Op*>(op->target)), op->type, op->type2, op->sub});
  }
  return handler(w, op);
}

}  // namespace

void watch(const Kernel& kernel) {
  coverage().watch(kernel);
}
void note_form(const std::string& form, bool ran) {
  coverage().note_form(form, ran);
}

}  // namespace tessera::softgpu::exec
