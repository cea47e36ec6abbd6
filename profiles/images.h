// The PTX of the images that a profiled program loaded, kept beside the run's records as image-<hash>.ptx by
// whoever saw them (software GPU, CUPTI collector), and the verdict on cutting that follows from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "profiles/kernel_profile.h"

namespace tessera::profiles {

std::string image_path(const std::string& folder, uint64_t image_hash);

// Writes the file if it is not there yet; never half a file. Failure only costs the verdict.
void keep_image(const std::string& folder, uint64_t image_hash, std::string_view ptx);

// Fills `cut` and `cut_reason` of every record whose image is in the folder; others get the reason why not.
void add_verdicts(Profile& profile, const std::string& folder);

}  // namespace tessera::profiles
