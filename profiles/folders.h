// The folders of profiles: the user's (written by tesserad and `tessera profile --install`), the system's and those
// that came with the installation. Used by scheduler_daemon and cli. No state; reads the environment.
#pragma once

#include <string>
#include <vector>

namespace tessera::profiles {

// The first folder of $TESSERA_PROFILES; else $XDG_DATA_HOME/tessera/profiles,
// ~/.local/share/tessera/profiles, or as root /var/lib/tessera/profiles. "" if TESSERA_PROFILES is "off" or
// there is no home: nothing is kept then.
std::string user_folder();

// In order of precedence behind the user's: the rest of $TESSERA_PROFILES (separated by colons); without that
// variable the system's and the shipped one (beside the running executable). May not exist.
std::vector<std::string> shared_folders();

// Creates the folder and what is above it (0700 where it has to be made). False: errno says why.
bool make_folder(const std::string& path);

}  // namespace tessera::profiles
