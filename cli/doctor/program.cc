// Checks of one program: what starts, whether the loader reads LD_PRELOAD for it, how it names the driver, which
// driver the loader gives it under `tessera run`, and what of its GPU code can be cut.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "base/scoped_fd.h"
#include "base/user_file.h"
#include "cli/doctor/doctor.h"
#include "cli/doctor/elf.h"
#include "cli/look/inspect.h"
#include "cli/run/child_output.h"
#include "cli/run/lookups.h"
#include "cli/run/newer_names.h"
#include "cli/run/run.h"
#include "cli/run/started_program.h"

namespace tessera::cli {
namespace {

bool privileged(const std::string& file) {
  struct stat status;
  if (stat(file.c_str(), &status) == 0 && (status.st_mode & (S_ISUID | S_ISGID))) return true;
  return getxattr(file.c_str(), "security.capability", nullptr, 0) > 0;
}

// Libraries that the loader would map for `file` under `tessera run`, as ldd(1) asks it: nothing of the program runs.
// Name and path; the path of one that is missing is "".
std::vector<std::pair<std::string, std::string>> mapped_under_run(const DoctorOptions& options,
                                                                  const Layout& layout,
                                                                  const std::string& file) {
  std::vector<std::pair<std::string, std::string>> out;
  RunOptions run;
  run.gpu = options.gpu;
  run.command = options.command;
  const auto variables = client_environment(run, layout);
  if (!variables) return out;
  const ChildOutput child = output_of_child([&] {
    for (const std::string& variable : *variables) putenv(strdup(variable.c_str()));
    setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    execl(file.c_str(), file.c_str(), nullptr);
  });
  std::istringstream lines(child.text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);  // "\tlibm.so.6 => /lib/libm.so.6 (0x...)", "\t/lib/ld.so (0x...)"
    std::string name, arrow, path;
    words >> name >> arrow >> path;
    if (arrow == "=>")
      out.emplace_back(name, path[0] == '/' ? path : "");
    else if (name[0] == '/')
      out.emplace_back(name.substr(name.rfind('/') + 1), name);
  }
  return out;
}

struct Cuttable {
  size_t yes = 0, machine_code_only = 0;
  std::map<std::string, size_t> refused;  // by reason
};

void count_kernels(const std::string& file, Cuttable& out) {
  const auto fd = base::open_to_read(file);
  struct stat status;
  if (!fd || fstat(fd->get(), &status) != 0 || status.st_size <= 0) return;
  void* bytes = mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, fd->get(), 0);
  if (bytes == MAP_FAILED) return;
  // One kernel is there for several architectures, and as PTX and machine code: cut is what has PTX.
  std::map<std::string, std::string> ptx;
  std::map<std::string, bool> machine_code;
  (void)inspect_bytes({static_cast<const uint8_t*>(bytes), size_t(status.st_size)}, {},
                      [&](const InspectedEntry& e) {
                        for (const InspectedKernel& k : e.kernels)
                          ptx[k.report.kernel] =
                              k.report.verdict.may_cut() ? "" : slice::refusal_name(k.report.verdict.refusal);
                        for (const image::CubinKernel& k : e.cubin_kernels) machine_code[k.name] = true;
                      });
  munmap(bytes, size_t(status.st_size));
  for (const auto& [name, reason] : ptx) reason.empty() ? ++out.yes : ++out.refused[reason];
  for (const auto& [name, is] : machine_code) out.machine_code_only += !ptx.contains(name);
}

Finding check_start(const std::string& name, const StartedProgram& started) {
  if (started.file.empty())
    return {"program", State::kFailure, name + ": command not found", "nothing can be started",
            "give a path or check PATH"};
  if (privileged(started.file))
    return {"program", State::kFailure, started.file + " is setuid, setgid or has capabilities",
            "the loader ignores LD_PRELOAD for it: its calls do not pass through Tessera",
            "start the CUDA part from a program without privileges"};
  return {"program", State::kOk, started.file + (started.script ? " runs " + name : ""), "", ""};
}

Finding check_loader(const std::string& file, const ElfFacts& elf) {
  if (elf.interpreter.find("/ld-musl-") != std::string::npos)
    return {"loader", State::kWarning, file + " is linked with musl",
            "it starts, and finds neither Tessera nor NVIDIA's driver by the name libcuda.so.1: that driver "
            "needs glibc",
            "build the CUDA part with glibc"};
  if (!elf.interpreter.empty())
    return {"loader", State::kOk, "started by the dynamic loader: LD_PRELOAD is read", "", ""};
  return {"loader", State::kFailure, file + " is linked statically",
          "the loader does not start it: its calls do not pass through Tessera",
          "link it dynamically (nvcc's default)"};
}

Finding check_driver_of(const std::vector<std::pair<std::string, std::string>>& mapped,
                        const Layout& layout) {
  bool library = false;
  std::string other, missing;
  for (const auto& [name, path] : mapped) {
    if (path == layout.preload || name == layout.preload)
      library = true;
    else if (path.empty() && name != kNewerNames)  // which is there only where it is needed
      missing += " " + name;
    else if (path.substr(path.rfind('/') + 1).starts_with("libcuda.so"))
      other = path;
  }
  if (!missing.empty())
    return {"libraries", State::kFailure, "the loader does not find:" + missing, "the program does not start",
            "install them or extend LD_LIBRARY_PATH"};
  if (!library)
    return {"libraries", State::kFailure, "the loader did not map " + layout.preload,
            "its calls do not pass through Tessera", "the loader says why: LD_DEBUG=libs tessera run -- ..."};
  if (!other.empty())
    return {"libraries", State::kWarning, other + " is mapped beside the library",
            "calls that were bound to it do not pass through Tessera",
            "take the path out of its RPATH or link by name"};
  return {"libraries", State::kOk, "the loader gives it Tessera where it asks for libcuda.so.1", "", ""};
}

