// The form of aarch64 of what ../written_stub.h describes.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>

namespace tessera::arch {

// No folder below a run path is one for newer loaders alone, and older ones end programs for such a library.
inline constexpr char kPlace[] = "";
inline constexpr size_t kPage = 1 << 16;  // the largest of such kernels
inline constexpr uint32_t kRelocatesByBase = R_AARCH64_RELATIVE;

// One name. Loads and `adr` reach 1 MiB: some 10,000 names.
//   +0  ldr x16, target;  br x16
//   +8  ldr x17, resolver;  cbz x17, +24;  adr x16, record;  br x17         the target before the first call
//   +24 mov w0, #100;  ret                                                  CUDA_ERROR_NO_DEVICE
inline constexpr uint32_t kStub[] = {0x58000010, 0xd61f0200, 0x58000011, 0xb4000071,
                                     0x10000010, 0xd61f0220, 0x52800c80, 0xd65f03c0};
inline constexpr size_t kStubBytes = 32, kFirstCall = 8;

template <class File>
void put_stub(File& file, size_t stub, size_t record, size_t resolver) {
  file.put(stub, kStub);
  // All three are of aligned words, so that their lowest two bits are 0, and the others stand at bit 5.
  const auto put_distance = [&](uint32_t word, size_t to) {
    const size_t at = stub + word * sizeof(uint32_t);
    file.put(at, kStub[word] | (uint32_t(to - at) / 4 & 0x7ffff) << 5);
  };
  put_distance(0, record);
  put_distance(2, resolver);
  put_distance(4, record);
}

}  // namespace tessera::arch
