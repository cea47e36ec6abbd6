#include "cli/run/keep_ptx.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/hash.h"
#include "base/own_folder.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kToolkit = "/usr/local/cuda";  // where NVIDIA's packages put it

// A caller is recognised by the folder above bin/ and by its library, which the calling process has loaded. `places`:
// where its wheel keeps ptxas below site-packages.
struct Caller {
  std::string_view folder, library;
  const char* places[2];
};
constexpr Caller kCallers[] = {
    {"triton", "libtriton.so", {"triton/backends/nvidia/bin", nullptr}},
    {"cuda", "xla_cuda_plugin.so", {"nvidia/cu13/bin", "nvidia/cuda_nvcc/bin"}},
};

bool same_file_as_us(const std::string& path) {
  struct stat there {
  }, us{};
  return stat(path.c_str(), &there) == 0 && stat("/proc/self/exe", &us) == 0 && there.st_ino == us.st_ino &&
         there.st_dev == us.st_dev;
}

bool usable(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none) && access(path.c_str(), X_OK) == 0 && !same_file_as_us(path);
}

// site-packages or dist-packages around the library, as the parent process has it mapped; "" = it has not.
std::string packages_of_parent(std::string_view library) {
  std::ifstream maps("/proc/" + std::to_string(getppid()) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!line.ends_with(library)) continue;  // of thousands of lines
    fs::path path(line.substr(std::min(line.find('/'), line.size())));
    if (path.filename() != library) continue;
    for (path = path.parent_path(); path.has_relative_path(); path = path.parent_path())
      if (path.filename() == "site-packages" || path.filename() == "dist-packages") return path;
  }
  return "";
}

std::vector<std::string> folders_to_search(const std::string& called_as) {
  std::vector<std::string> out;
  const std::string by = fs::path(called_as).parent_path().parent_path().filename();
  for (const Caller& caller : kCallers) {
    const std::string packages = by == caller.folder ? packages_of_parent(caller.library) : "";
    for (const char* place : caller.places)
      if (!packages.empty() && place != nullptr) out.push_back(packages + "/" + place);
  }
  std::istringstream path(own_environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (!folder.empty()) out.push_back(folder);
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string root = own_environment(variable); !root.empty()) out.push_back(root + "/bin");
  out.push_back(std::string(kToolkit) + "/bin");
  return out;
}

// Several programs may start at once: a link is there, whole, or not.
base::Status place_link(const fs::path& target, const fs::path& link) {
  std::error_code failed;
  if (fs::read_symlink(link, failed) == target) return base::ok();
  const fs::path made = link.string() + "." + std::to_string(getpid());
  fs::remove(made, failed);
  fs::create_symlink(target, made, failed);
  if (!failed) fs::rename(made, link, failed);
  if (failed) return base::error(base::Code::kPermission, link.string() + ": " + failed.message());
  return base::ok();
}

// Links to all of a folder but `except`.
base::Status link_all(const fs::path& from, const fs::path& to, std::string_view except) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(from, none)) {
    if (entry.path().filename() == except) continue;
    if (auto placed = place_link(entry.path(), to / entry.path().filename()); !placed.ok()) return placed;
  }
  return base::ok();
}

std::string toolkit(Lookup old, void* of) {
  for (const std::string& root : {old("CUDA_HOME", of), old("CUDA_PATH", of), std::string(kToolkit)})
    if (!root.empty() && file_exists(root + "/bin")) return root;
  return "";
}

// `root` belongs to this user already.
base::Status make_tree(const fs::path& root, const std::string& command, const std::string& toolkit) {
  std::error_code failed;
  for (const char* folder : {"triton/bin", "cuda/bin"}) {
    fs::create_directories(root / folder, failed);
    if (failed)
      return base::error(base::Code::kPermission, (root / folder).string() + ": " + failed.message());
  }
  for (const char* link : {"triton/bin/ptxas", "triton/bin/ptxas-blackwell", "cuda/bin/ptxas"})
    if (auto placed = place_link(command, root / link); !placed.ok()) return placed;
  if (toolkit.empty()) return base::ok();
  if (auto linked = link_all(toolkit, root / "cuda", "bin"); !linked.ok()) return linked;
  return link_all(toolkit + "/bin", root / "cuda/bin", "ptxas");
}

}  // namespace

