// What tests and scripts ask about machine code:
//   sass_tool decode CUBIN    one line per instruction of each kernel: kernel, offset, what it writes and reads
//   sass_tool prove PTX ORIGINAL VARIANT    of each kernel whose variant the second cubin has: proved, or why not
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

std::vector<uint8_t> bytes_of(const char* path) {
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

int prove(const char* ptx, const char* original, const char* variant, const char* seed) {
  const auto own = bytes_of(original), cut = bytes_of(variant);
  const auto variants = tessera::image::cubin_kernels(cut);
  if (!variants) return 1;
  const auto text = bytes_of(ptx);
  const auto module = tessera::ptx::parse({reinterpret_cast<const char*>(text.data()), text.size()});
  if (!module) return 1;
  for (const auto& kernel : tessera::slice::analyse(*module))
    for (const auto& v : *variants) {
      if (v.name != kernel.kernel + tessera::slice::kVariantSuffix) continue;
      const auto globals = tessera::slice::passed_globals(*module, kernel.kernel);
      tessera::sass::VariantParameters where{kernel.origin_offset, globals.offset, {}};
      for (const auto& variable : globals.passed) where.variables.push_back(variable.name);
      const auto a = tessera::image::kernel_code(own, kernel.kernel),
                 b = tessera::image::kernel_code(cut, v.name);
      if (!a || !b) return 1;
      const auto proof = tessera::sass::prove(*a, *b, where);
      printf("%s %s %u %s\n", kernel.kernel.c_str(), proof.proved ? "proved" : "refused", proof.instructions,
             proof.difference.c_str());
      if (seed && proof.proved) plant(*a, *b, where, unsigned(atoi(seed)));
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && !strcmp(argv[1], "decode")) return decode(argv[2]);
  if (argc >= 5 && !strcmp(argv[1], "prove"))
    return prove(argv[2], argv[3], argv[4], argc > 5 ? argv[5] : nullptr);
  fprintf(stderr, "usage: sass_tool decode CUBIN | prove PTX ORIGINAL VARIANT\n");
  return 2;
}
