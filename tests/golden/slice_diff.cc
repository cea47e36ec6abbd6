// Differential test of the slicing rewrite on the software GPU: a kernel run whole, and its variant run as
// boxes of a random plan in random block order; every byte of memory must be equal.
//   slice_diff --cases N --seed S [--min-accepted PERCENT]
//       random kernels; of a failing one seed, shape and module, made as small as it stays wrong
//   slice_diff --sibling ...
//       the variant in a module of its own, with the variables of the original's passed by address
//   slice_diff --look-back ...
//       blocks wait for lower ones; order dependence allowed
//   slice_diff --kernels FILE.ptx --expect N
//       kernels with known names (kNamed), N of them
//   slice_diff --self-test
//       named miscompilations, each must be caught
// Exit 0 only if all is equal (and the accepted share and each feature class are reached).
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "admission/slices.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/globals.h"
#include "kernels/slice/slice.h"
#include "random_kernel.h"
#include "softgpu/exec/exec.h"

namespace {

using namespace tessera;
using golden::Random;
using softgpu::exec::AllocationMap;
using softgpu::exec::Fault;
using softgpu::exec::FaultKind;
using softgpu::exec::Launch;
using softgpu::exec::Program;

// A device buffer that can be set back to what it held first.
class Buffer {
 public:
  Buffer(AllocationMap& memory, std::vector<uint32_t> content)
      : memory_(memory), initial_(std::move(content)) {
    words_ = static_cast<uint32_t*>(std::aligned_alloc(256, (initial_.size() * 4 + 255) / 256 * 256));
    memory_.add(address(), initial_.size() * 4, true);
    reset();
  }
  ~Buffer() {
    memory_.remove(address());
    std::free(words_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint64_t address() const { return reinterpret_cast<uint64_t>(words_); }
  void reset() { std::memcpy(words_, initial_.data(), initial_.size() * 4); }
  std::vector<uint32_t> content() const { return {words_, words_ + initial_.size()}; }

 private:
  AllocationMap& memory_;
  std::vector<uint32_t> initial_;
  uint32_t* words_;
};

// All memory after a run: buffers, then module variables by name.
using Image = std::vector<std::vector<uint32_t>>;

// Set by a timer: a kernel that lost a line may run for ever.
std::atomic<bool> g_cancel{false};
constexpr itimerval kPatience = {{0, 0}, {0, 300'000}}, kNoTimer = {};

constexpr itimerval kHangs = {{0, 0}, {5, 0}};  // a look-back that does not end

bool g_sibling = false;    // --sibling
bool g_look_back = false;  // --look-back

struct Case {
  std::string kernel;
  std::array<uint32_t, 3> grid, block;
  uint32_t dynamic_shared_bytes = 0;
  std::array<uint32_t, 3> cluster{};  // asked for at launch; zeros: what the kernel says
  std::vector<uint8_t> params;        // of the original
  std::vector<std::unique_ptr<Buffer>>* buffers;
};

// Faults that --self-test makes on purpose.
struct Sabotage {
  const char* name = "none";
  void (*module)(ptx::Module&) = nullptr;
  void (*box)(admission::Box&, slice::SliceOrigin&, const uint32_t grid[3]) = nullptr;
  void (*plan)(std::vector<admission::Box>&) = nullptr;
  unsigned origin_shift = 0;     // bytes
  bool splits_clusters = false;  // planned as if there were none
  bool loses_cluster = false;    // slices are launched without the program's shape
  bool look_back = false;        // wrong for kernels with a look-back only
};

Image snapshot(const Case& c, const Program& program) {
  Image image;
  for (const auto& b : *c.buffers) image.push_back(b->content());
  auto names = program.symbol_names();
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    Program::Symbol s;
    if (program.symbol(name, &s) && s.size_bytes) {
      auto& words = image.emplace_back((s.size_bytes + 3) / 4);
      std::memcpy(words.data(), reinterpret_cast<const void*>(s.address), s.size_bytes);
    }
  }
  return image;
}

std::string launch(Program& program, const std::string& name, const Case& c, std::array<uint32_t, 3> grid,
                   const std::vector<uint8_t>& params, uint64_t order) {
  const auto* kernel = program.kernel(name);
  if (!kernel) return "no kernel " + name;
  if (program.info(*kernel).param_bytes > params.size())
    return name + ": the parameter block is larger than reported";
  Launch l;
  l.grid = grid;
  l.block = c.block;
  l.dynamic_shared_bytes = c.dynamic_shared_bytes;
  l.cluster = c.cluster;
  l.params = params.data();
  l.block_order_seed = order;
  Fault fault = program.run(*kernel, l, 1, nullptr, nullptr, &g_cancel);
  return fault.kind == FaultKind::kNone ? "" : name + ": fault " + fault.text;
}

// Behind the origin, the addresses of what a sibling uses of the module that was loaded as `original`.
void add_globals(const slice::PassedGlobals& globals, const Program& original, std::vector<uint8_t>* params) {
  params->resize(params->size() + globals.offset + globals.passed.size() * 8);
  for (size_t n = 0; n < globals.passed.size(); ++n) {
    Program::Symbol s;
    if (original.symbol(globals.passed[n].name, &s) && s.size_bytes == globals.passed[n].bytes)
      std::memcpy(params->data() + globals.offset + n * 8, &s.address, 8);
  }
}

std::vector<uint8_t> with_origin(const Case& c, const slice::KernelReport& report,
                                 const slice::SliceOrigin& origin, unsigned shift) {
  std::vector<uint8_t> params = c.params;
  params.resize(report.origin_offset + sizeof origin + 64);
  std::memcpy(params.data() + report.origin_offset + shift, &origin, sizeof origin);
  return params;
}

// The shape of the clusters that the kernel is launched in; ones if there are none.
std::array<uint32_t, 3> cluster_of(const Program& program, const Case& c) {
  const auto* kernel = program.kernel(c.kernel);
  const auto required = kernel ? program.info(*kernel).required_cluster : c.cluster;
  const auto shape = c.cluster[0] ? c.cluster : required;
  return shape[0] ? shape : std::array<uint32_t, 3>{1, 1, 1};
}

// Ranges of whole clusters that cover the grid, as boxes of blocks.
std::vector<admission::Box> random_plan(Random& r, const std::array<uint32_t, 3>& blocks,
                                        const std::array<uint32_t, 3>& cluster) {
  const uint32_t grid[3] = {blocks[0] / cluster[0], blocks[1] / cluster[1], blocks[2] / cluster[2]};
  const uint64_t total = uint64_t{grid[0]} * grid[1] * grid[2];
  std::vector<admission::Box> plan;
  for (uint64_t at = 0; at < total;) {
    uint64_t n = 1 + r.below(static_cast<uint32_t>(std::min<uint64_t>(total, r.chance(50) ? 5 : total)));
    admission::Box b = admission::next_box(grid, at, {n});
    at += b.blocks();
    for (size_t axis = 0; axis < 3; ++axis) {
      b.origin[axis] *= cluster[axis];
      b.extent[axis] *= cluster[axis];
    }
    plan.push_back(b);
  }
  return plan;
}

// Equal words, but for those that differed before anything ran: addresses of functions in tables of pointers.
bool same(const Image before[2], const Image& a, const Image& b) {
  for (size_t n = 0; n < a.size(); ++n) {
    for (size_t k = 0; k < a[n].size(); ++k)
      if (a[n][k] != b[n][k] && before[0][n][k] == before[1][n][k]) return false;
  }
  return a.size() == b.size();
}

// "" if cut and uncut are equal; else what differs. With `sibling` the variant is in a module of its own and
// uses the variables of the original's.
std::string compare(const ptx::Module& original, const ptx::Module& sliced, const slice::KernelReport& report,
                    const Case& c, AllocationMap& memory, Random& r, const Sabotage& sabotage,
                    const slice::PassedGlobals* sibling = nullptr) {
  auto whole = Program::load(original, memory);
  auto cut = Program::load(sliced, memory);
  auto beside = Program::load(sibling ? original : sliced, memory);
  if (!whole.ok() || !cut.ok() || !beside.ok())
    return "cannot be loaded: " + (whole.ok() ? cut.error().text : whole.error().text);
  const Program& state = sibling ? **beside : **cut;
  for (auto& b : *c.buffers) b->reset();
  const Image before[2] = {snapshot(c, **whole), snapshot(c, state)};
  std::vector<uint8_t> params = c.params;
  params.resize(params.size() + 64);
  std::string problem = launch(**whole, c.kernel, c, c.grid, params, 0);
  if (!problem.empty()) return "uncut: " + problem;
  const Image expected = snapshot(c, **whole);
  for (auto& b : *c.buffers) b->reset();
  auto plan = random_plan(
      r, c.grid, sabotage.splits_clusters ? std::array<uint32_t, 3>{1, 1, 1} : cluster_of(**whole, c));
  Case as_slice = c;
  if (sabotage.loses_cluster) as_slice.cluster = {};
  if (sabotage.plan) sabotage.plan(plan);
  for (admission::Box box : plan) {
    slice::SliceOrigin origin;
    std::copy(box.origin, box.origin + 3, origin.origin);
    std::copy(c.grid.begin(), c.grid.end(), origin.grid);
    if (sabotage.box) sabotage.box(box, origin, c.grid.data());
    std::vector<uint8_t> with = with_origin(c, report, origin, sabotage.origin_shift);
    if (sibling) add_globals(*sibling, state, &with);
    problem = launch(**cut, c.kernel + slice::kVariantSuffix, as_slice,
                     {box.extent[0], box.extent[1], box.extent[2]}, with, r.below(4));
    if (!problem.empty()) return "cut: " + problem;
  }
  return same(before, expected, snapshot(c, state)) ? "" : "memory differs";
}

std::vector<uint32_t> pattern(uint32_t n, uint32_t salt) {
  std::vector<uint32_t> words(n);
  Random r{salt};
  for (uint32_t& w : words) w = r.below(1000);
  return words;
}

struct Result {
  bool accepted = false;
  std::string problem;
  golden::RandomKernel kernel;
};

bool look_back(const golden::RandomKernel& k) {
  return k.features >> golden::kLookBackX;
}

// Why cutting `k` is wrong; "" if it is not, or if it may not be cut (`accepted` says which).
std::string wrong(const golden::RandomKernel& k, uint64_t seed, const Sabotage& sabotage, bool* accepted) {
  *accepted = false;
  auto original = ptx::parse(k.text), sliced = ptx::parse(k.text);
  if (!original.ok()) return "does not parse: " + original.error().text;
  const slice::PassedGlobals globals = slice::passed_globals(*original, "k");
  std::vector<slice::KernelReport> reports;
  if (!g_sibling)
    reports = slice::add_variants(*sliced, {.allow_order_dependent = look_back(k), .verify_each_pass = true});
  else if (!globals.possible())
    return std::string("no sibling: ") + slice::obstacle_name(globals.obstacle) + " " + globals.detail;
  else
    reports.push_back(slice::make_sibling(*sliced, "k", globals, {.verify_each_pass = true}));
  if (reports.size() != 1 || reports[0].kernel != "k")
    return "no kernel k";  // lost while it was made smaller
  if (!reports[0].verdict.may_cut()) {
    const bool meant = k.features & (1u << golden::kRefusedOnPurpose);
    return meant ? "" : "refused: " + reports[0].verdict.detail;
  }
  *accepted = true;
  if (look_back(k) == reports[0].look_back.empty()) return "look-back: " + reports[0].look_back;
  if (sabotage.module) sabotage.module(*sliced);
  AllocationMap memory;
  std::vector<std::unique_ptr<Buffer>> buffers;
  buffers.push_back(std::make_unique<Buffer>(memory, pattern(golden::kInputWords, 1)));
  buffers.push_back(std::make_unique<Buffer>(memory, std::vector<uint32_t>(k.n_threads(), 0xdeadbeef)));
  std::vector<uint32_t> reductions = pattern(golden::kReductionWords, 2);
  reductions.resize(golden::kReductionWords + golden::kLookBackWords, 0);
  buffers.push_back(std::make_unique<Buffer>(memory, std::move(reductions)));
  Case c{"k", k.grid, k.block, 0, k.cluster, std::vector<uint8_t>(24), &buffers};
  for (size_t n = 0; n < 3; ++n) {
    uint64_t address = buffers[n]->address();
    std::memcpy(c.params.data() + n * 8, &address, 8);
  }
  Random r{seed ^ 0x5eed};
  return compare(*original, *sliced, reports[0], c, memory, r, sabotage, g_sibling ? &globals : nullptr);
}

Result run_random(uint64_t seed, const Sabotage& sabotage) {
  Result result;
  result.kernel = golden::random_kernel(seed, g_look_back || sabotage.look_back);
  if (look_back(result.kernel)) setitimer(ITIMER_REAL, sabotage.look_back ? &kPatience : &kHangs, nullptr);
  result.problem = wrong(result.kernel, seed, sabotage, &result.accepted);
  setitimer(ITIMER_REAL, &kNoTimer, nullptr);
  if (g_cancel.exchange(false)) result.problem = "does not end: " + result.problem;
  return result;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    lines.push_back(text.substr(at, end - at));
    at = end;
  }
  return lines;
}

// A failing kernel made smaller for as long as it stays wrong for the same reason: fewer blocks and threads,
// then fewer lines (halves, quarters, ... single ones).
golden::RandomKernel minimise(golden::RandomKernel k, uint64_t seed, const Sabotage& sabotage,
                              const std::string& problem) {
  const std::string kind = problem.substr(0, 8);
  const auto still_wrong = [&](const golden::RandomKernel& smaller) {
    bool accepted = false;
    for (int again = 0; again < 2; ++again) {  // what depends on chance is no smaller case of this
      g_cancel = false;
      setitimer(ITIMER_REAL, &kPatience, nullptr);
      const bool same_kind = wrong(smaller, seed, sabotage, &accepted).substr(0, 8) == kind;
      setitimer(ITIMER_REAL, &kNoTimer, nullptr);
      if (!same_kind || g_cancel.exchange(false)) return false;
    }
    return true;
  };
  for (auto shape : {&golden::RandomKernel::grid, &golden::RandomKernel::block})
    for (size_t axis = 0; axis < 3; ++axis)
      for (golden::RandomKernel smaller = k; (smaller.*shape)[axis] > 1; k = smaller) {
        (smaller.*shape)[axis] /= 2;
        if (!still_wrong(smaller)) break;
      }
  std::vector<std::string> lines = lines_of(k.text);
  for (size_t chunk = lines.size() / 2; chunk > 0; chunk /= 2)
    for (size_t at = 0; at + chunk <= lines.size();) {
      golden::RandomKernel smaller = k;
      smaller.text.clear();
      for (size_t i = 0; i < lines.size(); ++i)
        if (i < at || i >= at + chunk) smaller.text += lines[i];
      if (!still_wrong(smaller)) {
        at += chunk;
        continue;
      }
      k = smaller;
      lines.erase(lines.begin() + long(at), lines.begin() + long(at + chunk));
    }
  return k;
}

void print_failure(uint64_t seed, const std::string& problem, const golden::RandomKernel& k) {
  const golden::RandomKernel small = minimise(k, seed, {}, problem);
  std::printf("seed %lu: %s\ngrid %u %u %u, block %u %u %u, from %zu lines to %zu:\n\n%s",
              static_cast<unsigned long>(seed), problem.c_str(), small.grid[0], small.grid[1], small.grid[2],
              small.block[0], small.block[1], small.block[2], lines_of(k.text).size(),
              lines_of(small.text).size(), small.text.c_str());
}

int run_cases(uint64_t n, uint64_t seed, uint64_t min_accepted_percent) {
  uint64_t accepted = 0, by_feature[golden::kFeatureCount] = {}, meant = 0;
  for (uint64_t i = 0; i < n; ++i) {
    Result r = run_random(seed + i, {});
    if (!r.problem.empty()) {
      print_failure(seed + i, r.problem, r.kernel);
      return 1;
    }
    accepted += r.accepted;
    meant += (r.kernel.features >> golden::kRefusedOnPurpose) & 1;
    for (uint32_t f = 0; r.accepted && f < golden::kFeatureCount; ++f)
      by_feature[f] += (r.kernel.features >> f) & 1;
  }
  std::printf("%lu kernels, %lu accepted (%.1f %%), %lu refused as meant, all equal\n",
              static_cast<unsigned long>(n), static_cast<unsigned long>(accepted),
              100.0 * static_cast<double>(accepted) / static_cast<double>(n),
              static_cast<unsigned long>(meant));
  bool good = accepted * 100 >= n * min_accepted_percent;
  for (uint32_t f = 0; f < golden::kFeatureCount; ++f) {
    const bool only_without =
        f >= golden::kMultiDimensional && f <= golden::kClusterMemory && f != golden::kEdgeSize;
    if (g_look_back ? only_without || f == golden::kRefusedOnPurpose : f >= golden::kRefusedOnPurpose)
      continue;
    std::printf("  %-18s %lu\n", golden::kFeatureNames[f], static_cast<unsigned long>(by_feature[f]));
    good &= by_feature[f] > 0;
  }
  if (!good) std::printf("too few accepted, or a feature that no accepted kernel has\n");
  return good ? 0 : 1;
}

// --- named kernels -----------------------------------------------------------------------------------------

struct Named {
  const char* name;
  std::array<uint32_t, 3> grid, block;
  uint32_t dynamic_shared_bytes;
};
// Those of kernels.cu whose blocks do not race with each other on these shapes, and those of
// golden/ptx/tally.ptx and s8_cluster.ptx.
constexpr Named kNamed[] = {
    {"accepted_add", {37, 1, 1}, {64, 1, 1}, 0},
    {"accepted_block_sum", {5, 4, 1}, {256, 1, 1}, 16},
    {"accepted_callees", {33, 1, 1}, {1, 1, 1}, 0},
    {"accepted_printf", {9, 2, 2}, {32, 1, 1}, 0},
    {"accepted_count", {11, 3, 2}, {33, 1, 1}, 0},
    {"accepted_global", {50, 1, 1}, {1, 1, 1}, 0},
    {"accepted_switch", {40, 1, 1}, {1, 1, 1}, 0},
    {"accepted_wmma", {6, 1, 1}, {32, 1, 1}, 0},
    {"accepted_tally_callee_coordinates", {61, 1, 1}, {64, 1, 1}, 0},
    {"accepted_tally_predicated_return", {61, 1, 1}, {64, 1, 1}, 0},
    {"accepted_tally_barrier_forms", {61, 1, 1}, {64, 1, 1}, 0},
    {"accepted_tally_named_barriers", {61, 1, 1}, {64, 1, 1}, 0},
    {"accepted_tally_leading_tabs", {61, 1, 1}, {64, 1, 1}, 0},
    {"accepted_tally_cluster", {62, 1, 1}, {64, 1, 1}, 0},
    {"accepted_async_exchange", {10, 6, 1}, {32, 1, 1}, 0},
    {"accepted_multicast_exchange", {26, 1, 1}, {32, 1, 1}, 0},
};

// `wanted`: how many of kNamed the file holds.
int run_named(const char* path, size_t wanted) {
  std::string text;
  FILE* f = std::fopen(path, "rb");
  if (!f) {
    std::fprintf(stderr, "%s: cannot be read\n", path);
    return 2;
  }
  char chunk[65536];
  for (size_t n; (n = std::fread(chunk, 1, sizeof chunk, f)) > 0;) text.append(chunk, n);
  std::fclose(f);
  auto original = ptx::parse(text), sliced = ptx::parse(text);
  if (!original.ok()) {
    std::fprintf(stderr, "%s:%s\n", path, original.error().text.c_str());
    return 1;
  }
  auto reports = slice::add_variants(*sliced, {.verify_each_pass = true});
  int worst = 0;
  size_t n_run = 0;
  for (const Named& named : kNamed) {
    auto report =
        std::find_if(reports.begin(), reports.end(), [&](const auto& r) { return r.kernel == named.name; });
    if (report == reports.end()) continue;  // of another file
    ++n_run;
    if (!report->verdict.may_cut()) {
      std::printf("%s: refused\n", named.name);
      return 1;
    }
    AllocationMap memory;
    std::vector<std::unique_ptr<Buffer>> buffers;
    Case c{named.name, named.grid, named.block, named.dynamic_shared_bytes, {}, {}, &buffers};
    for (const ptx::Variable& v : original->find(named.name)->params) {
      uint64_t value = v.size_bytes() == 4 ? 2000 : 0;
      if (v.size_bytes() == 8) {
        buffers.push_back(
            std::make_unique<Buffer>(memory, pattern(16384, static_cast<uint32_t>(buffers.size()))));
        value = buffers.back()->address();
      }
      c.params.resize((c.params.size() + v.size_bytes() - 1) / v.size_bytes() * v.size_bytes());
      const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
      c.params.insert(c.params.end(), bytes, bytes + v.size_bytes());
    }
    for (uint64_t trial = 0; trial < 20; ++trial) {
      Random r{trial};
      std::string problem = compare(*original, *sliced, *report, c, memory, r, {});
      if (!problem.empty()) {
        std::printf("%s: %s\n", named.name, problem.c_str());
        worst = 1;
        break;
      }
    }
  }
  std::printf("%zu kernels, 20 plans each\n", n_run);
  return n_run == wanted ? worst : 1;
}

// --- miscompilations on purpose ----------------------------------------------------------------------------

void each(std::vector<ptx::Statement>& list, const std::function<void(ptx::Instruction&)>& f) {
  for (ptx::Statement& s : list) {
    if (s.kind == ptx::Statement::Kind::kInstruction) f(s.instruction);
    if (s.kind == ptx::Statement::Kind::kScope) each(s.scope.edit(), f);
  }
}
void each_added(ptx::Module& m, bool entries, bool functions,
                const std::function<void(ptx::Instruction&)>& f) {
  for (ptx::Item& item : m.items)
    if (item.kind == ptx::Item::Kind::kFunction && item.function->name.ends_with(slice::kVariantSuffix) &&
        (item.function->is_entry ? entries : functions))
      each(item.function->body, f);
}
template <char axis>
void drop_offset(ptx::Module& m) {
  static const std::string base = std::string("%tessera_base_") + axis;
  each_added(m, true, false, [](ptx::Instruction& i) {
    if (i.opcode == "add" && i.operands[1].name == base) {
      i.operands[1] = i.operands[2];
      i.operands[1].kind = ptx::Operand::Kind::kInteger;
      i.operands[1].bits = 0;
      i.operands[1].name = {};
    }
  });
}
template <char axis>
void launched_grid(ptx::Module& m) {  // %nctaid of the box instead of the original
  static const std::string name = std::string("%tessera_nctaid_") + axis, suffix = std::string(".") + axis;
  each_added(m, true, false, [](ptx::Instruction& i) {
    if (i.opcode == "ld" && i.operands[0].name == name) {
      i.opcode = "mov";
      i.modifiers = {"u32"};
      i.operands[1].kind = ptx::Operand::Kind::kSpecial;
      i.operands[1].name = "%nctaid";
      i.operands[1].suffix = ptx::Name(suffix);
    }
  });
}
void miss_callee(ptx::Module& m) {
  each_added(m, true, true, [](ptx::Instruction& i) {
    for (size_t n = 0; i.opcode == "call" && n + 1 < i.operands.size(); ++n) {
      if (i.operands[n].kind == ptx::Operand::Kind::kSymbol &&
          i.operands[n].name.ends_with(slice::kVariantSuffix)) {
        i.operands[n].name.remove_suffix(std::strlen(slice::kVariantSuffix));
        i.operands[n + 1].children.pop_back();
      }
    }
  });
}
void swap_handed_on(ptx::Module& m) {
  each_added(m, true, true, [](ptx::Instruction& i) {
    if (i.opcode == "st" && i.operands[0].name == "tessera_handed_on" && i.operands[0].bits < 8)
      i.operands[0].bits = 4 - i.operands[0].bits;
  });
}
void callee_sees_box(ptx::Module& m) {
  each_added(m, false, true, [](ptx::Instruction& i) {
    if (i.opcode == "ld" && i.operands[0].name == "%tessera_ctaid_x") {
      i.opcode = "mov";
      i.modifiers = {"u32"};
      i.operands[1].kind = ptx::Operand::Kind::kSpecial;
      i.operands[1].name = "%ctaid";
      i.operands[1].suffix = ".x";
    }
  });
}
// The number of the cluster, or of clusters, in the box.
void launched_clusters(ptx::Module& m, ptx::Name special) {
  static constexpr ptx::Name kSuffixes[] = {".x", ".y", ".z"};
  each_added(m, true, true, [special](ptx::Instruction& i) {
    const ptx::Name name = i.operands.empty() ? ptx::Name() : i.operands[0].name;
    if (i.opcode == "div" && name.starts_with("%tessera_" + std::string(special.substr(1)) + "_")) {
      i.opcode = "mov";
      i.operands.pop_back();
      i.operands[1].kind = ptx::Operand::Kind::kSpecial;
      i.operands[1].name = special;
      i.operands[1].suffix = kSuffixes[name.back() - 'x'];
    }
  });
}
void lose_predicate(ptx::Module& m) {
  each_added(m, true, true, [](ptx::Instruction& i) {
    if (i.opcode == "mov" && i.operands.size() == 2 && i.operands[1].name.starts_with("%tessera_"))
      i.guard = {};
  });
}
void negate_predicate(ptx::Module& m) {
  each_added(m, true, true, [](ptx::Instruction& i) {
    if (i.opcode == "mov" && !i.guard.empty()) i.guard_negated = !i.guard_negated;
  });
}
void lose_barrier(ptx::Module& m) {
  each_added(m, true, false, [](ptx::Instruction& i) {
    if (i.opcode == "bar") {
      i.opcode = "membar";
      i.modifiers = {"cta"};
      i.operands.clear();
    }
  });
}

constexpr Sabotage kSabotages[] = {
    {"dropped_offset_x", drop_offset<'x'>},
    {"dropped_offset_y", drop_offset<'y'>},
    {"dropped_offset_z", drop_offset<'z'>},
    {"box_nctaid_x", launched_grid<'x'>},
    {"box_nctaid_y", launched_grid<'y'>},
    {"box_nctaid_z", launched_grid<'z'>},
    {"missed_callee", miss_callee},
    {"callee_sees_box", callee_sees_box},
    {"swapped_handed_on", swap_handed_on},
    {"lost_predicate", lose_predicate},
    {"negated_predicate", negate_predicate},
    {"lost_barrier", lose_barrier},
    {"edge_clip", nullptr, [](admission::Box& b, slice::SliceOrigin&, const uint32_t*) { b.extent[0] += 1; }},
    {"short_row", nullptr,
     [](admission::Box& b, slice::SliceOrigin&, const uint32_t*) { b.extent[0] -= b.extent[0] > 1; }},
    {"swapped_origin_yz", nullptr,
     [](admission::Box&, slice::SliceOrigin& o, const uint32_t*) { std::swap(o.origin[1], o.origin[2]); }},
    {"swapped_grid_xy", nullptr,
     [](admission::Box&, slice::SliceOrigin& o, const uint32_t*) { std::swap(o.grid[0], o.grid[1]); }},
    {"origin_off_by_one", nullptr,
     [](admission::Box&, slice::SliceOrigin& o, const uint32_t*) { o.origin[0] += 1; }},
    {"lost_slice", nullptr, nullptr, [](std::vector<admission::Box>& p) { p.pop_back(); }},
    {"doubled_slice", nullptr, nullptr, [](std::vector<admission::Box>& p) { p.push_back(p.front()); }},
    {"shifted_parameter", nullptr, nullptr, nullptr, 4},
    {"box_clusterid", [](ptx::Module& m) { launched_clusters(m, "%clusterid"); }},
    {"box_nclusterid", [](ptx::Module& m) { launched_clusters(m, "%nclusterid"); }},
    {"split_clusters", nullptr, nullptr, nullptr, 0, true},
    {"lost_cluster_shape", nullptr, nullptr, nullptr, 0, false, true},
    {"descending_slices", nullptr, nullptr,
     [](std::vector<admission::Box>& p) { std::reverse(p.begin(), p.end()); }, 0, false, false, true},
};

int self_test(uint64_t n, uint64_t seed) {
  int missed = 0;
  for (const Sabotage& sabotage : kSabotages) {
    uint64_t caught_at = UINT64_MAX;
    std::string how;
    Result caught;
    for (uint64_t i = 0; i < n && caught_at == UINT64_MAX; ++i) {
      Result r = run_random(seed + i, sabotage);
      if (r.accepted && !r.problem.empty()) {
        caught_at = i;
        how = r.problem.substr(0, 60);
        caught = std::move(r);
      }
    }
    missed += caught_at == UINT64_MAX;
    if (caught_at == UINT64_MAX) {
      std::printf("%-20s MISSED in %lu kernels\n", sabotage.name, static_cast<unsigned long>(n));
    } else {
      std::printf("%-20s caught by kernel %lu: %s\n", sabotage.name, static_cast<unsigned long>(caught_at),
                  how.c_str());
      if (&sabotage == &kSabotages[0]) {
        const size_t before = lines_of(caught.kernel.text).size();
        const auto small = minimise(caught.kernel, seed + caught_at, sabotage, caught.problem);
        const size_t after = lines_of(small.text).size();
        std::printf("%-20s made smaller, %zu lines to %zu\n", sabotage.name, before, after);
        missed += after * 2 > before;
      }
    }
  }
  std::printf("%zu miscompilations, %d missed\n", std::size(kSabotages), missed);
  return missed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGALRM, [](int) { g_cancel = true; });
  uint64_t cases = 500, seed = 1, min_accepted = 60, wanted = 0;
  bool self = false;
  const char* kernels = nullptr;
  for (int i = 1; i < argc; ++i) {
    std::string a = argv[i];
    if (a == "--self-test") {
      self = true;
    } else if (a == "--sibling") {
      g_sibling = true;
    } else if (a == "--look-back") {
      g_look_back = true;
    } else if (a == "--kernels" && i + 1 < argc) {
      kernels = argv[++i];
    } else if (a == "--expect" && i + 1 < argc) {
      wanted = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--cases" && i + 1 < argc) {
      cases = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (a == "--min-accepted" && i + 1 < argc) {
      min_accepted = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(
          stderr,
          "usage: slice_diff [--sibling | --look-back] [--cases N] [--seed S] [--min-accepted PERCENT] | "
          "--kernels FILE --expect N | "
          "--self-test\n");
      return 2;
    }
  }
  return self      ? self_test(cases, seed)
         : kernels ? run_named(kernels, wanted)
                   : run_cases(cases, seed, min_accepted);
}
