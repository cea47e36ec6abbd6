// Computes the cost of a graph of cuDNN's operations (graph_operations.def): FLOP of its operations, and bytes of the
// tensors that lie in memory. A tensor counts once if it is read and once if it is written. Tensors that only lead from
// one operation to the next take none. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "operations/catalogue.h"
#include "operations/cost.h"
#include "operations/count.h"
#include "operations/type.h"

namespace tessera::operations {

enum class GraphStep : uint8_t {
#define TS_GRAPH_OPERATION(name, flop) name,
#include "operations/graph_operations.def"
};
enum class GraphRole : uint8_t { kX, kY, kParameter, kRunning, kFilter, kKeys, kBytes };

// How an operation is given a tensor.
struct GraphAttribute {
  int32_t number;  // cudnnBackendAttributeName_t
  GraphStep step;
  GraphRole role;
  bool is_written;
};
const GraphAttribute* find_graph_attribute(int32_t number);  // null: no tensor of an operation

inline constexpr uint32_t kMostGraphDims = 8;
struct GraphTensor {
  int64_t id = 0;  // equal ones are the same tensor
  Type type = Type::kFromArguments;
  uint32_t n_dims = 0;
  int64_t dims[kMostGraphDims] = {};
  int64_t vector = 1;      // elements that each place holds
  bool in_memory = false;  // else it leads from one operation to the next, or is passed by value

  Count elements() const;
};

// One operation of a graph.
struct GraphOperation {
  static constexpr uint32_t kMostTensors = 14;
  struct Given {
    const GraphAttribute* attribute;
    GraphTensor tensor;
  };

  GraphStep step = {};
  bool is_known = true;  // false: something of it could not be read
  uint32_t n_tensors = 0;
  int32_t mode = -1;   // of its own descriptor: pointwise, reduction, pooling; or what is normalised
  int32_t phase = -1;  // of normalisation
  Count window;        // elements of one, of pooling
  Given tensors[kMostTensors] = {};

  const GraphTensor* find(GraphRole role) const;
};

struct GraphCost {
  Cost cost;
  Shape shape;  // of the operation with the most FLOP: its result, and the length of its sums if it has any
  Types types;  // of that one: input, other factor, result
  bool multiplies = false;  // it is a product or convolution
};
// Nothing where an operation is not known.
std::optional<GraphCost> graph_cost(std::span<const GraphOperation* const> operations);

}  // namespace tessera::operations
