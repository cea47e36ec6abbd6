#include "tests/device/prologue/proof.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/image/code.h"
#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
#include "kernels/sass/program.h"
#include "tests/device/prologue/code.h"

namespace tessera::image {
namespace {

base::Status same(bool holds, const char* what) {
  return holds ? base::ok() : base::Status(refused(std::string(what) + " differs"));
}

const CubinKernel* find(const std::vector<CubinKernel>& kernels, std::string_view name) {
  const auto found =
      std::find_if(kernels.begin(), kernels.end(), [&](const CubinKernel& k) { return k.name == name; });
  return found == kernels.end() ? nullptr : &*found;
}

// The kernel and the prologue's two parameters.
base::Status same_kernel(const CubinKernel& a, const CubinKernel& b, const Prologue& prologue) {
  bool parameters = b.parameters.size() == a.parameters.size() + 2 &&
                    b.param_bytes == range_offset(a.param_bytes) + kRangeBytes;
  for (size_t i = 0; parameters && i < b.parameters.size(); ++i) {
    const uint32_t word = uint32_t(i - a.parameters.size());
    const CubinParameter expected =
        i < a.parameters.size()
            ? a.parameters[i]
            : CubinParameter{uint32_t(i), range_offset(a.param_bytes) + 4 * word, sizeof(uint32_t)};
    const CubinParameter& p = b.parameters[i];
    parameters = p.index == expected.index && p.offset == expected.offset && p.bytes == expected.bytes;
  }
  if (base::Status s = same(parameters, "a parameter"); !s.ok()) return s;
  return same(b.registers == std::max(a.registers, prologue.registers) && b.shared_bytes == a.shared_bytes &&
                  b.barriers == a.barriers && b.max_threads == a.max_threads && b.cluster == a.cluster &&
                  b.cluster_shape == a.cluster_shape && b.max_cluster_rank == a.max_cluster_rank,
              "what a launch needs");
}

using Relocations = std::vector<std::tuple<uint64_t, uint32_t, std::string, int64_t>>;
Relocations relocations(const std::vector<Relocation>& all, uint64_t shift) {
  Relocations out;
  for (const Relocation& r : all) out.emplace_back(r.offset + shift, r.type, r.symbol, r.addend);
  return out;
}

base::Status same_constants(const KernelCode& a, const KernelCode& b, uint64_t shift) {
  bool holds = a.banks.size() == b.banks.size() && (a.param_bytes == 0 || a.param_base == b.param_base) &&
               relocations(a.relocations, shift) == relocations(b.relocations, 0);
  for (size_t i = 0; holds && i < a.banks.size(); ++i)
    holds = a.banks[i].number == b.banks[i].number && a.banks[i].bytes == b.banks[i].bytes &&
            relocations(a.banks[i].relocations, 0) == relocations(b.banks[i].relocations, 0);
  return same(holds, "a constant");
}

// A place in a section for debuggers, and which byte of which section it names. What named the kernel's code names that code still.
using Told = std::tuple<uint64_t, uint64_t, uint32_t, uint64_t>;
std::vector<Told> told_debuggers(const CubinFile& file, const CubinSection& relocations,
                                 const std::string& kernel, uint64_t shift) {
  std::vector<Told> all;
  const uint32_t link = relocations.header.sh_link;
  const Bytes symbols = link < file.sections.size() ? Bytes(file.sections[link].bytes) : Bytes();
  for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= relocations.bytes.size(); at += sizeof(Elf64_Rela)) {
    const auto r = load<Elf64_Rela>(relocations.bytes, at);
    const uint64_t symbol = ELF64_R_SYM(r.r_info) * sizeof(Elf64_Sym);
    Elf64_Sym s{};
    if (inside(symbol, sizeof s, symbols.size())) s = load<Elf64_Sym>(symbols, symbol);
    const bool here =
        s.st_shndx < file.sections.size() && file.sections[s.st_shndx].name == ".text." + kernel;
    all.emplace_back(r.r_offset, r.r_info, s.st_shndx,
                     s.st_value + uint64_t(r.r_addend) + (here ? shift : 0));
  }
  return all;
}

// Only sections that speak of the kernel may be others.
base::Status same_sections(const CubinFile& a, const CubinFile& b, const std::string& kernel,
                           uint64_t shift) {
  const std::string own[] = {".text." + kernel, ".nv.info." + kernel,   ".nv.constant0." + kernel,
                             ".nv.info",        ".rela.text." + kernel, ".symtab"};
  bool holds = a.sections.size() == b.sections.size();
  for (size_t i = 0; holds && i < a.sections.size(); ++i) {
    const CubinSection &x = a.sections[i], &y = b.sections[i];
    const bool debugging = relocates_debugging(x.name);
    const bool may = debugging || std::find(std::begin(own), std::end(own), x.name) != std::end(own);
    holds = (!debugging || told_debuggers(a, x, kernel, shift) == told_debuggers(b, y, kernel, 0)) &&
            x.name == y.name && x.header.sh_type == y.header.sh_type &&
            x.header.sh_flags == y.header.sh_flags && x.header.sh_link == y.header.sh_link &&
            (x.header.sh_info == y.header.sh_info || may) && x.header.sh_addralign == y.header.sh_addralign &&
            (may || x.bytes == y.bytes);
  }
  return same(holds, "another section");
}

// The same instructions are reached in the same calls. The check has no calls, so calls have the same numbers.
base::Status same_ways(const KernelCode& a, const KernelCode& b, uint32_t shift, uint32_t* reachable) {
  const auto before = sass::read_program(a.code, a.sm), after = sass::read_program(b.code, b.sm);
  // A jump is not followed. So are returns that are relative to where the code began, which is no section's beginning any more.
  if (!before.ok() || !after.ok()) return base::ok();
  std::vector<std::pair<uint32_t, uint32_t>> wanted, found;  // call, place
  for (size_t i = 0; i < before->instructions.size(); ++i)
    wanted.emplace_back(before->call[i], before->at[i] + shift);
  for (size_t i = 0; i < after->instructions.size(); ++i)
    if (after->at[i] >= shift) found.emplace_back(after->call[i], after->at[i]);
  for (std::vector<std::pair<uint32_t, uint32_t>>* all : {&wanted, &found}) {
    std::sort(all->begin(), all->end());
    all->erase(std::unique(all->begin(), all->end()), all->end());
  }
  *reachable = uint32_t(wanted.size());
  return same(wanted == found, "what is reached");
}

}  // namespace

