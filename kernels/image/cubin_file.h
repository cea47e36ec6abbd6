// A cubin taken apart for editing: sections whose bytes may grow, and a layout in which everything else stays
// what it was. Of code.cc, and of tests/device/prologue. Untrusted bytes. Any thread.
#pragma once

#include <elf.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/image/internal.h"

namespace tessera::image {

struct CubinSection {
  Elf64_Shdr header;  // sh_offset and sh_size as they were read: write() sets them
  std::string name;
  std::vector<uint8_t> bytes;  // empty where the file holds none
};

struct CubinFile {
  Elf64_Ehdr header;
  std::vector<CubinSection> sections;  // by index, [0] is the empty one
  std::vector<Elf64_Phdr> segments;

  CubinSection* find(std::string_view name);
};

// kUnsupported: what lies in the file is not in the order of the section table, followed by that and by the
// program headers, as ptxas writes it.
base::Result<CubinFile> parse_cubin_file(Bytes elf);

// The file again. Sections come in their order, at their alignment and with the gaps they had; a segment
// begins and ends with the sections that it began and ended with. Unedited, the bytes are the same.
base::Result<std::vector<uint8_t>> write_cubin_file(const CubinFile& file);

}  // namespace tessera::image
