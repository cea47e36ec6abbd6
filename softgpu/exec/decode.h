// PTX function -> Code. One Decoder per function and kernel; throws nothing, the first refusal ends it, and
// with it the kernel.
// Called by Program::load only, single-threaded.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/ptx/ir.h"
#include "softgpu/exec/core.h"
#include "softgpu/exec/modifiers.h"

namespace tessera::softgpu::exec {

// Addresses that do not depend on the kernel; filled by Program.
struct ModuleSymbols {
  const ptx::Module* module = nullptr;
  std::unordered_map<std::string_view, uint64_t> data;                // globals and consts
  std::unordered_map<std::string_view, uint64_t> constant_bytes;      // sizes of those in constant memory
  std::unordered_map<std::string_view, uint64_t> functions;           // addresses of .func
  std::unordered_map<std::string_view, const ptx::Variable*> shared;  // module-scope .shared
};

// Layout shared by the functions of one kernel.
struct KernelLayout {
  const ModuleSymbols* symbols = nullptr;
  uint32_t static_shared_bytes = 0;
  std::map<std::string, uint32_t>
      shared_offsets;                    // module scope names and function-scope names with their function
  std::set<std::string_view> constants;  // variables in constant memory that the kernel names
  bool has_dynamic = false;
  bool reserves_shared = false;  // names %reserved_smem_offset_*
  uint32_t dynamic_align = 16;
  std::vector<std::string> callees;  // by name, in order of discovery
  bool indirect = false;
};

// Operands before registers are allocated; see Decoder.
struct Label {
  uint32_t op = ~0u;
};

// Takes the name of an atomic operation from the modifiers; false if there is none.
bool atomic_named(Modifiers& m, Atomic* how);

class Decoder {
 public:
  Decoder(const ptx::Function& function, KernelLayout& layout, KernelInfo* entry_info, Code& code);
  // False after a refusal; error() says what and where.
  bool run();
  const std::string& error() const { return error_; }

 private:
  using Method = bool (Decoder::*)(const ptx::Instruction&);
  struct Entry {  // a row of instructions.def
    const char* opcode;
    Operation operation;
    Method method;
    bool schedules;
    uint32_t float_operations;
  };
  static const std::unordered_map<std::string_view, const Entry*>& rows();

  // --- names
  struct Register {
    uint32_t index;
    uint8_t width;
    Ty type;
    uint8_t vector;
  };
  struct Range {
    uint32_t first, count;
    uint8_t width;
    Ty type;
  };
  enum class Where : uint8_t { kLocal, kEntryParam, kShared, kDynamicShared, kConstant };
  struct Object {
    Where where;
    uint64_t value;
    uint32_t bytes;
  };
  struct Scope {
    std::unordered_map<std::string_view, Register> registers;
    std::unordered_map<std::string_view, Range> ranges;
    std::unordered_map<std::string_view, Object> objects;
    std::unordered_map<std::string_view, uint32_t> labels;
    std::unordered_map<std::string_view, std::vector<ptx::Name>> targets;
  };
  bool find_register(ptx::Name name, Register* r) const;
  bool find_element(const ptx::Operand& o, Register* r) const;
  bool find_object(ptx::Name name, Object* o);
  bool find_label(ptx::Name name, uint32_t* label) const;
  uint32_t local_object(const ptx::Variable& v);
  void declare(const ptx::Variable& v);
  bool statements(const std::vector<ptx::Statement>& list);
  bool instruction(const ptx::Instruction& i);

