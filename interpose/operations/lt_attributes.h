// Attributes of cuBLASLt's descriptors, and functions that make and read them, by the numbers of cublasLt.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tessera::library {

enum LayoutAttribute : int {
  kLayoutType = 0,
  kLayoutOrder = 1,
  kLayoutRows = 2,
  kLayoutColumns = 3,
  kLayoutLeading = 4,
  kLayoutBatch = 5,
  kLayoutStride = 6,
  kLayoutPlaneOffset = 7,
  kLayoutBatchMode = 8,
};
enum MatmulAttribute : int {
  kComputeType = 0,
  kScaleType = 1,
  kPointerMode = 2,
  kTransposeA = 3,
  kTransposeB = 4,
  kTransposeC = 5,
  kFillMode = 6,
  kEpilogue = 7,
  kBiasPointer = 8,
  kBiasStride = 10,
  kSmTarget = 15,
  kScalePointerA = 17,
  kScalePointerB = 18,
  kScalePointerC = 19,
  kScalePointerD = 20,
  kLargestOfD = 21,
  kAuxiliaryType = 22,
  kLargestOfAuxiliary = 24,
  kFastAccumulation = 25,
  kVectorType = 26,
  kScaleModeA = 31,
  kScaleModeB = 32,
  kScaleModeC = 33,
  kScaleModeD = 34,
  kOutScalePointerD = 36,
  kOutScaleModeD = 37,
  kEmulation = 38,
};
inline constexpr int kDefaultEpilogue = 1;
// 64-bit words of a layout and of a product, as cublasLt.h declares them for programs that keep their own.
inline constexpr size_t kLayoutWords = 8, kMatmulWords = 32;

using GetAttribute = int (*)(const void* descriptor, int attribute, void* to, size_t bytes, size_t* written);
using SetAttribute = int (*)(void* descriptor, int attribute, const void* from, size_t bytes);
using InitLayout = int (*)(void* layout, size_t bytes, int type, uint64_t rows, uint64_t columns,
                           int64_t leading);
using InitMatmul = int (*)(void* matmul, size_t bytes, int compute_type, int scale_type);

// Any one, in storage like that of programs. False: it cannot be made.
inline bool make(InitLayout init, void* at, size_t bytes) {
  constexpr int kF32 = 0;
  return init && init(at, bytes, kF32, 1, 1, 1) == 0;
}
inline bool make(InitMatmul init, void* at, size_t bytes) {
  constexpr int kF32 = 0, kComputeIn32F = 68;
  return init && init(at, bytes, kComputeIn32F, kF32) == 0;
}

// Is that all that the library has of a descriptor? It makes an older kind of one where there is less room.
template <size_t kWords, class Init>
bool are_whole_in(Init init) {
  uint64_t made[2 * kWords] = {}, with_room[2 * kWords] = {};
  return make(init, made, kWords * 8) && make(init, with_room, sizeof with_room) &&
         memcmp(made, with_room, sizeof made) == 0;
}

}  // namespace tessera::library
