// Stochastic quantisation of values to 2, 4 or 8 bits (QSGD; Alistarh et al., NeurIPS 2017). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::compress {

/// How values are coded. First come the scales of all buckets as float32, then the codes of all values, each
/// of `bits` bits, the first value in the lowest bits of the first byte. Unused bits of the last byte are 0.
/// Numbers are little-endian.
///
/// With L = 2^(bits-1) - 1, a value is rounded to one of the levels -L to L. Its code is the level + L, from
/// 0 to 2L, and it is decoded to scale * (level / L). The code 2L + 1 does not occur. The scale is the
/// largest magnitude of the bucket. If the whole bucket is zero, the scale and all levels are 0. If a value
/// of the bucket is not finite, the scale is NaN and all levels are 0, so that all values of the bucket
/// become NaN.
struct QsgdFormat {
  int bits = 4;               // 2, 4 or 8
  std::size_t bucket = 1024;  // values with a common scale; at least 1
  /// Values of the first bucket that lie before the first one that is coded; less than a bucket.
  std::size_t skipped = 0;
};

constexpr std::size_t qsgd_buckets(const QsgdFormat& format, std::size_t count) {
  return count == 0 ? 0 : (format.skipped + count + format.bucket - 1) / format.bucket;
}
constexpr std::size_t qsgd_bytes(const QsgdFormat& format, std::size_t count) {
  return 4 * qsgd_buckets(format, count) + (count * static_cast<std::size_t>(format.bits) + 7) / 8;
}

/// Writes qsgd_bytes() bytes. The random number of a value is hash32(key, position of the value), so that all
/// instruction sets give the same bytes.
void qsgd_encode(const QsgdFormat& format, std::span<const float> values, std::uint64_t key,
                 std::span<std::byte> bytes) noexcept;

/// Codes values again that were decoded, without their random numbers: `scales` are those of their buckets.
/// Writes qsgd_bytes() bytes. Returns false, and leaves the bytes arbitrary, if these would not be decoded to
/// the same bits: where a scale is so small that its multiples cannot be told from one another.
[[nodiscard]] bool qsgd_recode(const QsgdFormat& format, std::span<const float> values,
                               std::span<const float> scales, std::span<std::byte> bytes) noexcept;

/// Decodes as many values as `values` has room for. Returns false if the bytes are not the code of that many
/// values: their size is another one, a code or scale is one that no encoder writes, or an unused bit is set.
/// The values are then arbitrary.
[[nodiscard]] bool qsgd_decode(const QsgdFormat& format, std::span<const std::byte> bytes,
                               std::span<float> values) noexcept;

}  // namespace nzcl::compress
