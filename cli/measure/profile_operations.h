// The part of `tessera profile` that knows of library calls (docs/library-calls.md): has them counted, reads what was counted,
// prints it. Main thread only.
#pragma once

#include <string>
#include <vector>

#include "cli/run/layout.h"
#include "profiles/kernel_profile.h"

namespace tessera::cli {

inline constexpr char kOperationTable[] = "operations.table";  // in the folder of a run's records

// Has the programs that are started with `environment` count into a file in `folder`. Where that cannot be, standard
// error says so and they are started without.
void count_operations(const Layout& layout, const std::string& folder, std::vector<std::string>& environment);

// Adds their counts. `gpu`: the one that they used, null if there are several.
void add_operations(const std::string& folder, const profiles::GpuDescription* gpu, profiles::Profile& out);

// Those that take most time, as a table for people; "" if there are none.
std::string top_operations(const profiles::Profile& profile, size_t n);

}  // namespace tessera::cli
