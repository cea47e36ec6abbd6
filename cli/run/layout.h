// The parts of this installation, found from the place of the running executable:
//   PREFIX/bin/tessera  PREFIX/lib/libtessera.so  PREFIX/lib/softgpu/libcuda.so.1  PREFIX/share/tessera/...
// A build folder has the same shape. Called once by the commands; no state.
#pragma once

#include <string>

namespace tessera::cli {

struct Layout {
  std::string prefix;         // absolute
  std::string bin;            // PREFIX/bin
  std::string preload;        // PREFIX/lib/libtessera.so
  std::string preload_alias;  // PREFIX/lib/libtessera_alias.so
  std::string softgpu;        // PREFIX/lib/softgpu, holds libcuda.so.1 and libcudart.so.13
  std::string share;          // PREFIX/share/tessera
  std::string preload_ops;    // PREFIX/lib/libtessera_ops.so
  std::string audit;          // PREFIX/lib/libtessera_audit.so
  std::string ranges;         // PREFIX/lib/libtessera_ranges.so
};

inline Layout layout_below(const std::string& prefix) {
  Layout at;
  at.prefix = prefix;
  at.bin = prefix + "/bin";
  at.preload = prefix + "/lib/libtessera.so";
  at.preload_alias = prefix + "/lib/libtessera_alias.so";
  at.preload_ops = prefix + "/lib/libtessera_ops.so";
  at.audit = prefix + "/lib/libtessera_audit.so";
  at.ranges = prefix + "/lib/libtessera_ranges.so";
  at.softgpu = prefix + "/lib/softgpu";
  at.share = prefix + "/share/tessera";
  return at;
}
Layout find_layout();
bool file_exists(const std::string& path);

// The name by which a command is called: a path, or a name in PATH; "" if there is no such program.
std::string find_in_path(const std::string& name);

// Why the loader cannot preload this file: one line; "" if it can. Cheap: its headers are read.
std::string why_not_loadable(const std::string& path);

// The driver of programs: TESSERA_DRIVER, a file or its folder, else the name by which the loader searches.
std::string meant_driver();

// Why there is no driver for programs: one line; "" if there is one. Cheap: it is opened, not initialised.
std::string why_no_driver();

// True if that driver initialises and shows at least one device. `why_not` gets one
// line. Opens the driver in a forked child, so that the caller stays without a CUDA context.
bool real_gpu_present(std::string* why_not);

}  // namespace tessera::cli
