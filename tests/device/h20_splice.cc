// Puts the range check of a template in front of every kernel of a cubin, for h20_prologue.cu:
//   h20_splice TEMPLATE.cubin KERNELS.cubin OUT.cubin
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "kernels/image/cubin.h"
#include "tests/device/prologue/prologue.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

int fail(const tessera::base::Error& error) {
  fprintf(stderr, "h20_splice: %s\n", error.text.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: h20_splice TEMPLATE.cubin KERNELS.cubin OUT.cubin\n");
    return 2;
  }
  const auto prologue = tessera::image::lift_prologue(read_file(argv[1]));
  if (!prologue.ok()) return fail(prologue.error());
  Bytes image = read_file(argv[2]);
  const auto kernels = tessera::image::cubin_kernels(image);
  if (!kernels.ok()) return fail(kernels.error());
  for (const auto& kernel : *kernels) {
    auto spliced = tessera::image::prepend(image, kernel.name, *prologue);
    if (!spliced.ok()) return fail(spliced.error());
    image = std::move(*spliced);
  }
  std::ofstream out(argv[3], std::ios::binary);
  out.write(reinterpret_cast<const char*>(image.data()), std::streamsize(image.size()));
  return out.flush() ? 0 : 1;
}
