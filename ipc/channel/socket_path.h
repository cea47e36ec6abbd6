// The place where tesserad listens: one answer for the daemon, the preload library and the command line. Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace tessera::ipc {

// Returns the place where a daemon of this user listens: TESSERA_SOCKET, else $XDG_RUNTIME_DIR/tessera/tesserad.sock, else (as
// root) /run/tessera/tesserad.sock, else /tmp/tessera-<uid>/tesserad.sock. Does not create anything. An error
// says what is wrong with TESSERA_SOCKET.
base::Result<std::string> own_socket_path();

// Returns the place where a client looks: the same, but /run/tessera/tesserad.sock if this user has no daemon and the machine
// has. `skipped`: what is wrong with the user's own place, if that is why; for people.
base::Result<std::string> default_socket_path(std::string* skipped = nullptr);
std::string own_or_system_socket(const std::string& own, const std::string& system, std::string* skipped);

// The socket for operators, beside the clients': x.sock -> x-control.sock.
std::string control_socket_path(const std::string& socket_path);

// For a client: refuses a socket folder that another unprivileged user owns or may write, or that is a
// symbolic link (somebody could impersonate the daemon there). A folder that does not exist is fine: the
// connection then fails by itself.
base::Status check_socket_folder(const std::string& socket_path);

// For the daemon: creates the folder (0700) if missing, then the same check.
base::Status prepare_socket_folder(const std::string& socket_path);

}  // namespace tessera::ipc
