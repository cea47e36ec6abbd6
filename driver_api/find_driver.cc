#include "driver_api/find_driver.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/machine.h"
#include "base/scoped_fd.h"

namespace tessera::driver_api {
namespace {

constexpr const char* kSoname = "libcuda.so.1";
constexpr size_t kMaxCacheBytes = 64u << 20;

// Layout of /etc/ld.so.cache, as glibc's sysdeps/generic/dl-cache.h describes it.
constexpr std::string_view kNewMagic = "glibc-ld.so.cache1.1";
constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr size_t kOldHeaderBytes = 16, kOldEntryBytes = 12;
constexpr size_t kHeaderBytes = 48, kEntryBytes = 24;

uint32_t read_u32(std::string_view bytes, size_t offset) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string_view string_at(std::string_view bytes, uint32_t offset) {
  if (offset >= bytes.size()) return {};
  const std::string_view tail = bytes.substr(offset);
  const size_t end = tail.find('\0');
  return end == std::string_view::npos ? std::string_view{} : tail.substr(0, end);
}

std::string read_file(const char* path) {
  const base::ScopedFd fd(open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd.valid()) return text;
  char buffer[16384];
  for (ssize_t n; (n = read(fd.get(), buffer, sizeof buffer)) > 0 && text.size() < kMaxCacheBytes;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

bool is_file(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

std::string absolute(const std::string& path) {
  if (!path.empty() && path[0] == '/') return path;
  char cwd[PATH_MAX];
  if (getcwd(cwd, sizeof cwd) == nullptr) return {};
  return std::string(cwd) + "/" + path;
}

void add(std::vector<std::string>* out, const std::string& path) {
  if (path.empty() || !is_file(path)) return;
  if (std::find(out->begin(), out->end(), path) == out->end()) out->push_back(path);
}

void add_folder(std::vector<std::string>* out, std::string_view folder, std::string_view soname) {
  // An empty element of LD_LIBRARY_PATH is the current folder, as for the loader.
  const std::string f = folder.empty() ? std::string(".") : std::string(folder);
  add(out, absolute(f + "/" + std::string(soname)));
}

}  // namespace

SearchPlaces search_places() {
  SearchPlaces places;
  places.explicit_path = getenv("TESSERA_DRIVER");
  places.library_path = getenv("LD_LIBRARY_PATH");
  return places;
}

bool is_toolkit_stub(const std::string& path) {
  char real[PATH_MAX];
  const std::string resolved = realpath(path.c_str(), real) != nullptr ? real : path;
  return path.find("/stubs/") != std::string::npos || resolved.find("/stubs/") != std::string::npos;
}

std::vector<std::string> cached_paths(std::string_view cache, std::string_view soname) {
  std::vector<std::string> out;
  if (cache.starts_with(kOldMagic) && cache.size() >= kOldHeaderBytes) {
    // Old and new format in one file: the new one follows, 8-aligned.
    const size_t entries = read_u32(cache, 12);
    if (entries > cache.size() / kOldEntryBytes) return out;
    const size_t skip = (kOldHeaderBytes + entries * kOldEntryBytes + 7) & ~size_t{7};
    if (skip >= cache.size()) return out;
    cache.remove_prefix(skip);
  }
  if (!cache.starts_with(kNewMagic) || cache.size() < kHeaderBytes) return out;
  const size_t entries = read_u32(cache, kNewMagic.size());
  if (entries > (cache.size() - kHeaderBytes) / kEntryBytes) return out;
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = kHeaderBytes + i * kEntryBytes;
    if (read_u32(cache, at) != base::kLoaderCacheFlags) continue;
    if (string_at(cache, read_u32(cache, at + 4)) != soname) continue;
    const std::string_view path = string_at(cache, read_u32(cache, at + 8));
    if (!path.empty()) out.emplace_back(path);
  }
  return out;
}

std::vector<std::string> library_candidates(std::string_view soname, const SearchPlaces& places) {
  std::vector<std::string> out;
  if (places.library_path != nullptr && places.library_path[0] != 0) {
    std::string_view rest = places.library_path;
    for (bool more = true; more;) {
      const size_t end = rest.find_first_of(":;");
      add_folder(&out, rest.substr(0, end), soname);
      more = end != std::string_view::npos;
      if (more) rest.remove_prefix(end + 1);
    }
  }
  if (places.cache_file != nullptr) {
    for (const std::string& path : cached_paths(read_file(places.cache_file), soname)) add(&out, path);
  }
  for (const std::string& folder : places.default_folders) add_folder(&out, folder, soname);
  return out;
}

std::vector<std::string> driver_candidates(const SearchPlaces& places) {
  std::vector<std::string> out;
  if (places.explicit_path != nullptr && places.explicit_path[0] != 0) {
    const std::string path = absolute(places.explicit_path);
    add(&out, path);
    if (out.empty()) add_folder(&out, path, kSoname);
    return out;
  }
  if (places.opened_path != nullptr) add(&out, places.opened_path);
  for (const std::string& path : library_candidates(kSoname, places)) add(&out, path);
  return out;
}

}  // namespace tessera::driver_api
