#include "cli/lookups.h"

#include <glob.h>
#include <gnu/libc-version.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "cli/client_environment.h"
#include "cli/doctor/elf.h"
#include "cli/layout.h"
#include "cli/started_program.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// By the beginning of their names.
constexpr std::string_view kPrograms[] = {"julia"};
constexpr std::string_view kLibraries[] = {"libonnxruntime.so"};  // that a program is linked with
// Folders of Python packages: JAX, CuPy, ONNX Runtime, tinygrad (which opens the driver by its path).
constexpr std::string_view kPackages[] = {"jaxlib", "cupy", "onnxruntime", "tinygrad"};

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

// A virtual environment's interpreter is a link out of it; another link leads to the installation.
std::string python_prefix(const std::string& interpreter) {
  std::error_code none;
  const std::string as_called = prefix_of(fs::absolute(interpreter, none));
  if (fs::exists(as_called + "/pyvenv.cfg", none)) return as_called;
  const fs::path file = fs::canonical(interpreter, none);
  return none ? as_called : prefix_of(file);
}

std::string why_looks_up(const StartedProgram& started) {
  const std::string name = fs::path(started.file).filename();
  if (begins_like_one_of(name, kPrograms)) return name;
  if (name.starts_with("python")) {
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

std::string why_looks_up(const std::string& command) {
  const StartedProgram started = started_program(command);
  return started.file.empty() ? "" : why_looks_up(started);
}

}  // namespace tessera::cli
