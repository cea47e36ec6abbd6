#include "cli/run/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>

#include "base/units.h"
#include "cli/demo/process.h"
#include "cli/run/keep_ptx.h"
#include "cli/run/library_calls.h"
#include "cli/run/lookups.h"
#include "cli/run/mps.h"
#include "cli/run/neighbours.h"
#include "cli/run/newer_names.h"
#include "cli/run/place.h"
#include "cli/run/started_program.h"
#include "cli/trace/take.h"
#include "ipc/channel/client.h"
#include "ipc/channel/socket_path.h"

namespace tessera::cli {
namespace {

// The program runs, too, where that is not to be had.
void add_keep_ptx(const Layout& layout, std::vector<std::string>* variables) {
  const auto kept = keep_ptx(layout.bin + "/tessera-ptxas");
  if (!kept) {
    fprintf(stderr, "tessera run: no PTX is kept: %s\n", kept.error().text.c_str());
    return;
  }
  for (const std::string& note : kept->notes) fprintf(stderr, "tessera run --keep-ptx: %s\n", note.c_str());
  variables->insert(variables->end(), kept->variables.begin(), kept->variables.end());
}

// So does it where nobody can say where it should run: then on the GPU that it would have had.
void add_place(const RunOptions& options, const std::string& driver, const std::string& socket_path) {
  std::string note;
  const auto placed = place(options, driver, socket_path, &note);
  if (!placed) note = "the program is not placed: " + placed.error().text;
  if (placed.ok() && !placed->empty()) set_variables({*placed});
  if (!note.empty()) fprintf(stderr, "tessera run: %s\n", note.c_str());
}

// Serves the driver's names that Tessera does not know: programs find them, except those that cannot be served so.
std::string serve_newer_names(const std::string& driver) {
  const std::vector<std::string> names = newer_names(driver);
  if (names.empty()) return "";
  const auto library = keep_newer_names(names);
  if (library) return *library;
  fprintf(stderr,
          "tessera run: programs do not find %s and %zu other functions of this driver by dlsym: %s\n",
          names[0].c_str(), names.size() - 1, library.error().text.c_str());
  return "";
}

// One line for each library that gets between the program and the driver; the environment is the program's.
void name_neighbours(const std::string& command) {
  std::vector<Neighbour> all = neighbours_of_environment();
  add_needed_neighbours(needed_libraries(started_program(command).file), &all);
  for (const Neighbour& n : all)
    fprintf(stderr, "tessera run: %s: %s\n", n.finding.c_str(), n.meaning.c_str());
}

// With the least limit of memory that holds for the program.
std::vector<std::string> variables_of_mps(const MpsInfo& mps, const RunOptions& options,
                                          const std::string& driver) {
  uint64_t limit = options.memory_limit_bytes;
  if (mps.memory_limit_bytes != 0)
    limit = limit == 0 ? mps.memory_limit_bytes : std::min(limit, mps.memory_limit_bytes);
  size_t gpus = 0;
  if (limit != 0) {
    set_variables({"CUDA_MPS_PIPE_DIRECTORY=" + mps.pipe_directory});  // MPS may show its clients fewer
    if (const auto visible = visible_gpus(driver); visible.ok()) gpus = visible->size();
  }
  return mps_environment(mps, *parse_priority(options.priority) == 0, limit, gpus);
}

}  // namespace

base::Result<std::string> resolve_socket(const std::string& given) {
  if (given.empty()) {
    std::string skipped;
    auto path = ipc::default_socket_path(&skipped);
    if (!skipped.empty()) std::fprintf(stderr, "tessera: %s\n", skipped.c_str());
    return path;
  }
  if (given.size() >= sizeof sockaddr_un::sun_path)
    return base::error(base::Code::kInvalid,
                       "the path of a socket has at most 107 characters, choose a shorter one: " + given);
  return given;
}

int run(const RunOptions& given) {
  const Layout layout = find_layout();
  RunOptions options = given;
  // Whatever is missing, the program runs: then without the library, and with the errors it would see anyway.
  std::string missing;
  if (!options.passthrough) missing = why_not_loadable(layout.preload);
  if (missing.empty() && !options.passthrough) missing = why_not_loadable(layout.preload_alias);
  if (missing.empty() && options.gpu == "auto") missing = why_no_driver();
  if (!missing.empty()) options.passthrough = true;
  if (!options.passthrough && options.gpu == "auto") options.newer_names = serve_newer_names(meant_driver());
  options.operations = options.operations && (options.split_operations || may_call_cublas(options.command));
  if (!options.audit)
    options.audit = !options.passthrough && tells_of_all_bindings() && !why_looks_up(options.command).empty();
  if (options.memory_limit_bytes == 0) options.memory_limit_bytes = options.memory_reserve_bytes;
  if (options.memory_limit_bytes < options.memory_reserve_bytes) {
    fprintf(stderr, "tessera run: --memory-reserve is more than --memory-limit\n");
    return 2;
  }
  if (options.memory_limit_bytes != 0 && getrandom(&options.memory_group, sizeof options.memory_group, 0) < 0)
    options.memory_group = uint64_t(getpid());
  auto variables = client_environment(options, layout);
  if (!variables) {
    fprintf(stderr, "tessera run: %s\n", variables.error().text.c_str());
    return 2;
  }
  if (!missing.empty())
    fprintf(stderr, "tessera run: the program runs without Tessera: %s\n", missing.c_str());
  if (options.keep_ptx) add_keep_ptx(layout, &*variables);
  if (!options.passthrough) {
    const auto socket_path = resolve_socket(options.socket);
    const base::Status there = socket_path.ok() ? ipc::may_attach(*socket_path) : socket_path.error();
    if (!there.ok())
      fprintf(stderr, "tessera run: %s; the program runs unmanaged\n", there.error().text.c_str());
    else {
      const std::string driver = options.gpu == "soft" ? layout.softgpu + "/libcuda.so.1" : meant_driver();
      if (options.place) add_place(options, driver, *socket_path);
      if (options.memory_reserve_bytes != 0)
        if (const auto reserved = reserve(options, driver, *socket_path); !reserved.ok()) {
          fprintf(stderr, "tessera run: %.2f GiB cannot be reserved: %s\n",
                  double(options.memory_reserve_bytes) / double(1024 * base::kMiB),
                  reserved.error().text.c_str());
          return 2;
        }
      if (const auto mps = ask_mps(*socket_path); mps.ok() && mps->active) {
        for (const std::string& v : variables_of_mps(*mps, options, driver)) variables->push_back(v);
        fprintf(stderr, "tessera run: MPS is on, fault isolation: no (a fault of one program ends all)\n");
      }
    }
  }
  set_variables(*variables);
  if (!options.passthrough) name_neighbours(options.command[0]);
  std::vector<char*> argv;
  for (const std::string& word : options.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (!options.trace.empty()) return run_traced(argv.data(), options.socket, options.trace);
  execvp(argv[0], argv.data());
  const int failure = errno;
  fprintf(stderr, "tessera run: %s: %s\n", argv[0],
          failure == ENOENT ? "command not found (give a path or check PATH)" : strerror(failure));
  return failure == ENOENT ? 127 : 126;
}

}  // namespace tessera::cli
