// Puts the range check of a template in front of every kernel of a cubin, for h20_prologue.cu. It proves that nothing else
// differs from the untouched file:
//   h20_splice TEMPLATE.cubin KERNELS.cubin [FOLDER]
// It prints each kernel with what was proved, or why it is refused. Into the folder it writes h20_spliced_KERNEL.cubin, where
// this kernel alone has a check, and h20_spliced.cubin, where all have. Only a failed proof is an error.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "kernels/image/cubin.h"
#include "tests/device/prologue/proof.h"

namespace {

using Bytes = std::vector<uint8_t>;
using tessera::image::RangeOf;

Bytes read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

int fail(const tessera::base::Error& error) {
  fprintf(stderr, "h20_splice: %s\n", error.text.c_str());
  return 1;
}

bool write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  return bool(out.flush());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fprintf(stderr, "usage: h20_splice TEMPLATE.cubin KERNELS.cubin [FOLDER]\n");
    return 2;
  }
  const std::optional<std::string> folder = argc == 4 ? std::optional<std::string>(argv[3]) : std::nullopt;
  const Bytes check = read_file(argv[1]), image = read_file(argv[2]);
  const auto blocks = tessera::image::lift_prologue(check, RangeOf::kBlocks),
             clusters = tessera::image::lift_prologue(check, RangeOf::kClusters);
  if (!blocks.ok()) return fail(blocks.error());
  if (!clusters.ok()) return fail(clusters.error());
  const auto kernels = tessera::image::cubin_kernels(image);
  if (!kernels.ok()) return fail(kernels.error());
  Bytes all = image;
  for (const auto& kernel : *kernels) {
    const auto& prologue = kernel.cluster ? *clusters : *blocks;
    const auto spliced = tessera::image::prepend(image, kernel.name, prologue);
    if (!spliced.ok()) {
      printf("%s refused: %s\n", kernel.name.c_str(), spliced.error().text.c_str());
      continue;
    }
    const auto proof = tessera::image::prove_prepended(image, *spliced, kernel.name, prologue);
    if (!proof.ok()) return fail(proof.error());
    printf("%s proved: range of %s, %u instructions, %u reached\n", kernel.name.c_str(),
           kernel.cluster ? "clusters" : "blocks", proof->instructions, proof->reachable);
    const auto further = tessera::image::prepend(all, kernel.name, prologue);
    if (!further.ok()) return fail(further.error());
    all = *further;
    if (folder && !write_file(*folder + "/h20_spliced_" + kernel.name + ".cubin", *spliced)) return 1;
  }
  if (folder && !write_file(*folder + "/h20_spliced.cubin", all)) return 1;
  return 0;
}
