// The plain scalar loop that every reduction is compared with. It is written for clarity, and shares no code
// with the kernels.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "nzcl/types.h"
#include "runtime/kernels/reduce.h"

namespace nzcl::test {

inline float half_to_float(std::uint16_t half) {
  const int exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                              : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  if (exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return (half & 0x8000) != 0 ? -value : value;
}

/// Converts to float16, rounding to nearest even. Every NaN becomes 0x7e00.
inline std::uint16_t float_to_half(float value) {
  if (std::isnan(value)) return 0x7e00;
  const unsigned sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65536) return static_cast<std::uint16_t>(sign | 0x7c00);
  const int exponent = magnitude < std::ldexp(1, -14) ? -14 : std::ilogb(magnitude);
  // The mantissa in units of the last place. Where rounding carries out of it, the exponent grows by one and
  // the largest number becomes infinity, as it should.
  const auto mantissa = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | ((static_cast<unsigned>(exponent + 14) << 10) + mantissa));
}

inline float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// Converts to bfloat16, rounding to nearest even. Every NaN becomes 0x7fc0.
inline std::uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t kept = bits >> 16, dropped = bits & 0xffff;
  const bool up = dropped > 0x8000 || (dropped == 0x8000 && kept % 2 == 1);
  return static_cast<std::uint16_t>(kept + up);
}

namespace detail {

/// Says how elements of a type are stored, and in which type they are computed.
template <typename T>
struct Direct {
  using Stored = T;
  using Value = T;
  static Value load(Stored s) { return s; }
  static Stored store(Value v) { return v; }
};
struct AsHalf {
  using Stored = std::uint16_t;
  using Value = float;
  static Value load(Stored s) { return half_to_float(s); }
  static Stored store(Value v) { return float_to_half(v); }
};
struct AsBfloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static Value load(Stored s) { return bfloat16_to_float(s); }
  static Stored store(Value v) { return float_to_bfloat16(v); }
};

template <typename V>
V reduce_values(ReduceOp op, const std::vector<V>& values, const ReduceSpec& spec) {
  V result = values[0];
  for (std::size_t s = 1; s < values.size(); ++s) {
    const V next = values[s];
    if (op == ReduceOp::sum || op == ReduceOp::avg) {
      if constexpr (std::is_integral_v<V>) {
        result = static_cast<V>(static_cast<std::uint64_t>(result) + static_cast<std::uint64_t>(next));
      } else {
        result = result + next;
      }
    } else if (op == ReduceOp::min ? next < result : result < next) {
      result = next;
    } else if (next != next) {
      result = next;
    } else if constexpr (std::is_floating_point_v<V>) {
      const bool lower = std::signbit(next) && !std::signbit(result);  // -0.0 counts as less than +0.0
      const bool higher = !std::signbit(next) && std::signbit(result);
      if (next == result && (op == ReduceOp::min ? lower : higher)) result = next;
    }
  }
  if (op == ReduceOp::avg) result = static_cast<V>(result / static_cast<V>(spec.ranks));
  if constexpr (std::is_floating_point_v<V>) {
    if (std::isnan(result)) result = std::numeric_limits<V>::quiet_NaN();
  }
  return result;
}

template <class Format>
void reduce_elements(ReduceOp op, std::byte* dst, std::span<const std::byte* const> sources,
                     std::size_t elements, const ReduceSpec& spec) {
  using Stored = typename Format::Stored;
  using Value = typename Format::Value;
  for (std::size_t i = 0; i < elements; ++i) {
    std::vector<Value> values;
    for (const std::byte* source : sources) {
      Stored stored;
      std::memcpy(&stored, source + i * sizeof(Stored), sizeof(Stored));
      values.push_back(Format::load(stored));
    }
    if (spec.with_zero) values.push_back(Value{0});  // changes a sum only where all elements are -0.0
    Stored result;
    if (values.size() == 1 && op != ReduceOp::avg) {
      std::memcpy(&result, sources[0] + i * sizeof(Stored),
                  sizeof(Stored));  // copied as bytes, so that a NaN keeps its bits
    } else if (std::is_same_v<Value, std::uint8_t> && op == ReduceOp::avg) {
      const std::vector<std::int64_t> wide(values.begin(), values.end());
      result = static_cast<Stored>(reduce_values(op, wide, spec));
    } else {
      result = Format::store(reduce_values(op, values, spec));
    }
    std::memcpy(dst + i * sizeof(Stored), &result, sizeof(Stored));
  }
}

}  // namespace detail

/// The bytes that reduce_kernel(type, op) must give for these sources.
inline std::vector<std::byte> reference_reduce(DataType type, ReduceOp op,
                                               std::span<const std::byte* const> sources,
                                               std::size_t elements, const ReduceSpec& spec) {
  std::vector<std::byte> dst(elements * element_bytes(type));
  const auto run = [&]<class Format>(Format) {
    detail::reduce_elements<Format>(op, dst.data(), sources, elements, spec);
  };
  switch (type) {
    case DataType::float32:
      run(detail::Direct<float>());
      break;
    case DataType::float64:
      run(detail::Direct<double>());
      break;
    case DataType::float16:
      run(detail::AsHalf());
      break;
    case DataType::bfloat16:
      run(detail::AsBfloat16());
      break;
    case DataType::int32:
      run(detail::Direct<std::int32_t>());
      break;
    case DataType::int64:
      run(detail::Direct<std::int64_t>());
      break;
    case DataType::uint8:
      run(detail::Direct<std::uint8_t>());
      break;
  }
  return dst;
}

}  // namespace nzcl::test
