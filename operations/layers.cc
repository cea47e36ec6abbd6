#include "operations/layers.h"

#include <algorithm>

namespace tessera::operations {
namespace {

std::optional<Count> flop_of(Family family, const LayerSizes& sizes) {
  [[maybe_unused]] const auto& [x, y, z, c, r, s] = sizes;
  switch (family) {
#define TS_LAYER(name, flop) \
  case Family::name:         \
    return flop;
#include "operations/layers.def"
#define TS_FAMILY(name, layout, n_dims, flop, complex_flop, a, b, c) case Family::name:
#include "operations/families.def"
    return std::nullopt;
  }
  return std::nullopt;
}

// Matrices that the input and the hidden state are multiplied with.
constexpr uint64_t gates_of(int32_t cell) {
  enum Cell : int32_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };
  switch (cell) {
    case kRelu:
    case kTanh:
      return 1;
    case kLstm:
      return 4;
    case kGru:
      return 3;
    default:
      return 0;
  }
}

}  // namespace

std::optional<Cost> layer_cost(Family family, const LayerSizes& sizes,
                               std::span<const LayerOperand> operands) {
  const std::optional<Count> flop = flop_of(family, sizes);
  if (!flop) return std::nullopt;
  Count bytes;
  for (const LayerOperand& operand : operands) {
    const uint32_t bits = bits_of(operand.type);
    if (bits == 0) return std::nullopt;
    bytes = bytes + operand.passes * bytes_of(operand.elements, bits);
  }
  return Cost{flop->value, bytes.value};
}

std::optional<Count> recurrent_flop(const Recurrent& network) {
  const uint64_t gates = gates_of(network.cell);
  const int64_t sizes[] = {network.input, network.hidden, network.projection, network.layers,
                           network.time_steps};
  if (gates == 0 || std::ranges::any_of(sizes, [](int64_t size) { return size < 0; })) return std::nullopt;
  const auto count = [](int64_t n) { return Count{static_cast<uint64_t>(n)}; };
  const Count hidden = count(network.hidden), result = count(network.projection),
              layers = count(network.layers);
  if (layers.value == 0) return Count{};
  const Count directions{network.both_directions ? uint64_t{2} : uint64_t{1}};
  const Count first = network.skips_input ? Count{} : count(network.input);
  // These counts are for one direction, over all layers: inputs of all gates; the layers above the first take all directions.
  const Count inputs = first + (layers - 1) * directions * result;
  const Count products = gates * hidden * (inputs + layers * result);
  const Count projections = network.projection == network.hidden ? Count{} : layers * hidden * result;
  return 2 * count(network.time_steps) * directions * (products + projections);
}

}  // namespace tessera::operations
