#include "interpose/operations/lt_places.h"

#include <algorithm>
#include <span>

#include "interpose/operations/loaded_library.h"

namespace tessera::library {
namespace {

// An attribute, its size, and two values that its setter takes: the first differs from the default in its lowest byte.
struct Row {
  int number;
  uint32_t bytes;
  uint64_t values[2];
};
constexpr uint64_t kF16 = 2, kBF16 = 14, kLarge = (uint64_t{1} << 40) + 3;
constexpr Row kOfLayouts[] = {{kLayoutType, 4, {kF16, kBF16}},
                              {kLayoutRows, 8, {3, kLarge}},
                              {kLayoutColumns, 8, {3, kLarge}},
                              {kLayoutBatch, 4, {3, 1'000}}};
constexpr Row kOfMatmuls[] = {
    {kComputeType, 4, {64, 70}},  // 16F, 64F
    {kTransposeA, 4, {1, 2}},        {kEpilogue, 4, {2, 4}},   {kAuxiliaryType, 4, {kF16, kBF16}},
    {kVectorType, 4, {kF16, kBF16}}, {kScaleModeA, 4, {1, 2}}, {kScaleModeB, 4, {1, 2}},
    {kScaleModeC, 4, {1, 2}},        {kScaleModeD, 4, {1, 2}}, {kOutScaleModeD, 4, {1, 2}}};

template <size_t kBytes>
uint32_t place_of(const Row& row, const char (&made)[kBytes], SetAttribute set, GetAttribute get) {
  uint32_t place = kNoPlace;
  for (const uint64_t value : row.values) {
    char changed[kBytes];
    memcpy(changed, made, kBytes);
    uint64_t read = 0;
    size_t written = 0;
    if (set(changed, row.number, &value, row.bytes) != 0 ||
        get(changed, row.number, &read, row.bytes, &written) != 0 || read != value)
      return kNoPlace;
    if (place == kNoPlace) place = uint32_t(std::mismatch(changed, changed + kBytes, made).first - changed);
    if (place > kBytes - row.bytes || memcmp(changed + place, &value, row.bytes) != 0) return kNoPlace;
    memcpy(changed + place, made + place, row.bytes);
    if (memcmp(changed, made, kBytes) != 0) return kNoPlace;
  }
  return place;
}

// Says whether all have one.
template <size_t kWords, class Attribute, uint32_t kAttributes, class Init>
bool find_all(std::span<const Row> rows, SetAttribute set, Init init,
              AttributeReader<Attribute, kAttributes>* out) {
  std::ranges::fill(out->places, kNoPlace);
  char made[kWords * 8] = {};
  if (!set || !are_whole_in<kWords>(init) || !make(init, made, sizeof made)) return false;
  bool all = true;
  for (const Row& row : rows) {
    const uint32_t place = out->places[row.number] = place_of(row, made, set, out->get);
    all = all && place != kNoPlace;
  }
  return all;
}

}  // namespace

bool find_places(void* library, LtPlaces* out) {
  if (!find_function(library, "cublasLtMatrixLayoutGetAttribute", out->layout.get) ||
      !find_function(library, "cublasLtMatmulDescGetAttribute", out->matmul.get))
    return false;
  SetAttribute set_layout = nullptr, set_matmul = nullptr;
  InitLayout init_layout = nullptr;
  InitMatmul init_matmul = nullptr;
  find_function(library, "cublasLtMatrixLayoutSetAttribute", set_layout);
  find_function(library, "cublasLtMatrixLayoutInit_internal", init_layout);
  find_function(library, "cublasLtMatmulDescSetAttribute", set_matmul);
  find_function(library, "cublasLtMatmulDescInit_internal", init_matmul);
  const bool of_layouts = find_all<kLayoutWords>(kOfLayouts, set_layout, init_layout, &out->layout);
  const bool of_matmuls = find_all<kMatmulWords>(kOfMatmuls, set_matmul, init_matmul, &out->matmul);
  out->have_all = of_layouts && of_matmuls;
  return true;
}

}  // namespace tessera::library
