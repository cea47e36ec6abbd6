// Parts of the container reader, private to kernels/image. All take a view whose length is known to be
// readable.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/image/image.h"

namespace tessera::image {

using Bytes = std::span<const uint8_t>;

inline constexpr uint32_t kWrapperMagic = 0x466243b1;
inline constexpr uint32_t kContainerMagic = 0xba55ed50;
inline constexpr uint32_t kElfMagic = 0x464c457f;
inline constexpr size_t kContainerHeaderBytes = 16;
inline constexpr size_t kElfHeaderBytes = 64;

// Entries of a container: docs/formats.md.
inline constexpr size_t kEntryHeaderBytes = 64;
inline constexpr uint16_t kKindPtx = 1, kKindElf = 2;
inline constexpr uint64_t kFlagsOfLinux64 = 0x11;  // in every entry that nvcc writes on Linux
inline constexpr uint64_t kFlagArchSpecific = 0x100000;
inline constexpr uint64_t kFlagFamilySpecific = 0x200000;
inline constexpr uint64_t kFlagBinaryOptions = 0x1000000;
inline constexpr uint64_t kFlagLz4 = 0x2000, kFlagZstd = 0x8000, kFlagsCompressed = kFlagLz4 | kFlagZstd;
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 30;
inline constexpr size_t kMaxOptionsBytes = 65536;

// Little-endian load; the caller has checked that offset + sizeof(T) <= bytes.size().
template <class T>
T load(Bytes bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// [offset, offset + length) lies inside n bytes.
inline bool inside(uint64_t offset, uint64_t length, uint64_t n) {
  return offset <= n && length <= n - offset;
}

// One container (magic 0xBA55ED50) at the start of `bytes`; appends its entries.
base::Status list_container(Bytes bytes, std::vector<Entry>* entries);

// The stored payload of an entry: all `claimed_bytes` of it.
base::Result<std::vector<uint8_t>> decompress(const Entry& entry);
// Its first bytes, as many as `out` takes; false if there are not as many.
bool decompress_start(const Entry& entry, std::span<uint8_t> out);

// Length of an ELF file as its headers tell; kInvalid if they do not hold together or exceed `limit`.
// `bytes` need only cover the ELF and section headers: `readable` is asked before each look behind what was
// seen.
struct ReadableBytes {  // how much behind `begin` may be read
  const uint8_t* begin;
  size_t limit;  // hard bound
  bool probe;    // true: ask the kernel page by page; false: the limit is known to be readable
  bool covers(uint64_t offset, uint64_t length) const;
};
base::Result<size_t> elf_size(const ReadableBytes& readable);
base::Result<Entry> list_cubin(Bytes elf);
bool is_cubin(Bytes elf);
bool is_relocatable(Bytes elf);  // of its first kElfHeaderBytes: a cubin that still has to be linked
// Sets arch_specific and family_specific of a cubin without a fat binary's flags.
void read_target_suffix(Bytes elf, Entry* entry);
// Contents of the sections of a host object that hold fat binaries (.nv_fatbin, __nv_relfatbin).
std::vector<Bytes> fatbin_sections(Bytes elf);

bool looks_like_ptx(Bytes text);
Entry list_ptx(Bytes text);

}  // namespace tessera::image