base::Result<PrologueProof> prove_prepended(Bytes before, Bytes after, std::string_view kernel,
                                            const Prologue& prologue) {
  const auto all_a = cubin_kernels(before), all_b = cubin_kernels(after);
  if (!all_a.ok()) return all_a.error();
  if (!all_b.ok()) return all_b.error();
  const CubinKernel *x = find(*all_a, kernel), *y = find(*all_b, kernel);
  const auto a = kernel_code(before, kernel), b = kernel_code(after, kernel);
  const auto file_a = parse_cubin_file(before), file_b = parse_cubin_file(after);
  if (!x || !y || !a.ok() || !b.ok() || !file_a.ok() || !file_b.ok())
    return bad("no code of " + std::string(kernel));
  if (base::Status s = same_kernel(*x, *y, prologue); !s.ok()) return s.error();
  const auto check = fitted_code(prologue, b->param_base + range_offset(x->param_bytes));
  if (!check.ok()) return check.error();
  std::vector<uint8_t> code = *check;
  code.insert(code.end(), a->code.begin(), a->code.end());
  const auto shift = uint32_t(check->size());
  PrologueProof proof;
  proof.instructions = uint32_t(a->code.size() / kInstructionBytes);
  for (const base::Status& s : {same(code == b->code, "the code"), same_constants(*a, *b, shift),
                                same_sections(*file_a, *file_b, std::string(kernel), shift),
                                same_ways(*a, *b, shift, &proof.reachable)})
    if (!s.ok()) return s.error();
  return proof;
}

}  // namespace tessera::image
