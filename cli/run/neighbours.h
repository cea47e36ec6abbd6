// Other libraries that get between a program and the driver: what they override, and what that means beside Tessera
// (docs/neighbours.md). They are known by what they export; a name only makes the text friendlier. `tessera run` and
// `tessera doctor` say it. Main thread; reads files, keeps nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

struct Overrides {
  size_t driver = 0;  // functions that Tessera knows as the driver's
  bool dlsym = false, dlopen = false;
  bool allocator = false;  // cudaMalloc
  bool any() const { return driver != 0 || dlsym || dlopen || allocator; }
};

// The functions that a library exports say what it overrides. The C library and CUDA's runtime override nothing: those names are
// theirs. Pure.
Overrides overrides_of(std::span<const std::string> exported);
std::string to_text(const Overrides& overrides);

// The place in the loader's search for names, seen from libtessera.so.
enum class Order { kBefore, kBehind };
// Says what the library sees of a program's calls, and what Tessera sees. Pure.
std::string meaning_of(const Overrides& overrides, Order order);

struct Preload {
  std::string entry, from;  // as written; LD_PRELOAD, or the loader's list
  Order order = Order::kBefore;
};
// Entries but Tessera's own, in the loader's order. `list`: text of /etc/ld.so.preload, which the loader reads behind the variable. Pure.
std::vector<Preload> preloads(std::string_view variable, std::string_view list);

struct Neighbour {
  std::string path;
  std::string finding;  // "PATH (NAME, LD_PRELOAD) overrides ..."
  std::string meaning;
};

// Every program of this environment meets these: preloaded libraries, and tools that the driver or NVTX loads.
std::vector<Neighbour> neighbours_of_environment(const std::string& list_file = "/etc/ld.so.preload");
// Adds those among the files of libraries that a program needs, but none that is there already.
void add_needed_neighbours(std::span<const std::string> libraries, std::vector<Neighbour>* out);
// Files of the libraries that `program` names itself. The loader has the last word: what its caches do not say is left out.
std::vector<std::string> needed_libraries(const std::string& program);

}  // namespace tessera::cli