  // --- operands; each returns the tagged operand or reports
  static constexpr uint32_t kNone = kNoOperand;
  uint32_t new_register(unsigned width);
  void count_definitions(const std::vector<ptx::Statement>& list);
  bool rename(const ptx::Operand& to, Ty type, uint32_t operand);
  uint32_t source(uint32_t index);
  static constexpr uint32_t kRead = kNoOperand;  // in renamed_
  bool was_read(uint32_t index) const { return index < renamed_.size() && renamed_[index] == kRead; }
  bool rename_parameters(const std::vector<const ptx::Operand*>& parts, Ty type, uint32_t offset);
  uint32_t constant(unsigned width, uint64_t bits);
  uint32_t prepared_source(Operation operation, Ty type, uint32_t index);
  uint32_t use(const ptx::Operand& o, Ty type);
  uint32_t use_predicate(const ptx::Operand& o, bool* negated);
  uint32_t def(const ptx::Operand& o, Ty type);
  uint32_t special(const ptx::Operand& o, Ty type);
  bool address(const ptx::Operand& o, Op* op, Space* space);
  void vector_elements(const ptx::Operand& o, std::vector<const ptx::Operand*>* list);
  uint64_t immediate(const ptx::Operand& o, Ty type);

  // --- emission
  // Appends an op; operands are filled by the caller (or come with `prepared`), then finish().
  Op& start(Handler fn, bool real = true, const Op& prepared = Op{});
  // Appends a vector load or store with its (up to eight) data registers.
  void access(Handler fn, const Op& prepared, const std::vector<uint32_t>& data, Ty type, const Modifiers& m,
              Space space);
  void finish();  // records uses and defs, appends pending conversions
  bool simple(const ptx::Instruction& i, Operation operation, Ty type, unsigned sources, unsigned flags = 0,
              unsigned sub = 0);
  Handler pick(Operation operation, Ty type, bool fast_allowed = true);
  struct Chosen {
    Handler fn, directed;  // directed: not null where fn runs it under another rounding mode
  };
  Chosen choose(Operation operation, Ty type, unsigned flags, unsigned sub);
  uint32_t new_label() {
    labels_.push_back({});
    return static_cast<uint32_t>(labels_.size() - 1);
  }
  void place(uint32_t label);
  void branch_to(uint32_t label);                                    // last op's target
  void count_arithmetic(const ptx::Instruction& i, uint32_t issue);  // it was decoded to this issue slot
  bool refuse(const ptx::Instruction& i, const std::string& why);
  bool leftover(const ptx::Instruction& i, const Modifiers& m);
  bool need(const ptx::Instruction& i, size_t at_least, size_t at_most);

  // --- opcodes
#define TS_DECODE(name) bool name(const ptx::Instruction& i)
  TS_DECODE(d_mov);
  TS_DECODE(d_arith);
  TS_DECODE(d_mul);
  TS_DECODE(d_mad);
  TS_DECODE(d_fma);
  TS_DECODE(d_div);
  TS_DECODE(d_unary);
  TS_DECODE(d_bits);
  TS_DECODE(d_shift);
  TS_DECODE(d_setp);
  TS_DECODE(d_set);
  TS_DECODE(d_selp);
  TS_DECODE(d_slct);
  TS_DECODE(d_cvt);
  TS_DECODE(d_cvta);
  TS_DECODE(d_isspacep);
  TS_DECODE(d_approx);
  TS_DECODE(d_special_bits);
  TS_DECODE(d_carry);
  TS_DECODE(d_dp);
  TS_DECODE(d_minmax);
  TS_DECODE(d_testp);
  TS_DECODE(d_copysign);
  TS_DECODE(d_ld);
  TS_DECODE(d_st);
  TS_DECODE(d_atom);
  TS_DECODE(d_nothing);
  TS_DECODE(d_cp);
  TS_DECODE(d_bra);
  TS_DECODE(d_brx);
  TS_DECODE(d_ret);
  TS_DECODE(d_exit);
  TS_DECODE(d_call);
  TS_DECODE(d_trap);
  TS_DECODE(d_bar);
  TS_DECODE(d_nanosleep);
  TS_DECODE(d_shfl);
  TS_DECODE(d_vote);
  TS_DECODE(d_match);
  TS_DECODE(d_redux);
  TS_DECODE(d_activemask);
  TS_DECODE(d_elect);
  TS_DECODE(d_ldmatrix);
  TS_DECODE(d_mma);
  TS_DECODE(d_wmma);
  TS_DECODE(d_wgmma);
  TS_DECODE(d_movmatrix);
  TS_DECODE(d_mbarrier);
  TS_DECODE(d_tensormap);
  TS_DECODE(d_vabsdiff);
  TS_DECODE(d_cluster_address);
  TS_DECODE(d_surface);
#undef TS_DECODE

