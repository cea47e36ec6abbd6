// Computes the cost of an operation, by its family (families.def), sizes and types. Pure; any thread. Does not repeat
// the checks of libraries: a call that they refuse launches nothing, and its cost means nothing.
#pragma once

#include <optional>
#include <span>

#include "operations/catalogue.h"
#include "operations/cost.h"
#include "operations/type.h"

namespace tessera::operations {

// `count` times the same; sizes that the family has not are left out. Every operand of a batch counts, also if a stride of
// 0 names the same one again. Nothing for a negative size or a type that is not known.
std::optional<Cost> family_cost(Family family, std::span<const int64_t> sizes, int64_t count,
                                const Types& types);

}  // namespace tessera::operations
