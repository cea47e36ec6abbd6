// Says which kernels of PTX files the interpreter would refuse, and why; for scripts/softgpu_coverage.py and
// for people who want to know before they run a program.
//   softgpu_exec_refusals FILE.ptx...     one line per kernel: "<kernel> ok" or "<kernel> refused: <why>"
#include <cstdio>
#include <fstream>
#include <sstream>

#include "kernels/ptx/parser.h"
#include "softgpu/exec/exec.h"

int main(int argc, char** argv) {
  namespace exec = tessera::softgpu::exec;
  exec::AllocationMap memory;
  for (int i = 1; i < argc; ++i) {
    std::stringstream text;
    text << std::ifstream(argv[i]).rdbuf();
    const std::string source = text.str();
    const auto module = tessera::ptx::parse(source);
    if (!module.ok()) {
      std::fprintf(stderr, "%s: %s\n", argv[i], module.error().text.c_str());
      return 1;
    }
    const auto program = exec::Program::load(*module, memory);
    if (!program.ok()) {
      std::fprintf(stderr, "%s: %s\n", argv[i], program.error().text.c_str());
      return 1;
    }
    for (const std::string& name : (*program)->kernel_names()) std::printf("%s ok\n", name.c_str());
    for (const auto& [name, why] : (*program)->refused())
      std::printf("%s refused: %s\n", name.c_str(), why.c_str());
  }
}
