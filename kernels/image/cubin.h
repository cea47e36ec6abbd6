// Reads the metadata of machine code about its kernels: ELF symbols and sections, and the attribute records of .nv.info
// (format: a byte for the form, a byte for the attribute, then two bytes of value or of length). Untrusted like all
// containers: lengths are checked, and unknown records are listed, never guessed. Any thread. Sources: observation of
// cubins of toolkits 12 and 13; docs/formats.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/image/image.h"

namespace tessera::image {

struct CubinParameter {
  uint32_t index = 0, offset = 0, bytes = 0;
};

struct CubinKernel {
  std::string name;
  uint32_t registers = 0;  // per thread; 0 = not said
  uint64_t code_bytes = 0;
  uint64_t shared_bytes = 0;    // static
  uint64_t constant_bytes = 0;  // of its constant bank 0, parameters included
  uint32_t param_bytes = 0;
  std::vector<CubinParameter> parameters;   // ascending by index
  uint32_t barriers = 0;                    // named barriers used; 0 = not said
  uint32_t max_threads = 0;                 // .maxntid product; 0 = none
  bool cluster = false;                     // any cluster attribute
  std::array<uint32_t, 3> cluster_shape{};  // fixed shape (blocks); zeros: none, or chosen at launch
  uint32_t max_cluster_rank = 0;            // 0 = not said
  std::vector<uint8_t> unknown_attributes;  // each once
};

// Kernels in the order of the symbol table. kInvalid: not machine code, or inconsistent.
base::Result<std::vector<CubinKernel>> cubin_kernels(std::span<const uint8_t> code);

// A variable in it lies in managed memory (`__managed__`). Of machine code the symbols say so, of a text the word; what
// cannot be read may have one.
bool has_managed_variable(EntryKind kind, std::span<const uint8_t> payload);

}  // namespace tessera::image
