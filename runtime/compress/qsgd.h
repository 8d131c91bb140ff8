// Stochastic quantisation of values to 2, 4 or 8 bits (QSGD; Alistarh et al., NeurIPS 2017). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::compress {

/// Coded are `count` values: first the scales of the buckets, as float32, then the codes of all values, of
/// `bits` bits each, lowest bits first; unused bits of the last byte are 0. Bytes are little-endian.
///
/// With L = 2^(bits-1) - 1, the code of a value is its level + L, from 0 to 2L, and the value is
/// scale * (level / L). The greatest code, 2L + 1, does not occur. The scale is the greatest magnitude of the
/// bucket: 0 if all are zeros, and then all levels are 0; NaN if one is not finite, and then all levels are 0
/// and all values become NaN.
struct QsgdFormat {
  int bits = 4;               // 2, 4 or 8
  std::size_t bucket = 1024;  // values with a common scale; at least 1
};

constexpr std::size_t qsgd_buckets(const QsgdFormat& format, std::size_t count) {
  return (count + format.bucket - 1) / format.bucket;
}
constexpr std::size_t qsgd_bytes(const QsgdFormat& format, std::size_t count) {
  return 4 * qsgd_buckets(format, count) + (count * static_cast<std::size_t>(format.bits) + 7) / 8;
}

/// Writes qsgd_bytes() bytes. Random numbers are hash32(key, number of the value). All instruction sets give
/// the same bytes.
void qsgd_encode(const QsgdFormat& format, std::span<const float> values, std::uint64_t key,
                 std::span<std::byte> bytes) noexcept;

/// Writes as many values as `values` holds. Returns false where the bytes are not such a coding of so many
/// values: of another size, with a code or scale that no encoder writes, or with unused bits that are set.
/// The values are arbitrary then.
[[nodiscard]] bool qsgd_decode(const QsgdFormat& format, std::span<const std::byte> bytes,
                               std::span<float> values) noexcept;

}  // namespace nzcl::compress