  uint32_t whole_address(const ptx::Operand& o, Space* space);
  bool small_copy(const ptx::Instruction& i, const Modifiers& m);
  bool bulk_copy(const ptx::Instruction& i, Modifiers& m, bool reduces);
  bool store_async(const ptx::Instruction& i, Modifiers& m);
  bool tensor_copy(const ptx::Instruction& i, Modifiers& m, bool reduces);
  bool tensor_operand(const ptx::Operand& o, unsigned rank, uint32_t* map, uint32_t* coordinates);
  bool wide_move(const ptx::Instruction& i);
  struct Comparison {
    Compare compare;
    Ty result, type;  // the first of the types, and what is compared
    uint32_t a, b, c = kNone;
    uint16_t flags;
  };
  bool comparison(const ptx::Instruction& i, size_t n_types, Comparison* out);
  Op* start_comparison(const ptx::Instruction& i, Handler handler, const Comparison& x);
  bool float_pairs(const ptx::Instruction& i, Operation operation, const Modifiers& m);
  bool surface_operands(const ptx::Operand& o, int geometry, std::vector<uint32_t>* list);
  bool halves(const ptx::Operand& o, std::vector<uint32_t>* list);
  bool wide_atomic(const ptx::Instruction& i, const Modifiers& m, Atomic how);
  bool fragment(const ptx::Operand& o, Ty type, bool is_def, uint32_t* first, uint8_t* n);
  bool finish_mma(const ptx::Instruction& i, MatrixInfo& info);
  void fuse();      // addresses that an access can compute itself (fuse.cc)
  bool allocate();  // registers, targets, final code (allocate.cc)

  const ptx::Function& function_;
  KernelLayout& layout_;
  KernelInfo* info_;  // null for .func
  Code& code_;
  std::string error_;
  std::vector<Scope> scopes_;
  std::vector<uint8_t> widths_;  // of each virtual register: 0 predicate, 4, 8
  std::map<std::pair<unsigned, uint64_t>, uint32_t> constants_;
  std::string constant_bytes_;
  std::unordered_map<std::string_view, uint32_t>
      definitions_;  // by register name, at least as many as there are
  std::vector<uint32_t>
      renamed_;  // by register: the constant or uniform operand that it stands for; kRead; 0
  struct Refs {
    uint32_t begin;
    uint16_t defs, uses;
    bool partial;
  };
  std::vector<Refs> refs_;          // per op, into ref_list_
  std::vector<bool> opens_;         // per op: first of a straight-line segment
  std::vector<uint32_t> indexed_;   // ops whose `extra` is an operand: kLdIndexed, kStIndexed
  std::vector<uint32_t> ref_list_;  // virtual registers: defs, then uses
  std::vector<uint32_t> pending_defs_, pending_uses_;
  struct After {
    uint32_t to, from;
    bool is_signed;
  };
  std::vector<After> after_;  // widenings to append behind the op
  std::vector<Label> labels_;
  std::vector<std::pair<uint32_t, uint32_t>> branches_;  // op index -> label
  std::vector<std::vector<uint32_t>> table_labels_;
  std::deque<ptx::Operand> elements_;                 // of vector registers that an instruction names whole
  std::vector<std::pair<uint32_t, uint32_t>> skips_;  // guard op -> op index to continue at
  uint32_t issue_ = 0;
  const Entry* row_ = nullptr;  // of the instruction that is decoded
  uint32_t line_ = 0;
  bool guarded_ = false;
  bool segment_open_ = true;  // the next op is not the first of a straight-line segment
  uint8_t next_cache_ = 0;
  uint32_t local_bytes_ = 0;
};

}  // namespace tessera::softgpu::exec