base::Result<std::string> find_ptxas(const std::string& called_as) {
  if (const std::string given = own_environment("TESSERA_PTXAS"); !given.empty()) {
    if (usable(given)) return given;
    return base::error(base::Code::kNotFound,
                       "TESSERA_PTXAS=" + given + " is not there, or no program, or Tessera's own");
  }
  std::string name = fs::path(called_as).filename();
  if (!name.starts_with("ptxas")) name = "ptxas";  // by our own name
  for (const std::string& folder : folders_to_search(called_as))
    for (const std::string& path : {folder + "/" + name, folder + "/ptxas"})
      if (usable(path)) return path;
  return base::error(base::Code::kNotFound,
                     "NVIDIA's ptxas is not in PATH, CUDA_HOME or /usr/local/cuda; TESSERA_PTXAS names it");
}

base::Result<KeptPtx> keep_ptx(const std::string& command, Lookup old, void* of) {
  const std::string cache = cache_folder(old, of);
  if (cache.empty()) return base::error(base::Code::kNotFound, "no folder for caches: HOME is not set");
  std::error_code failed;
  fs::create_directories(cache, failed);
  const std::string cuda = toolkit(old, of), all = cache + "/keep-ptx";
  const std::string of_what = command + "\n" + cuda;
  char hash[20];
  snprintf(hash, sizeof hash, "/%016llx",
           static_cast<unsigned long long>(base::fnv1a(of_what.data(), of_what.size())));
  const std::string root = all + hash;
  for (const std::string& folder : {all, root})
    if (auto own = base::make_own_folder(folder, base::FolderOf::kUser); !own.ok()) return own.error();
  if (auto made = make_tree(root, command, cuda); !made.ok()) return made.error();

  KeptPtx out;
  const auto set = [&](const std::string& name, const std::string& value, const char* consequence) {
    const std::string has = old(name.c_str(), of);
    if (has.empty())
      out.variables.push_back(name + "=" + value);
    else if (has != value)  // ours, where one client starts another
      out.notes.push_back(name + "=" + has + " is left as it is: " + consequence);
  };
  set("TRITON_PTXAS_PATH", root + "/triton/bin/ptxas", "what it compiles keeps no PTX");
  set("TRITON_PTXAS_BLACKWELL_PATH", root + "/triton/bin/ptxas-blackwell", "what it compiles keeps no PTX");
  // Else kernels would come from caches that were filled without PTX.
  set("TRITON_CACHE_DIR", root + "/triton-cache", "what was cached there without PTX has none");
  set("TORCHINDUCTOR_CACHE_DIR", root + "/inductor-cache", "what was cached there without PTX has none");
  const std::string flags = old("XLA_FLAGS", of);
  if (flags.find("--xla_gpu_cuda_data_dir=" + root + "/cuda") != std::string::npos) return out;
  if (flags.find("xla_gpu_cuda_data_dir") != std::string::npos) {
    out.notes.push_back("XLA_FLAGS names a toolkit and is left as it is: what XLA compiles keeps no PTX");
    return out;
  }
  std::string added = "--xla_gpu_cuda_data_dir=" + root + "/cuda";
  // A compiler inside XLA, which nobody can be put in front of.
  if (flags.find("xla_gpu_enable_libnvptxcompiler") == std::string::npos)
    added += " --xla_gpu_enable_libnvptxcompiler=false";
  out.variables.push_back("XLA_FLAGS=" + flags + (flags.empty() ? "" : " ") + added);
  return out;
}

}  // namespace tessera::cli
