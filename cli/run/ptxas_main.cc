// `tessera-ptxas`: see cli/run/ptxas.h. A program of its own, linked without libraries of others: it is started as often as
// ptxas is, and `tessera` takes longer to start than to prove a small kernel.

#include <cstdio>
#include <exception>

#include "cli/run/ptxas.h"
#include "cli/standard_descriptors.h"

int main(int argc, char** argv) try {
  tessera::cli::keep_standard_descriptors();
  return tessera::cli::ptxas(argc > 0 ? argv[0] : "", {argv + (argc > 0), argv + argc});
} catch (const std::exception& problem) {  // no memory
  fprintf(stderr, "tessera ptxas: %s\n", problem.what());
  return 1;
}
