// The tool of tests and scripts for machine code:
//   sass_tool decode CUBIN    one line per instruction of each kernel: kernel, offset, what it writes and reads
//   sass_tool prove PTX ORIGINAL VARIANT [SEED]    of each kernel whose variant the second cubin has: proved, or why not;
//     with a seed, how many of 400 changed bits of the variant's instructions are found
//   sass_tool faults PTX BOTH FAULTY    of each kernel that is proved with its variant, both in the first cubin: whether a
//     fault in the variant of the second one is found, missed, or did not change the code
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/image/code.h"
#include "kernels/image/cubin.h"
#include "kernels/ptx/parser.h"
#include "kernels/sass/instruction.h"
#include "kernels/sass/proof.h"
#include "kernels/slice/globals.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes bytes_of(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

int decode(const char* path) {
  const auto cubin = bytes_of(path);
  const auto kernels = tessera::image::cubin_kernels(cubin);
  if (!kernels) return 1;
  for (const auto& kernel : *kernels) {
    const auto code = tessera::image::kernel_code(cubin, kernel.name);
    if (!code) return 1;
    for (size_t at = 0; at + 16 <= code->code.size(); at += 16) {
      uint64_t words[2];
      memcpy(words, code->code.data() + at, sizeof words);
      const auto i = tessera::sass::decode(words[0], words[1], code->sm);
      printf("%s %zu %s\n", kernel.name.c_str(), at,
             i ? tessera::sass::text_of(*i).c_str() : ("? " + tessera::sass::name_of(words[0])).c_str());
    }
  }
  return 0;
}

// Changes one bit of the variant's instructions at a time, and tells which changes are not found.
void plant(const tessera::image::KernelCode& a, tessera::image::KernelCode b,
           const tessera::sass::VariantParameters& where, unsigned seed) {
  std::mt19937 random(seed);
  unsigned planted = 0, missed = 0;
  for (int n = 0; n < 400; n++) {
    const size_t at = random() % (b.code.size() / 16) * 16, bit = random() % 105;
    uint64_t words[2];
    memcpy(words, b.code.data() + at, sizeof words);
    const auto before = tessera::sass::decode(words[0], words[1], b.sm);
    if (!before || before->kind == tessera::sass::Kind::kNothing) continue;
    b.code[at + bit / 8] ^= uint8_t(1 << bit % 8);
    planted++;
    if (tessera::sass::prove(a, b, where).proved) {
      missed++;
      printf("  missed: bit %zu of 0x%04zx: %s\n", bit, at, tessera::sass::text_of(*before).c_str());
    }
    b.code[at + bit / 8] ^= uint8_t(1 << bit % 8);
  }
  printf("  %u planted, %u missed\n", planted, missed);
}

// Calls `use` with each kernel whose variant is in `cut`: its name, the variant's and where that has its parameters.
template <class Use>
int for_each_variant(const char* ptx, const Bytes& cut, Use use) {
  const auto variants = tessera::image::cubin_kernels(cut);
  const auto text = bytes_of(ptx);
  const auto module = tessera::ptx::parse({reinterpret_cast<const char*>(text.data()), text.size()});
  if (!variants || !module) return 1;
  for (const auto& kernel : tessera::slice::analyse(*module))
    for (const auto& v : *variants) {
      if (v.name != kernel.kernel + tessera::slice::kVariantSuffix) continue;
      const auto globals = tessera::slice::passed_globals(*module, kernel.kernel);
      tessera::sass::VariantParameters where{kernel.origin_offset, globals.offset, {}};
      // A variant in the original's module names the variables itself.
      if (v.param_bytes >= globals.offset + sizeof(uint64_t) * globals.passed.size())
        for (const auto& variable : globals.passed) where.variables.push_back(variable.name);
      if (!use(kernel.kernel, v.name, where)) return 1;
    }
  return 0;
}

int prove(const char* ptx, const char* original, const char* variant, const char* seed) {
  const auto own = bytes_of(original), cut = bytes_of(variant);
  return for_each_variant(ptx, cut, [&](const auto& kernel, const auto& cut_kernel, const auto& where) {
    const auto a = tessera::image::kernel_code(own, kernel), b = tessera::image::kernel_code(cut, cut_kernel);
    if (!a || !b) return false;
    const auto proof = tessera::sass::prove(*a, *b, where);
    printf("%s %s %u %s\n", kernel.c_str(), proof.proved ? "proved" : "refused", proof.instructions,
           proof.difference.c_str());
    if (seed && proof.proved) plant(*a, *b, where, unsigned(atoi(seed)));
    return true;
  });
}

int faults(const char* ptx, const char* both, const char* faulty) {
  const auto good = bytes_of(both), bad = bytes_of(faulty);
  return for_each_variant(ptx, good, [&](const auto& kernel, const auto& cut_kernel, const auto& where) {
    const auto a = tessera::image::kernel_code(good, kernel),
               b = tessera::image::kernel_code(good, cut_kernel),
               c = tessera::image::kernel_code(bad, cut_kernel);
    if (!a || !b || !c) return false;
    if (!tessera::sass::prove(*a, *b, where).proved) return true;
    const auto proof = tessera::sass::prove(*a, *c, where);
    const char* what = proof.proved ? (b->code == c->code ? "unchanged" : "missed") : "found";
    printf("%s %s %s\n", kernel.c_str(), what, proof.difference.c_str());
    return true;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && !strcmp(argv[1], "decode")) return decode(argv[2]);
  if (argc >= 5 && !strcmp(argv[1], "prove"))
    return prove(argv[2], argv[3], argv[4], argc > 5 ? argv[5] : nullptr);
  if (argc == 5 && !strcmp(argv[1], "faults")) return faults(argv[2], argv[3], argv[4]);
  fprintf(stderr,
          "usage: sass_tool decode CUBIN | prove PTX ORIGINAL VARIANT [SEED] | faults PTX BOTH FAULTY\n");
  return 2;
}
