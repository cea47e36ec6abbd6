#include "operations/family.h"

#include "operations/family_work.h"

namespace tessera::operations {

std::optional<Cost> family_cost(Family family, std::span<const int64_t> sizes, int64_t count,
                                const Types& types) {
  return families::cost_of(family, sizes, count, types);
}

}  // namespace tessera::operations
