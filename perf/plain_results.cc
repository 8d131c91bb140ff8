#include "perf/plain_results.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "perf/plain_round.h"

namespace perf {
namespace {

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

float largest(std::span<const float> sums, std::span<const float> before) {
  float most = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float total = before.empty() ? sums[i] : sums[i] + before[i];
    if (std::isfinite(total)) most = std::max(most, std::fabs(total));
  }
  return most;
}

/// Whether `result` can be what an owner makes of `total`. `most` is no less than any scale.
bool can_be(const nzcl::ResultCodec& codec, float total, float result, float most) {
  struct Visitor {
    float total, result, most;
    bool operator()(const nzcl::AsIs&) const { return same(total, result); }
    bool operator()(const nzcl::Narrow& v) const { return same(through(v.type, total), result); }
    bool operator()(const nzcl::Qsgd& v) const {
      if (std::isnan(result)) return true;  // something in its bucket is not finite
      const float step = most / static_cast<float>((1 << (v.bits - 1)) - 1);
      return std::fabs(total - result) <= step * (1 + 8 * std::numeric_limits<float>::epsilon());
    }
  };
  return std::visit(Visitor{total, result, most}, codec);
}

}  // namespace

std::vector<Part> parts_in(const nzcl::Compressor& compressor, const CodedStep& step) {
  const bool keeps = compressor.residual;
  const float most = largest(step.sums, step.before);
  std::vector<Part> parts;
  for (std::size_t i = 0; i < step.sums.size(); ++i) {
    const float total = keeps ? step.sums[i] + step.before[i] : step.sums[i];
    const float lost = std::isfinite(step.results[i]) ? total - step.results[i] : 0.0f;
    const bool untouched = !keeps || same(step.before[i], step.after[i]);
    const bool owned =
        (!keeps || same(lost, step.after[i])) && can_be(compressor.results, total, step.results[i], most);
    parts.push_back(owned ? (untouched ? Part::both : Part::owned)
                          : (untouched ? Part::untouched : Part::wrong));
  }
  return parts;
}

}  // namespace perf
