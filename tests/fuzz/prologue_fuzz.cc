// Any bytes as machine code to be edited: a file or an error, within the bounds of the input; what is written
// is read again as it was; a kernel with a prologue in front is read again, too.
#include "tests/device/prologue/prologue.h"

#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
#include "tests/device/prologue/proof.h"
#include "tests/device/prologue/write_cubin.h"
#include "tests/fuzz/check.h"

namespace {

using namespace tessera::image;

void write_and_read(std::span<const uint8_t> bytes) {
  auto file = parse_cubin_file(bytes);
  if (!file.ok()) return;
  auto written = write_cubin_file(*file);
  if (!written.ok()) return;
  auto again = parse_cubin_file(*written);
  CHECK(again.ok() && again->sections.size() == file->sections.size());
  for (size_t i = 1; i < file->sections.size(); ++i)
    CHECK(again->sections[i].bytes == file->sections[i].bytes);
}

// One that writes no register that a kernel could read, so that all of the editing is reached.
Prologue fitting(const CubinKernel& kernel, unsigned sm) {
  Prologue p;
  p.unit = kernel.cluster ? RangeOf::kClusters : RangeOf::kBlocks;
  p.code.assign(kPrologueAlignment, 0);
  p.exits = {0};
  p.registers = 8;
  p.sm = sm;
  p.attributes = {{4, 0x36, 4, 0, 8, 0, 0, 0}};  // workarounds of the compiler
  return p;
}
// A check that writes registers, so that the kernel's instructions are looked at.
Prologue writing(const CubinKernel& kernel, unsigned sm) {
  Prologue p = fitting(kernel, sm);
  p.writes = {{.index = 0, .words = 3}, {.file = tessera::sass::File::kPredicate, .index = 0}};
  return p;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  write_and_read(bytes);
  for (const RangeOf unit : {RangeOf::kBlocks, RangeOf::kClusters}) (void)lift_prologue(bytes, unit);
  auto entries = list(bytes);
  auto kernels = cubin_kernels(bytes);
  if (!kernels.ok() || !entries.ok() || entries->empty()) return 0;
  for (const CubinKernel& kernel : *kernels) {
    (void)prepend(bytes, kernel.name, writing(kernel, (*entries)[0].sm));
    auto edited = prepend(bytes, kernel.name, fitting(kernel, (*entries)[0].sm));
    if (!edited.ok()) continue;
    (void)prove_prepended(bytes, *edited, kernel.name, fitting(kernel, (*entries)[0].sm));
    auto after = cubin_kernels(*edited);
    CHECK(after.ok());
  }
  return 0;
}
