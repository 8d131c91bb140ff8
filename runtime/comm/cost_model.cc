#include "runtime/comm/cost_model.h"

#include <cmath>
#include <limits>

namespace nzcl::comm {
namespace {

std::uint64_t as_bytes(double bytes) {
  return bytes < 1e18 ? static_cast<std::uint64_t>(std::ceil(bytes))
                      : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

std::uint64_t gather_from(const verbs::Costs& costs) {
  return as_bytes(costs.segment_ns / costs.copy_byte_ns);
}

std::uint64_t direct_from(const verbs::Costs& costs, int ranks) {
  // A run of b bytes: (ranks - 1) (write_ns + b foreign_byte_ns) against ranks b copy_byte_ns.
  const double saved_byte_ns = ranks * costs.copy_byte_ns - (ranks - 1) * costs.foreign_byte_ns;
  if (saved_byte_ns <= 0) return std::numeric_limits<std::uint64_t>::max();
  return as_bytes((ranks - 1) * costs.write_ns / saved_byte_ns);
}

}  // namespace nzcl::comm