// How the program and the libraries that it is linked with name the driver.
Finding check_names(const std::string& file, const std::vector<std::pair<std::string, std::string>>& mapped,
                    const Layout& layout) {
  std::string by_name, by_path;
  std::vector<std::string> files = {file};
  for (const auto& [name, path] : mapped)
    if (!path.empty() && path != layout.preload && path != layout.preload_alias) files.push_back(path);
  for (const std::string& each : files) {
    const auto elf = read_elf(each);
    if (!elf) continue;
    for (const std::string& needed : elf->needed)
      if (needed.starts_with("libcuda.so")) by_name = each + " links " + needed;
    for (const std::string& name : elf->driver_names)
      (name.find('/') == std::string::npos ? by_name : by_path) = each + " opens " + name;
  }
  if (!by_path.empty())
    return {"driver-name", State::kWarning, by_path, "a driver that is opened by its path is not Tessera",
            "tessera run --audit; or let it open libcuda.so.1 by name (`tessera ps` tells whether it did)"};
  if (!by_name.empty()) return {"driver-name", State::kOk, by_name, "", ""};
  return {"driver-name", State::kNote, "neither it nor the libraries it is linked with name the driver",
          "what it loads later does (Python extensions); or it is no CUDA program", ""};
}

Finding check_lookups(const DoctorOptions& options, const Layout& layout) {
  if (const std::string broken = why_not_loadable(layout.audit); !broken.empty())
    return {"lookups", State::kWarning, broken,
            "what the program opens by path or looks up by name does not pass through Tessera", "install it"};
  const std::string why = why_looks_up(options.command);
  if (!why.empty() && !tells_of_all_bindings())
    return {"lookups", State::kWarning, why + ", and the loader of this glibc is older than 2.35",
            "some of what the program looks up by name does not pass through Tessera", "tessera run --audit"};
  if (!why.empty())
    return {"lookups", State::kOk, why + ": tessera run serves what it looks up by name, too", "", ""};
  return {"lookups", State::kNote, "not known to open a driver by its path, or cuBLAS by dlopen and dlsym",
          "if it does, those calls do not pass through Tessera", "tessera run --audit"};
}

Finding check_kernels(const std::string& file, const std::vector<std::pair<std::string, std::string>>& mapped,
                      bool script) {
  Cuttable all;
  std::vector<std::string> files = {file};
  for (const auto& [name, path] : mapped)
    if (!path.empty()) files.push_back(path);
  for (const std::string& each : files)
    if (const auto elf = read_elf(each); elf && elf->gpu_code) count_kernels(each, all);
  size_t refused = 0;
  std::string reasons;
  for (const auto& [reason, count] : all.refused) {
    refused += count;
    reasons += (reasons.empty() ? ": " : ", ") + std::to_string(count) + " " + reason;
  }
  if (all.yes + refused + all.machine_code_only == 0)
    return {"kernels", State::kNote, "no GPU code in it or in the libraries it is linked with",
            script ? "what it imports may have some: tessera inspect FILE" : "", ""};
  const std::string finding = std::to_string(all.yes) + " kernels can be cut, " + std::to_string(refused) +
                              " not" + reasons + ", " + std::to_string(all.machine_code_only) +
                              " are there as machine code only";
  if (refused + all.machine_code_only == 0) return {"kernels", State::kOk, finding, "", ""};
  return {"kernels", State::kNote, finding,
          "as best-effort, those that cannot be cut are launched whole: they delay others by their length",
          "compile with PTX (nvcc -gencode ...,code=compute_NN); tessera inspect " + file + " says more"};
}

}  // namespace

std::vector<Finding> examine_program(const DoctorOptions& options, const Layout& layout) {
  std::vector<Finding> out;
  const StartedProgram started = started_program(options.command[0]);
  out.push_back(check_start(options.command[0], started));
  if (out.back().state == State::kFailure) return out;
  const auto elf = read_elf(started.file);
  if (!elf) {
    out.push_back(
        {"loader", State::kWarning, elf.error().text, "how it reaches the driver is not known", ""});
    return out;
  }
  out.push_back(check_loader(started.file, *elf));
  if (elf->interpreter.empty()) return out;
  const auto mapped = mapped_under_run(options, layout, started.file);
  out.push_back(check_driver_of(mapped, layout));
  out.push_back(check_names(started.file, mapped, layout));
  std::vector<std::string> libraries;
  for (const auto& [name, path] : mapped)
    if (!path.empty()) libraries.push_back(path);
  std::vector<Neighbour> neighbours = neighbours_of_environment();  // which are findings of the machine
  const size_t known = neighbours.size();
  add_needed_neighbours(libraries, &neighbours);
  add_neighbours(std::span(neighbours).subspan(known), out);
  out.push_back(check_lookups(options, layout));
  out.push_back(check_kernels(started.file, mapped, started.script));
  return out;
}

}  // namespace tessera::cli
