// `tessera`: the command that people use. Its subcommands are in cli/commands.h.

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/run/layout.h"
#include "cli/standard_descriptors.h"

namespace {

// A program of its own, which starts sooner. Arguments of ptxas are not ours to look at.
int exec_ptxas(char** argv) {
  const std::string program = tessera::cli::find_layout().bin + "/tessera-ptxas";
  execv(program.c_str(), argv);
  fprintf(stderr, "tessera ptxas: %s: %s\n", program.c_str(), strerror(errno));
  return 127;
}

// A result that did not get to where it was sent is a failure, whatever else went well.
int checked_output(int status) {
  std::cout.flush();
  const bool written = fflush(stdout) == 0 && ferror(stdout) == 0 && std::cout.good();
  if (written || status != 0) return status;
  fprintf(stderr, "tessera: standard output cannot be written: is the disk full, or the reader gone?\n");
  return 1;
}

int command(int argc, char** argv) {
  using namespace tessera;
  cli::keep_standard_descriptors();
  if (argc > 1 && std::string_view(argv[1]) == "ptxas") return exec_ptxas(argv + 1);
  CLI::App app{"Tessera shares one NVIDIA GPU between unmodified programs"};
  app.set_version_flag("--version", TESSERA_VERSION);
  app.require_subcommand(1);
  int status = 0;

#define TS_ROW(name) cli::add_##name(app, &status);
  TS_COMMANDS(TS_ROW)
#undef TS_ROW

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty()) {
      fprintf(stderr, "tessera: '%s' is no command; `tessera --help` lists them\n", argv[1]);
      return 2;
    }
    return checked_output(app.exit(problem) == 0 ? 0 : 2);
  }
  return checked_output(status);
}

}  // namespace

int main(int argc, char** argv) try {
  return command(argc, argv);
} catch (const std::exception& problem) {  // no memory, no room: said like any other failure
  fprintf(stderr, "tessera: %s\n", problem.what());
  return 1;
}
