// Any bytes as machine code to be edited: a file or an error, within the bounds of the input; what is written
// is read again as it was; a kernel with a prologue in front is read again, too.
#include "tests/device/prologue/prologue.h"

#include "kernels/image/cubin.h"
#include "kernels/image/cubin_file.h"
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

// One that fits the kernel, so that all of the editing is reached.
Prologue fitting(const CubinKernel& kernel, unsigned sm) {
  Prologue p;
  p.code.assign(kPrologueAlignment, 0);
  p.exits = {0};
  p.registers = 8;
  p.own_param_bytes = kernel.param_bytes;
  p.param_bytes = kernel.param_bytes + 8;
  p.constant_bytes = kernel.constant_bytes + 8;
  p.sm = sm;
  p.workarounds = {8, 0, 0, 0};
  return p;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  write_and_read(bytes);
  (void)lift_prologue(bytes);
  auto entries = list(bytes);
  auto kernels = cubin_kernels(bytes);
  if (!kernels.ok() || !entries.ok() || entries->empty()) return 0;
  for (const CubinKernel& kernel : *kernels) {
    auto edited = prepend(bytes, kernel.name, fitting(kernel, (*entries)[0].sm));
    if (!edited.ok()) continue;
    auto after = cubin_kernels(*edited);
    CHECK(after.ok());
  }
  return 0;
}
