// `tessera inspect`: what GPU code a file holds, which kernels can be cut into slices, which not and why.
// Works on programs, shared libraries, fat binaries, cubins and PTX; large files are read entry by
// entry: memory holds the payload of one.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/image/cubin.h"
#include "kernels/slice/globals.h"
#include "kernels/slice/slice.h"
#include "kernels/slice/stability.h"
#include "kernels/slice/width.h"

namespace tessera::cli {

struct InspectOptions {
  std::string file;
  std::string kernel;  // only this one; "" = all
  bool json = false;
  bool emit_slice = false;               // print the PTX with variants instead
  bool allow_order_dependent = false;    // as the run-time option
  std::string gpu;                       // only what can be cut there: h200, sm_90; "" = list everything
  std::string bit_stability = "strict";  // for `gpu`, as the run-time option
};

struct InspectedKernel {  // of PTX
  slice::KernelReport report;
  std::string
      source;  // "file.cu:12" of the instruction that refuses or waits, if the PTX has line information
  slice::BitStability stability;
  slice::PassedGlobals globals;  // state of its module, which a copy elsewhere needs
  std::string width_obstacle;    // why its dynamic shared memory must not be changed; "" = it may
};

struct InspectedEntry {
  size_t part = 0;  // container in the file
  image::Entry entry;
  uint64_t bytes = 0;   // decompressed
  std::string problem;  // why it could not be looked into; "" = it could
  std::vector<InspectedKernel> kernels;
  std::vector<image::CubinKernel> cubin_kernels;
};

// Calls `each` for every entry, in the order of the file; before it `progress` with the share of the GPU
// code's bytes that is done. An error: the file holds nothing that can be read.
base::Status inspect_bytes(std::span<const uint8_t> bytes, const InspectOptions& options,
                           const std::function<void(const InspectedEntry&)>& each,
                           const std::function<void(double)>& progress = {});

// `--gpu`: one sentence (or JSON) about the share that can be cut there, and what would help. Exit status.
int inspect_on_gpu(std::span<const uint8_t> bytes, const InspectOptions& options);

int inspect(const InspectOptions& options);  // exit status

// Names what an entry is compiled for: "sm_90a".
std::string target_of(const image::Entry& entry);

}  // namespace tessera::cli
