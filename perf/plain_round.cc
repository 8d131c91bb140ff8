#include "perf/plain_round.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace perf {
namespace {

float through_half(float v) {
  const double magnitude = std::fabs(double{v});
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, 10 - exponent)), exponent - 10);
  return std::copysign(
      rounded >= 65536 ? std::numeric_limits<float>::infinity() : static_cast<float>(rounded), v);
}

float through_bfloat16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

}  // namespace

float through(nzcl::DataType type, float v) {
  if (!std::isfinite(v)) return v;
  return type == nzcl::DataType::float16 ? through_half(v) : through_bfloat16(v);
}

}  // namespace perf
