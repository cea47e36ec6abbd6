#include "profiles/folders.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tessera::profiles {
namespace {

constexpr char kSystemFolder[] = "/var/lib/tessera/profiles";

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

}  // namespace

std::string user_folder() {
  if (const std::string given = variable("TESSERA_PROFILES"); !given.empty())
    return given == "off" ? "" : given.substr(0, given.find(':'));
  if (const std::string data = variable("XDG_DATA_HOME"); !data.empty() && data[0] == '/')
    return data + "/tessera/profiles";
  if (geteuid() == 0) return kSystemFolder;
  const std::string home = variable("HOME");
  return home.empty() || home[0] != '/' ? "" : home + "/.local/share/tessera/profiles";
}

std::vector<std::string> shared_folders() {
  if (const std::string given = variable("TESSERA_PROFILES"); !given.empty()) {
    std::vector<std::string> rest;
    for (size_t at = given.find(':'); at != given.npos;) {
      const size_t next = given.find(':', at + 1);
      rest.push_back(given.substr(at + 1, next == given.npos ? next : next - at - 1));
      at = next;
    }
    return rest;
  }
  std::vector<std::string> out = {kSystemFolder};
  char exe[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
  std::string path = length > 0 ? std::string(exe, size_t(length)) : std::string();
  for (int up = 0; up < 2 && !path.empty(); ++up)
    path.resize(path.rfind('/') == path.npos ? 0 : path.rfind('/'));
  if (!path.empty()) out.push_back(path + "/share/tessera/profiles");
  return out;
}

bool make_folder(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    if (mkdir(path.substr(0, at).c_str(), 0700) != 0 && errno != EEXIST && at == path.npos) return false;
    if (at == path.npos) return true;
  }
}

}  // namespace tessera::profiles
