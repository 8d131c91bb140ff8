// float32 as float16 or bfloat16, and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nzcl/types.h"

namespace nzcl {

/// Converts `count` values to `type`, float16 or bfloat16, rounding to nearest even. What is too large for
/// the type becomes an infinity (for float16 from 65520 on), what is too small a subnormal number or zero.
/// Every NaN becomes the positive quiet NaN without payload. All instruction sets give the same bits.
/// Pointers need only the alignment of the element.
void narrow(DataType type, const float* from, std::size_t count, std::uint16_t* to) noexcept;

/// Converts from `type` to float32, which is exact. Every NaN becomes the positive quiet NaN without payload.
void widen(DataType type, const std::uint16_t* from, std::size_t count, float* to) noexcept;

}  // namespace nzcl
