// Any text: parsed or refused; what was parsed prints stably, is judged, rewritten, and the result parses
// again.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/ptx/verifier.h"
#include "kernels/slice/slice.h"

namespace {

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "ptx_fuzz: %s\n", what);
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  auto module = ptx::parse({reinterpret_cast<const char*>(data), size});
  if (!module.ok()) return 0;
  std::string once = ptx::print(*module);
  auto again = ptx::parse(once);
  require(again.ok(), "printed text does not parse");
  require(ptx::print(*again) == once, "printing is not stable");
  slice::Options options;
  options.allow_order_dependent = true;
  options.verify_each_pass = true;
  slice::add_variants(*module, options);
  auto sliced = ptx::parse(ptx::print(*module));
  require(sliced.ok(), "the rewritten module does not parse");
  require(!ptx::verify(*again).ok() || ptx::verify(*sliced).ok(), "the rewritten module is not well-formed");
  return 0;
}
