// float32 as fixed point with a shared exponent, and sums of it. All instruction sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nzcl {

/// The exponent with which float32 stores infinities and NaNs.
inline constexpr std::uint8_t kNotFinite = 255;

/// Returns the largest exponent of `count` values, as float32 stores exponents: it is 0 if all values are
/// zero or subnormal, and kNotFinite if one of them is not finite.
std::uint8_t largest_exponent(const float* from, std::size_t count) noexcept;

/// Writes x * 2^shift for each value x, rounded to nearest even. Results beyond +-`limit`, and NaNs, become
/// +-`limit`; returns true if there were any. Preconditions: -150 <= shift <= 250, and limit is a power of
/// two below 2^31.
bool to_fixed(const float* from, std::size_t count, int shift, std::int32_t limit, std::int32_t* to) noexcept;

/// Writes x * 2^-shift / divisor for each value x.
void from_fixed(const std::int32_t* from, std::size_t count, int shift, float divisor, float* to) noexcept;

/// Adds `from` to `to`, modulo 2^32.
void add_wrapping(const std::int32_t* from, std::size_t count, std::int32_t* to) noexcept;

}  // namespace nzcl
