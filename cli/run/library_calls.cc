#include "cli/run/library_calls.h"

#include <algorithm>
#include <string_view>

#include "cli/run/layout.h"

namespace tessera::cli {
namespace {

// By the beginning of their names, up to the version.
constexpr std::string_view kRuntimes[] = {
    "libc.so.",  "libm.so.",  "libstdc++.so.",       "libgcc_s.so.", "libpthread.so.",
    "libdl.so.", "librt.so.", "ld-linux-x86-64.so.", "libcuda.so.",  "libcudart.so."};

bool is_runtime(const std::string& library) {
  return std::ranges::any_of(kRuntimes, [&](std::string_view name) { return library.starts_with(name); });
}

}  // namespace

bool may_call_cublas(const ElfFacts& program) {
  return !program.gpu_code || !std::ranges::all_of(program.needed, is_runtime);
}

bool may_call_cublas(const std::vector<std::string>& command) {
  const auto program = read_elf(find_in_path(command[0]), DriverNames::kSkip);
  return !program || may_call_cublas(*program);
}

}  // namespace tessera::cli
