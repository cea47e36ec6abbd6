#include <stdio.h>
#include <unistd.h>

#include <fstream>

#include "profiles/images.h"

namespace tessera::profiles {

std::string image_path(const std::string& folder, uint64_t hash) {
  char name[32];
  snprintf(name, sizeof name, "image-%016llx.ptx", (unsigned long long)hash);
  return folder + "/" + name;
}

void keep_image(const std::string& folder, uint64_t image_hash, std::string_view ptx) {
  const std::string path = image_path(folder, image_hash);
  if (access(path.c_str(), F_OK) == 0) return;
  const std::string temporary = path + "." + std::to_string(getpid());
  std::ofstream file(temporary, std::ios::binary);
  file.write(ptx.data(), std::streamsize(ptx.size()));
  file.close();
  if (!file || rename(temporary.c_str(), path.c_str()) != 0) unlink(temporary.c_str());
}

}  // namespace tessera::profiles
