// `tessera`: the command that people use. Its subcommands are in cli/commands.h.

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>

#include "cli/commands.h"
#include "cli/run/ptxas.h"

namespace {

// Closed standard descriptors are occupied, so that a file opened later cannot become standard output, input or errors.
// The substitute cannot be written, and a program started from here does not see it.
void keep_standard_descriptors() {
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0) close(fd);
}

// Arguments of ptxas are not ours to look at: `tessera ptxas ...`, or started by that name. nullptr = not meant.
char** ptxas_arguments(int argc, char** argv) {
  const std::string_view path = argc > 0 ? argv[0] : "";
  if (path.substr(path.rfind('/') + 1).starts_with("ptxas")) return argv + 1;
  return argc > 1 && std::string_view(argv[1]) == "ptxas" ? argv + 2 : nullptr;
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
  keep_standard_descriptors();
  if (char** const first = ptxas_arguments(argc, argv))
    return cli::ptxas(first == argv + 1 ? argv[0] : "ptxas", {first, argv + argc});
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
