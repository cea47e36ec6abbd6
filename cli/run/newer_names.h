// The library by which programs find what the driver exports and this release of Tessera does not know: libtessera.so has
// the driver's SONAME, so the loader looks for such a name there. libtessera.so and libtessera_alias.so name this library as
// an auxiliary one (DT_AUXILIARY), so that the loader looks into it wherever it looks into them. It has nothing but those
// names; each goes to tessera_unlisted_call of libtessera.so at its first call, and to the driver's function from then on,
// past the gate. It needs no other library: without libtessera.so its functions answer that there is no GPU.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

inline constexpr char kNewerNames[] = "libtessera_newer.so";  // SONAME

// Functions of this driver that entries.def does not list, sorted. Opens it; none where that fails.
std::vector<std::string> newer_names(const std::string& driver);

// The library, as the bytes of its file. At least one name, none twice.
std::string newer_names_library(std::span<const std::string> names);

// Before glibc 2.32 a program ends when it opens a library whose auxiliary library is loaded (sourceware bug 16272; seen with 2.31).
bool loader_takes_newer_names(std::string_view libc_version);

// Writes that library into the cache and returns its path. kUnsupported: not with this glibc.
base::Result<std::string> keep_newer_names(std::span<const std::string> names);

// Writes that library for programs that `tessera run` does not start, to the place where libtessera.so in `folder` looks for
// it by itself. The folder may be mounted in a container. Loaders before glibc 2.33 know no such places, so they do not end programs
// for it. Without names there is none.
base::Status install_newer_names(std::span<const std::string> names, const std::string& folder);
// The same for the driver that programs get, in this installation; without one nothing changes. Says on stderr if it fails.
void install_newer_names();

}  // namespace tessera::cli
