// Lists the files that are NVIDIA's libraries: their kernels are never modified, in files or in memory (D12). One list
// for the preload library and `tessera inspect`. Pure; any thread.
#pragma once

#include <string_view>

namespace tessera::image {

// `file_name`: without folders, "libcublas.so.13".
inline bool vendor_library(std::string_view file_name) {
  constexpr std::string_view kPrefixes[] = {"libcublas",   "libcudnn",  "libcufft",      "libcusolver",
                                            "libcusparse", "libcurand", "libnccl",       "libnvshmem",
                                            "libnpp",      "libnvjpeg", "libcusparseLt", "libcutensor",
                                            "libnvinfer",  "libcudss",  "libcufile"};
  for (const std::string_view prefix : kPrefixes)
    if (file_name.starts_with(prefix)) return true;
  return false;
}

}  // namespace tessera::image
