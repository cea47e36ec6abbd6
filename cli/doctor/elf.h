// Reads the dynamic section of a program, the names of drivers in it, and what a library exports. Files are untrusted: libelf reads them.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

struct ElfFacts {
  std::string interpreter;  // PT_INTERP: the dynamic loader that starts it and reads LD_PRELOAD; "": none
  bool shared = false;      // ET_DYN
  std::vector<std::string> needed;
  std::string run_path;   // DT_RUNPATH, else DT_RPATH
  bool gpu_code = false;  // a section of fat binaries
  // Strings of its data that name a driver: "libcuda.so.1", or with a folder.
  std::vector<std::string> driver_names;
};

// Looking for names reads all of the program's constants.
enum class DriverNames { kFind, kSkip };
base::Result<ElfFacts> read_elf(const std::string& path, DriverNames names = DriverNames::kFind);

// Functions that a library exports, without weak ones. Sanitizers export what they intercept as weak symbols.
base::Result<std::vector<std::string>> exported_functions(const std::string& path);

}  // namespace tessera::cli
