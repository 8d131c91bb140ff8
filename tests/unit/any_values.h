// Elements of every kind, for tests of whatever sums them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>

#include "nzcl/types.h"
#include "reference.h"

namespace nzcl::test {

/// Half of the elements are any bits: NaNs, infinities, subnormals and extreme integers. The other half are
/// near each other, so that sums round, cancel and tie. Buffers that are filled from one generator differ.
inline void fill_with_any_values(std::span<std::byte> bytes, DataType type, std::mt19937_64& random) {
  const std::size_t size = element_bytes(type);
  for (std::size_t i = 0; i + size <= bytes.size(); i += size) {
    std::uint64_t bits = random();
    const int near = static_cast<int>(random() % 64) - 32;
    if (random() % 2 == 0) {
      const float value = static_cast<float>(near) * 0.71875f;
      switch (type) {
        case DataType::float32:
          bits = std::bit_cast<std::uint32_t>(value);
          break;
        case DataType::float64:
          bits = std::bit_cast<std::uint64_t>(std::sqrt(static_cast<double>(near + 32)));
          break;
        case DataType::float16:
          bits = float_to_half(value);
          break;
        case DataType::bfloat16:
          bits = float_to_bfloat16(value);
          break;
        case DataType::int32:
        case DataType::int64:
        case DataType::uint8:
          bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(near));
          break;
      }
    }
    std::memcpy(bytes.data() + i, &bits,
                size);  // copies the low bytes: all targets of nzcl are little-endian
  }
}

}  // namespace nzcl::test
