#include "cli/run/lookups.h"

#include <glob.h>
#include <gnu/libc-version.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/user_file.h"
#include "cli/doctor/elf.h"
#include "cli/run/client_environment.h"
#include "cli/run/layout.h"
#include "cli/run/started_program.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// By the beginning of their names.
constexpr std::string_view kPrograms[] = {"julia"};
constexpr std::string_view kLibraries[] = {"libonnxruntime.so"};  // that a program is linked with
// Folders of Python packages: JAX, CuPy, ONNX Runtime, tinygrad (which opens the driver by its path).
constexpr std::string_view kPackages[] = {"jaxlib", "cupy", "onnxruntime", "tinygrad"};

// Packages that are linked with what they need of CUDA. A script that imports nothing but these, the standard library and
// files beside it is no reason, whatever else its interpreter could import.
constexpr std::string_view kLinkedPackages[] = {"torch", "torchvision", "torchaudio", "triton", "numpy"};
// Modules of the standard library that have no file.
constexpr std::string_view kBuiltInModules[] = {"array",  "atexit",    "builtins", "cmath", "errno", "fcntl",
                                                "gc",     "itertools", "math",     "mmap",  "posix", "select",
                                                "signal", "sys",       "time",     "zlib"};
// Ways to import what stands in no import statement.
constexpr std::string_view kOtherImports[] = {"importlib", "import_module", "__import__",
                                              "exec(",     "eval(",         "runpy"};
constexpr std::string_view kPythonFlags[] = {"-u", "-B", "-O"};  // that may stand before the script
constexpr size_t kMostScriptBytes = 1u << 20;
constexpr size_t kMostScripts = 64;

// Below a prefix of a Python installation: what pip and Debian make.
constexpr const char* kPackageFolders[] = {"/lib/python3*/site-packages", "/lib/python3*/dist-packages",
                                           "/local/lib/python3*/dist-packages"};

template <class Names>
bool begins_like_one_of(const std::string& name, const Names& names) {
  return std::ranges::any_of(names, [&](std::string_view n) { return name.starts_with(n); });
}

void add_matches(const std::string& pattern, std::vector<std::string>* out) {
  glob_t found{};
  if (glob(pattern.c_str(), GLOB_ONLYDIR, nullptr, &found) == 0)
    out->insert(out->end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
}

std::string prefix_of(const fs::path& interpreter) {
  return interpreter.parent_path().parent_path();
}

// The prefix of the standard library: a virtual environment also uses the installation's.
std::string prefix_of_library(const std::string& interpreter) {
  std::error_code none;
  const fs::path file = fs::canonical(interpreter, none);
  return prefix_of(none ? fs::path(interpreter) : file);
}

// A virtual environment's interpreter is a link out of it; another link leads to the installation.
std::string python_prefix(const std::string& interpreter) {
  std::error_code none;
  const std::string as_called = prefix_of(fs::absolute(interpreter, none));
  if (fs::exists(as_called + "/pyvenv.cfg", none)) return as_called;
  const fs::path file = fs::canonical(interpreter, none);
  return none ? as_called : prefix_of(file);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, at);) out.push_back(part);
  return out;
}

// The first parts of the names of modules that a Python file imports; none if that cannot be told.
std::optional<std::vector<std::string>> imported_by(const std::string& text) {
  for (const std::string_view other : kOtherImports)
    if (text.find(other) != text.npos) return std::nullopt;
  std::vector<std::string> out;
  for (const std::string& line : split(text, '\n')) {
    for (const std::string& statement : split(line, ';')) {
      std::istringstream words(statement);
      std::string first, module;
      words >> first;
      if (first.starts_with('#')) break;
      const bool imports = first == "import";
      if (!imports && first != "from") {
        if (statement.find("import") != statement.npos)
          return std::nullopt;  // behind a condition, or in a text
        continue;
      }
      if (statement.ends_with('\\')) return std::nullopt;
      std::getline(words, module);
      if (!imports) module = module.substr(0, module.find(" import"));
      for (const std::string& name : split(module, ',')) {
        std::istringstream alone(name.substr(0, name.find('.')));
        std::string top;
        if (!(alone >> top)) return std::nullopt;  // "from . import"
        out.push_back(top);
      }
    }
  }
  return out;
}

