// Cut variants of machine code, compiled by the compiler that made it and proved equal (kernels/sass): what `tessera
// ptxas` does for one file that it has just compiled, and `tessera prepare` for all images of a file. Main thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cache/proved.h"
#include "kernels/sass/proof.h"

namespace tessera::cli {

using Bytes = std::vector<uint8_t>;

enum class Output : uint8_t { kShown, kQuiet };
// A child that ends with us. -1: it could not be started, and errno says why.
pid_t start(const std::string& program, const std::vector<std::string>& arguments, Output output);
// Status as waitpid gives it.
int wait_for(pid_t child);

// Compiles as ptxas did: the same program and arguments, but for the names of the two files.
struct VariantCompiler {
  std::string program;
  std::vector<std::string> arguments;
  std::string input, output;  // those among the arguments that stand for the files
};

// A kernel of a text, and its variant as machine code that still has to be proved.
struct CompiledVariant {
  std::string kernel;
  std::string why_not;  // not "": there is none
  std::string code;
  cache::Key text;
  sass::VariantParameters parameters;
};
// Compiles variants of all kernels that may be cut, up to kMostVariants.
std::vector<CompiledVariant> compile_variants(std::string_view ptx, const VariantCompiler& compiler);

struct ProvedKernel {
  std::string name;
  std::string why_not;  // "": proved; else a rule of the slicer, or the first instruction that differs
};
struct ProvedSet {
  cache::ProvedVariants variants;
  std::vector<ProvedKernel> kernels;  // those that the machine code has, too
};
// As many as `most_bytes` hold.
ProvedSet prove_variants(std::span<const uint8_t> code, std::vector<CompiledVariant> compiled,
                         size_t most_bytes);

// The user's, by TESSERA_CACHE_DIR and TESSERA_CACHE_MAX_MB.
cache::Store user_cache();

struct PrepareOptions {
  std::string file;
  bool json = false;
};
// `tessera prepare`: proves variants of a file's machine code that has its PTX beside it, and puts them into the cache,
// where programs find them. Exit status.
int prepare(const PrepareOptions& options);

}  // namespace tessera::cli
