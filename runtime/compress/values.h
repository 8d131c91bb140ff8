// Values by themselves, whatever tensor they are of: norms, what is not finite, signs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::compress {

/// The bits of a magnitude as an integer. Among float32 numbers that are not negative, the order of the
/// numbers is that of their bits, so magnitudes are compared as integers.
using MagnitudeBits = std::uint32_t;
inline constexpr MagnitudeBits kMagnitudeMask = 0x7fffffff;
inline constexpr MagnitudeBits kInfinityBits = 0x7f800000;

/// As integers, so that compilers make no branch of it and use vectors.
inline bool is_finite(float value) {
  return (std::bit_cast<MagnitudeBits>(value) & kMagnitudeMask) < kInfinityBits;
}

/// The squares of so many values are summed by themselves.
inline constexpr std::size_t kPartOfSquares = 2048;
/// The sum of squares in float64, in an order that depends on nothing but the number of values.
double sum_of_squares(std::span<const float> values) noexcept;

/// The position of the first value that is NaN or infinite, or the number of values if there is none.
std::size_t find_non_finite(std::span<const float> values) noexcept;

std::size_t count_non_finite(std::span<const float> values) noexcept;

/// Gives all values the magnitude `scale`, which is not negative. What is not finite stays as it is.
void to_sign_and_scale(std::span<float> values, float scale) noexcept;

}  // namespace nzcl::compress
