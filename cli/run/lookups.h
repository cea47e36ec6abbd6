// Programs that find the driver, cuBLAS or cuDNN by dlopen and dlsym: for them `tessera run` loads libtessera_audit.so without
// being asked (docs/library-calls.md). Main thread; reads the program's file and the names of folders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

// Why it is known to: "julia", "/venv/lib/python3.11/site-packages/jaxlib"; "" if it is not. `command`: as it is called, not empty. What
// a Python program will import is not known before it runs: it counts what its interpreter could import, unless its script
// says that it imports nothing but PyTorch, Triton, NumPy, the standard library and files beside it.
std::string why_looks_up(const std::vector<std::string>& command);

// Whether this version of glibc ("2.36") is 2.`first_minor` or newer.
bool glibc_is_from(unsigned first_minor, std::string_view libc_version);

// Whether the loader of this version of glibc tells an audit library of all that it binds: from 2.35 on. An older one
// tells of parts only, and `tessera run` does not choose the audit library by itself.
bool tells_of_all_bindings(std::string_view libc_version);
// True if the machine's glibc tells an audit library of all bindings.
bool tells_of_all_bindings();

// Folders from which this interpreter imports. Of the environment, PYTHONPATH and HOME count.
std::vector<std::string> python_packages(const std::string& interpreter);

}  // namespace tessera::cli
