#include "runtime/comm/cost_model.h"

#include <cmath>
#include <limits>

namespace nzcl::comm {

std::uint64_t gather_from(const verbs::Costs& costs) {
  return static_cast<std::uint64_t>(std::ceil(costs.segment));
}

bool in_one_hop(int ranks) { return ranks <= 2; }

std::uint64_t direct_from(const verbs::Costs& costs, int ranks) {
  // A run of b bytes: (ranks - 1) (write + b foreign_byte) against ranks b.
  const double saved = ranks - (ranks - 1) * costs.foreign_byte;  // by each byte
  const double bytes = (ranks - 1) * costs.write / saved;
  return saved > 0 && bytes < 1e18 ? static_cast<std::uint64_t>(std::ceil(bytes))
                                   : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace nzcl::comm
