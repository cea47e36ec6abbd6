// The form of x86-64 of what ../written_stub.h describes.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>

namespace tessera::arch {

// Below the run path of libtessera.so. All GPU servers have such processors.
inline constexpr char kPlace[] = "/newer/glibc-hwcaps/x86-64-v2";
inline constexpr size_t kPage = 4096;
inline constexpr uint32_t kRelocatesByBase = R_X86_64_RELATIVE;

// One name. The displacements are those of the record's target, of the resolver's address (twice) and of the record.
//   +0  jmp *target
//   +8  cmpq $0, resolver;  je +31;  lea record, %r11;  jmp *resolver        the target before the first call
//   +31 movl $100, %eax;  ret                                               CUDA_ERROR_NO_DEVICE
inline constexpr uint8_t kStub[] = {0xff, 0x25, 0,    0, 0, 0,   0x90, 0x90,                       //
                                    0x48, 0x83, 0x3d, 0, 0, 0,   0,    0,    0x74, 0x0d,           //
                                    0x4c, 0x8d, 0x1d, 0, 0, 0,   0,    0xff, 0x25, 0,    0, 0, 0,  //
                                    0xb8, 100,  0,    0, 0, 0xc3};
inline constexpr size_t kStubBytes = 48, kFirstCall = 8;

template <class File>
void put_stub(File& file, size_t stub, size_t record, size_t resolver) {
  // A displacement of four bytes, `behind` bytes in front of the end of its instruction.
  const auto put_distance = [&](size_t at, size_t to, size_t behind = 0) {
    file.put(at, int32_t(to - (at + 4 + behind)));
  };
  file.put(stub, kStub);
  put_distance(stub + 2, record);
  put_distance(stub + 11, resolver, 1);
  put_distance(stub + 21, record);
  put_distance(stub + 27, resolver);
}

}  // namespace tessera::arch