bool in_standard_library(const std::string& module, const std::string& prefix) {
  if (std::ranges::find(kBuiltInModules, module) != std::end(kBuiltInModules)) return true;
  for (const std::string& pattern : {module + ".py", module, "lib-dynload/" + module + ".*.so"}) {
    glob_t found{};
    const bool there = glob((prefix + "/lib/python3.*/" + pattern).c_str(), 0, nullptr, &found) == 0;
    globfree(&found);
    if (there) return true;
  }
  return false;
}

// Does the script of `python [-u] SCRIPT ...` import linked packages, the standard library and files beside it alone?
bool imports_linked_packages_alone(const std::vector<std::string>& command, const std::string& prefix) {
  size_t at = 1;
  while (at < command.size() && std::ranges::find(kPythonFlags, command[at]) != std::end(kPythonFlags)) at++;
  if (at >= command.size() || command[at].starts_with('-')) return false;
  const fs::path folder = fs::path(command[at]).parent_path();
  std::vector<fs::path> scripts = {command[at]};
  for (size_t i = 0; i < scripts.size(); i++) {
    const auto text = base::read_user_file(scripts[i], kMostScriptBytes);
    const auto modules = text ? imported_by(*text) : std::nullopt;
    if (!modules || scripts.size() > kMostScripts) return false;
    for (const std::string& module : *modules) {
      std::error_code none;
      const fs::path beside = folder / (module + ".py");
      if (fs::is_directory(folder / module, none)) return false;
      if (fs::exists(beside, none)) {
        if (std::ranges::find(scripts, beside) == scripts.end()) scripts.push_back(beside);
      } else if (std::ranges::find(kLinkedPackages, module) == std::end(kLinkedPackages) &&
                 !in_standard_library(module, prefix)) {
        return false;
      }
    }
  }
  return true;
}

std::string why_looks_up(const StartedProgram& started, const std::vector<std::string>& command) {
  const std::string name = fs::path(started.file).filename();
  if (begins_like_one_of(name, kPrograms)) return name;
  if (name.starts_with("python")) {
    if (!started.script && imports_linked_packages_alone(command, prefix_of_library(started.file))) return "";
    std::error_code none;
    for (const std::string& folder : python_packages(started.file))
      for (const std::string_view package : kPackages)
        if (const fs::path path = fs::path(folder) / package; fs::is_directory(path, none)) return path;
    return "";
  }
  const auto elf = read_elf(started.file, DriverNames::kSkip);
  if (elf)
    for (const std::string& library : elf->needed)
      if (begins_like_one_of(library, kLibraries)) return library;
  return "";
}

}  // namespace

bool glibc_is_from(unsigned first_minor, std::string_view libc_version) {
  constexpr unsigned kMajor = 2;
  const char* const end = libc_version.data() + libc_version.size();
  unsigned major = 0, minor = 0;
  const auto [dot, no_major] = std::from_chars(libc_version.data(), end, major);
  if (no_major != std::errc() || dot == end || *dot != '.') return false;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc()) return false;
  return major > kMajor || (major == kMajor && minor >= first_minor);
}

bool tells_of_all_bindings(std::string_view libc_version) {
  return glibc_is_from(35, libc_version);
}

bool tells_of_all_bindings() {
  return tells_of_all_bindings(gnu_get_libc_version());
}

std::vector<std::string> python_packages(const std::string& interpreter) {
  std::vector<std::string> out;
  std::istringstream folders(own_environment("PYTHONPATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty()) out.push_back(folder);
  const std::string prefix = python_prefix(interpreter);
  for (const char* folder : kPackageFolders) add_matches(prefix + folder, &out);
  if (const std::string home = own_environment("HOME"); !home.empty())
    add_matches(home + "/.local" + kPackageFolders[0], &out);
  return out;
}

std::string why_looks_up(const std::vector<std::string>& command) {
  const StartedProgram started = started_program(command[0]);
  return started.file.empty() ? "" : why_looks_up(started, command);
}

}  // namespace tessera::cli
