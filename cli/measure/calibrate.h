// `tessera calibrate`: measures the present GPU with the sample program `calibrate` and writes a description
// like those in profiles/gpus, every figure with where it comes from. Main thread only.
#pragma once

#include <string>

#include "base/result.h"
#include "profiles/gpu_description.h"

namespace tessera::cli {

struct CalibrateOptions {
  std::string gpu = "auto";  // auto: the machine's GPU; soft: the software GPU
  std::string output;        // "" = standard output
};

// The description's text from what the program printed (one JSON object). `base`: for what cannot be measured
// from within one program; null: usual values, marked as assumed. The text is one that load_gpu_description
// accepts. Errors: the JSON is not what the program prints, or figures make no sense.
base::Result<std::string> description_of(const std::string& measured_json,
                                         const profiles::GpuDescription* base);

// Exit status: 0; 2 bad usage, no such GPU; 1 the measurement failed.
int calibrate(const CalibrateOptions& options);

}  // namespace tessera::cli
