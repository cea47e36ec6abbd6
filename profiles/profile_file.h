// Profile files: read, replaced as a whole, merged under a lock. Several processes may write the same file:
// none loses what another wrote, and a reader sees the old file or the new one, never part of one. A file
// that cannot be understood is named in the error and left as it is. Any thread; blocking file operations.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "profiles/kernel_profile.h"

namespace tessera::profiles {

base::Result<Profile> load_profile(const std::string& path);

// Writes PATH.new.<pid>.<n>, syncs it, renames it to PATH.
base::Status save_profile(const Profile& profile, const std::string& path);

// Adds to what the file holds (none yet is fine) while holding a lock on PATH.lock, which stays. The result
// is what the file holds now. Records of `gpus` are classified anew after merging.
// `most_kernels`: beyond that, records with least time are dropped.
base::Result<Profile> merge_into_file(const Profile& addition, const std::string& path,
                                      const std::vector<GpuDescription>& gpus = {},
                                      size_t most_kernels = SIZE_MAX);

// Removes PATH.new.* that processes left which were killed while they wrote.
void remove_leftovers(const std::string& path);

}  // namespace tessera::profiles
