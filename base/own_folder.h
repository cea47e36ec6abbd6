// A folder of ours in a place where others may put things, such as /tmp: whose is it? Decided on its
// descriptor, so that nobody can exchange it in between; a symbolic link is nobody's folder. Sockets, runtime
// files and caches all ask here. Any thread; slow path.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "base/scoped_fd.h"

namespace tessera::base {

enum class FolderOf {
  kUser,          // belongs to this user, nobody else can write
  kUserOrSystem,  // also root's, and one like /tmp, where others can write but not replace what is not theirs
};

// The folder, as a descriptor that names it (O_PATH). Errors: kNotFound; kInvalid: something else has its
// name; kPermission: it is another user's, or others can write.
Result<ScopedFd> open_own_folder(const std::string& path, FolderOf whose);

// Likewise; made first if it is not there. Its parent must be.
Result<ScopedFd> make_own_folder(const std::string& path, FolderOf whose, mode_t mode = 0700);

}  // namespace tessera::base
