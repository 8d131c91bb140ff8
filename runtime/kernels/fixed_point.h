// float32 as fixed point with a shared exponent, and sums of it. All instruction sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nzcl {

/// The exponent of what is not finite.
inline constexpr std::uint8_t kNotFinite = 255;

/// The largest exponent of `count` values as float32 stores it: 0 for zero and subnormal values, kNotFinite
/// if one of them is not finite.
std::uint8_t largest_exponent(const float* from, std::size_t count) noexcept;

/// Writes round(x * 2^shift), to nearest even. What would be beyond `limit` is clamped, and true is returned
/// if there was any of it. Precondition: -150 <= shift <= 250, and limit is a power of two below 2^31.
bool to_fixed(const float* from, std::size_t count, int shift, std::int32_t limit, std::int32_t* to) noexcept;

/// Writes x * 2^-shift / divisor.
void from_fixed(const std::int32_t* from, std::size_t count, int shift, float divisor, float* to) noexcept;

/// Adds `from` to `to`, modulo 2^32.
void add_wrapping(const std::int32_t* from, std::size_t count, std::int32_t* to) noexcept;

}  // namespace nzcl
